"""Accelerators of a host that a fake NVML describes: found, matched, given to one worker each, and seen by no other."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from activities.run_worker import worker_exit
from runtime import gpus as gpus_module
from runtime.gpus import Gpu, GpuRequest, Gpus, GpuUnavailableError, read_inventory
from runtime.host import Host
from runtime.plans import StartPlan, WorkerPlan
from runtime.supervisor import WorkerSupervisor
from runtime.variables import WorkerIdentity
from tests.fixtures.eventually import eventually
from tests.runtime import fake_nvml
from tests.runtime.conftest import OWN_MINOR, Log
from tests.runtime.fake_nvml import FakeGpu

H100 = "NVIDIA H100 80GB HBM3"
LOOK = "ls /dev | grep nvidia; echo $CUDA_VISIBLE_DEVICES"

Read = Callable[..., Gpus]


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    """Device files of a driver, each of which leads to /dev/null."""
    folder = tmp_path / "dev"
    folder.mkdir()
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        if os.geteuid() == 0:
            os.mknod(folder / name, 0o666 | stat.S_IFCHR, os.makedev(1, 3))
            (folder / name).chmod(0o666)
        else:
            (folder / name).symlink_to("/dev/null")
    return folder


@pytest.fixture
def read(devices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Read]:
    """The accelerators of a host that has these."""
    monkeypatch.setattr(gpus_module, "LEASE_FOLDER", tmp_path / "locks")

    def read_them(*there: FakeGpu, module: str = "tests.runtime.fake_nvml") -> Gpus:
        fake_nvml.HOST[:] = there
        return read_inventory(tmp_path / "locks", module, devices)

    yield read_them
    for held in (fake_nvml.HOST, fake_nvml.LINKED, fake_nvml.DRIVER):
        held.clear()


def pair() -> tuple[FakeGpu, FakeGpu]:
    return FakeGpu("GPU-a", H100, 0), FakeGpu("GPU-b", H100, 1)


@pytest.mark.parametrize(
    ("name", "wanted", "exact", "fits"),
    [
        (H100, "H100", False, True),
        (H100, "h100", False, True),
        (H100, "H100-80GB", False, True),
        (H100, "H100", True, False),
        (H100, "H100 80GB HBM3", True, True),
        (H100, "H200", False, False),
        (H100, "H1", False, False),
        ("NVIDIA L40S", "L40", False, False),
        ("NVIDIA A100-SXM4-80GB", "A100", False, True),
        ("NVIDIA A100-SXM4-80GB", "nvidia a100 sxm4 80gb", True, True),
    ],
)
def test_a_family_fits_its_variants_and_an_exact_name_only_itself(
    name: str, wanted: str, exact: bool, fits: bool
) -> None:
    gpu = Gpu(uuid="GPU-a", name=name, memory_bytes=80 << 30, device=Path("/dev/nvidia0"))
    assert GpuRequest(types=["nothing", wanted], count=1, exact=exact).fits(gpu) is fits


def test_memory_is_a_floor(read: Read) -> None:
    gpus = read(FakeGpu("GPU-a", "NVIDIA A100-SXM4-40GB", 0, memory_bytes=40 << 30))
    gpus.lease(GpuRequest(types=["A100"], count=1, memory_bytes_min=40 << 30)).release()
    with pytest.raises(GpuUnavailableError, match="1 of A100 with 81920 MiB, and this host has 1 of NVIDIA A100"):
        gpus.lease(GpuRequest(types=["A100"], count=1, memory_bytes_min=80 << 30))


def test_no_two_leases_share_an_accelerator_whoever_gives_them(read: Read) -> None:
    one, other = read(*pair()), read(*pair())
    first, second = one.lease(GpuRequest(types=["H100"], count=1)), other.lease(GpuRequest(types=["H100"], count=1))
    assert {first.gpus[0].uuid, second.gpus[0].uuid} == {"GPU-a", "GPU-b"}
    with pytest.raises(GpuUnavailableError, match="others use too many") as refused:
        one.lease(GpuRequest(types=["H100"], count=1))
    assert refused.value.busy
    first.release()
    with pytest.raises(GpuUnavailableError, match="others use too many"):
        other.lease(GpuRequest(types=["H100"], count=2))
    second.release()
    both = other.lease(GpuRequest(types=["H100"], count=2))
    assert both.variables["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b"
    both.release()


def test_an_accelerator_that_somebody_uses_without_a_lease_is_not_given_out(read: Read) -> None:
    used, free = pair()
    used.users.append(4711)
    lease = read(used, free).lease(GpuRequest(types=["H100"], count=1))
    assert [gpu.uuid for gpu in lease.gpus] == ["GPU-b"]
    lease.release()


def test_linked_accelerators_are_a_set_that_nvlink_joins(read: Read) -> None:
    three = [FakeGpu(f"GPU-{name}", H100, number) for number, name in enumerate("abc")]
    fake_nvml.LINKED.add(frozenset(("GPU-a", "GPU-c")))
    gpus = read(*three)
    lease = gpus.lease(GpuRequest(types=["H100"], count=2, linked=True))
    assert [gpu.uuid for gpu in lease.gpus] == ["GPU-a", "GPU-c"]
    lease.release()
    fake_nvml.LINKED.clear()
    with pytest.raises(GpuUnavailableError, match="2 of H100, joined by NVLink") as refused:
        read(*three).lease(GpuRequest(types=["H100"], count=2, linked=True))
    assert not refused.value.busy


def test_one_that_is_divided_is_not_offered(read: Read) -> None:
    gpus = read(FakeGpu("GPU-a", H100, 0, divided=True))
    with pytest.raises(GpuUnavailableError, match="this host has none \\(1 in MIG mode are not offered"):
        gpus.lease(GpuRequest(types=["H100"], count=1))


def test_a_host_without_library_driver_or_accelerator_says_which(read: Read) -> None:
    wanted = GpuRequest(types=["H100"], count=1)
    with pytest.raises(GpuUnavailableError, match="pip install nvidia-ml-py"):
        read(module="no_such_module").lease(wanted)
    with pytest.raises(GpuUnavailableError, match="none is there"):
        read().lease(wanted)
    fake_nvml.DRIVER.append("Driver Not Loaded")
    with pytest.raises(GpuUnavailableError, match="NVML says: Driver Not Loaded"):
        read(*pair()).lease(wanted)


# With workers.


@pytest.fixture
def host_gpus(read: Read) -> Gpus:
    return read(*pair())


def supervisor(host: Host, log: Log, name: str, script: str, request: GpuRequest | None) -> WorkerSupervisor:
    identity = WorkerIdentity(attempt=name, project="default", function="fn", concurrency=1)
    start = StartPlan(command=["sh", "-c", script])
    plan = WorkerPlan(identity=identity, python=OWN_MINOR, token="nodusatt_test", start=start, gpus=request)
    return WorkerSupervisor(host, plan, log, lambda phase: None)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_worker_sees_its_own_accelerator_alone_and_gives_it_back(host: Host, log: Log) -> None:
    one = GpuRequest(types=["H100"], count=1)
    first = supervisor(host, log, "att_first", f"{LOOK}; echo > /dev/nvidia0 && exec sleep 600", one)
    running = asyncio.create_task(first.run(host.attempt_directory("att_first")))
    await eventually(lambda: "GPU-a" in log.text("stdout") or running.done())
    assert log.text("stdout") == ["nvidia-uvm", "nvidia0", "nvidiactl", "GPU-a"]
    second = Log()
    await supervisor(host, second, "att_second", LOOK, one).run(host.attempt_directory("att_second"))
    assert second.text("stdout") == ["nvidia-uvm", "nvidia1", "nvidiactl", "GPU-b"]
    both = supervisor(host, Log(), "att_both", LOOK, GpuRequest(types=["H100"], count=2))
    busy = worker_exit(await both.run(host.attempt_directory("att_both")))
    assert (busy.outcome, busy.message) == ("PlatformAway", "this host has 2 of H100, and others use too many of them")
    first.kill("the test is over")
    await running
    host.gpus.lease(GpuRequest(types=["H100"], count=2)).release()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
async def test_a_worker_that_asks_for_none_sees_none_and_one_that_asks_for_others_is_told(host: Host, log: Log) -> None:
    await supervisor(host, log, "att_none", LOOK, None).run(host.attempt_directory("att_none"))
    assert log.text("stdout") == [""]
    other = supervisor(host, log, "att_other", LOOK, GpuRequest(types=["B200"], count=1))
    ended = worker_exit(await other.run(host.attempt_directory("att_other")))
    assert ended.outcome == "NotStarted"
    assert ended.message == f"`spec.resources.gpu` asks for 1 of B200, and this host has 2 of {H100}"
