"""The accelerators of one node: which there are, as NVML tells, and whose they are.

`nvidia-ml-py` is imported when a node starts and needed nowhere else; a host without it, without a driver or without
accelerators has none, and `missing` says why. A worker has whole accelerators to itself, by UUID: a lock on a file of
the host for each, so that two nodes on it never give out the same, and a node that dies gives all of its back. It sees
the device files of these and no others; nothing inside may make more.

Written from NVIDIA's documentation and tested with a library that plays NVML: it has not run on an accelerator yet.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import itertools
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LEASE_FOLDER = Path("/run/nodus-server/gpus")
"""Of nodes that are root. Others have folders of their own, and see by NVML what is in use elsewhere."""
GPUS_MAX = 16
"""Of one host; as many as any machine has, and few enough to try every set of them."""
_SHARED_DEVICES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")
_DEVICES = Path("/dev")
_NO_LIBRARY = "the Python package nvidia-ml-py is not installed beside the node: `pip install nvidia-ml-py`"


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """One accelerator. `device` is its file on the host."""

    uuid: str
    name: str
    memory_bytes: int
    device: Path


@dataclass(frozen=True, kw_only=True)
class GpuRequest:
    """What a worker needs: `count` accelerators, each of one of `types`, with this much memory, `linked` by NVLink.

    A type names a family, each of whose variants will do, unless `exact`.
    """

    types: Sequence[str]
    count: int
    memory_bytes_min: int = 0
    exact: bool = False
    linked: bool = False

    def fits(self, gpu: Gpu) -> bool:
        """Whether an accelerator is one of those asked for."""
        if gpu.memory_bytes < self.memory_bytes_min:
            return False
        name = _words(gpu.name)
        if self.exact:
            return any(_words(wanted) == name for wanted in self.types)
        return any(set(_words(wanted)) <= set(name) for wanted in self.types)

    def __str__(self) -> str:
        memory = f" with {self.memory_bytes_min >> 20} MiB" if self.memory_bytes_min else ""
        linked = ", joined by NVLink" if self.linked else ""
        return f"{self.count} of {'|'.join(self.types)}{'!' if self.exact else ''}{memory}{linked}"


@dataclass(frozen=True, kw_only=True)
class Inventory:
    """What a host has. `links` are pairs of UUIDs that NVLink joins; `missing` says why there is nothing, or less."""

    gpus: Sequence[Gpu] = ()
    links: Collection[frozenset[str]] = ()
    devices: Sequence[Path] = ()
    """Files of the driver that every worker with an accelerator needs."""
    missing: str | None = None

    @property
    def told(self) -> str:
        """In words, for a log."""
        names = ", ".join(gpu.name for gpu in self.gpus) or "none"
        return f"{names} ({self.missing})" if self.missing else names


class GpuUnavailableError(Exception):
    """There are no such accelerators, or not now: `busy` tells that this host has them and others use them."""

    def __init__(self, message: str, *, busy: bool) -> None:
        super().__init__(message)
        self.busy = busy


@dataclass(frozen=True, kw_only=True)
class GpuLease:
    """Accelerators that are one worker's until `release`."""

    gpus: Sequence[Gpu]
    mounts: Sequence[tuple[Path, Path]]
    """Device files, of the host and inside."""
    descriptors: Sequence[int]

    @property
    def variables(self) -> dict[str, str]:
        """What makes CUDA count these, in this order, from 0; nothing for none."""
        if not self.gpus:
            return {}
        uuids = ",".join(gpu.uuid for gpu in self.gpus)
        return {"CUDA_VISIBLE_DEVICES": uuids, "NVIDIA_VISIBLE_DEVICES": uuids}

    def release(self) -> None:
        """Give them back; only when no process of the worker is left."""
        for descriptor in self.descriptors:
            os.close(descriptor)


NO_LEASE = GpuLease(gpus=(), mounts=(), descriptors=())
"""Of a worker that asks for none."""


class Gpus:
    """Gives out the accelerators of a host. `in_use` tells, by UUID, of one that somebody uses without asking us."""

    def __init__(
        self, inventory: Inventory, *, folder: Path, in_use: Callable[[str], bool] = lambda uuid: False
    ) -> None:
        self.inventory = inventory
        self._folder = folder
        self._in_use = in_use

    def lease(self, request: GpuRequest) -> GpuLease:
        """Accelerators that fit, nobody else's from now on. Raises GpuUnavailableError."""
        fitting = [gpu for gpu in self.inventory.gpus if request.fits(gpu)]
        if self._chosen(fitting, request) is None:
            raise GpuUnavailableError(self._refusal(request), busy=False)
        with contextlib.ExitStack() as stack:
            held = {gpu.uuid: lock for gpu in fitting if (lock := self._lock(gpu, stack)) is not None}
            chosen = self._chosen([gpu for gpu in fitting if gpu.uuid in held], request)
            if chosen is None:
                raise GpuUnavailableError(f"this host has {request}, and others use too many of them", busy=True)
            kept = [held[gpu.uuid] for gpu in chosen]
            stack.pop_all()
            for descriptor in set(held.values()) - set(kept):
                os.close(descriptor)
        files = [*(gpu.device for gpu in chosen), *self.inventory.devices]
        return GpuLease(gpus=chosen, mounts=[(file, _DEVICES / file.name) for file in files], descriptors=kept)

    def _chosen(self, gpus: Sequence[Gpu], request: GpuRequest) -> Sequence[Gpu] | None:
        """The first set of these that will do."""
        for chosen in itertools.combinations(gpus, request.count):
            pairs = itertools.combinations([gpu.uuid for gpu in chosen], 2)
            if not request.linked or all(frozenset(pair) in self.inventory.links for pair in pairs):
                return chosen
        return None

    def _lock(self, gpu: Gpu, stack: contextlib.ExitStack) -> int | None:
        """A lock on one, or None when it is taken; a GPU that is used without a lease is nobody's to give."""
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        descriptor = os.open(self._folder / gpu.uuid, flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            taken = self._in_use(gpu.uuid)
        except BlockingIOError:
            taken = True
        if taken:
            os.close(descriptor)
            return None
        stack.callback(os.close, descriptor)
        return descriptor

    def _refusal(self, request: GpuRequest) -> str:
        names = sorted({gpu.name for gpu in self.inventory.gpus})
        has = f"this host has {len(self.inventory.gpus)} of {', '.join(names)}" if names else "this host has none"
        why = f" ({self.inventory.missing})" if self.inventory.missing else ""
        return f"`spec.resources.gpu` asks for {request}, and {has}{why}"


NO_GPUS = Gpus(Inventory(), folder=LEASE_FOLDER)
"""Of a host that was not asked."""


def read_inventory(own_folder: Path, module: str = "pynvml", devices: Path = _DEVICES) -> Gpus:
    """Ask NVML what this host has; a driver that wakes up takes seconds. What keeps it from answering is `missing`.

    `own_folder` is for locks where the host's cannot be written, `module` is the Python module that speaks to NVML,
    `devices` is where the files of the driver are.
    """
    try:
        nvml = importlib.import_module(module)
    except ImportError:
        return Gpus(Inventory(missing=_NO_LIBRARY), folder=own_folder)
    try:
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
        divided = [handle for handle in handles if _is_divided(nvml, handle)]
        whole = [handle for handle in handles if handle not in divided][:GPUS_MAX]
        found = {_text(nvml.nvmlDeviceGetUUID(handle)): handle for handle in whole}
        gpus = [_gpu(nvml, uuid, handle, devices) for uuid, handle in found.items()]
        links = frozenset(_links(nvml, found))
    except nvml.NVMLError as error:
        return Gpus(Inventory(missing=f"NVML says: {error}"), folder=own_folder)
    missing = "none is there" if not handles else None
    inventory = Inventory(
        gpus=gpus,
        links=links,
        devices=[devices / name for name in _SHARED_DEVICES if (devices / name).exists()],
        missing=f"{len(divided)} in MIG mode are not offered" if divided else missing,
    )
    folder = LEASE_FOLDER if os.geteuid() == 0 else own_folder
    return Gpus(inventory, folder=folder, in_use=lambda uuid: _is_in_use(nvml, found[uuid]))


def _gpu(nvml: Any, uuid: str, handle: Any, devices: Path) -> Gpu:  # noqa: ANN401 - NVML's own
    return Gpu(
        uuid=uuid,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        memory_bytes=int(nvml.nvmlDeviceGetMemoryInfo(handle).total),
        device=devices / f"nvidia{nvml.nvmlDeviceGetMinorNumber(handle)}",
    )


def _is_divided(nvml: Any, handle: Any) -> bool:  # noqa: ANN401
    try:
        return bool(nvml.nvmlDeviceGetMigMode(handle)[0])
    except nvml.NVMLError:
        return False  # it knows nothing of such a mode


def _links(nvml: Any, found: dict[str, Any]) -> Iterator[frozenset[str]]:  # noqa: ANN401
    for (one, first), (other, second) in itertools.combinations(found.items(), 2):
        with contextlib.suppress(nvml.NVMLError):
            status = nvml.nvmlDeviceGetP2PStatus(first, second, nvml.NVML_P2P_CAPS_INDEX_NVLINK)
            if status == nvml.NVML_P2P_STATUS_OK:
                yield frozenset((one, other))


def _is_in_use(nvml: Any, handle: Any) -> bool:  # noqa: ANN401
    try:
        return bool(nvml.nvmlDeviceGetComputeRunningProcesses(handle))
    except nvml.NVMLError:
        return True  # one that does not answer is not to be given out


def _text(told: str | bytes) -> str:
    return told.decode() if isinstance(told, bytes) else told


def _words(name: str) -> list[str]:
    """A name as it is compared: `NVIDIA A100-SXM4-80GB` and `a100 sxm4 80gb` are one."""
    return [word for word in re.split(r"[^a-z0-9]+", name.lower()) if word not in ("", "nvidia")]
