"""The egress proxy as a process of a node: what it may do, whom it serves, how it ends and begins again."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.names import NameServer
from tests.runtime.conftest import TEST_UID
from tests.runtime.egress.conftest import Make, needs_root
from tests.runtime.egress.origin import Origin

pytestmark = needs_root

Names = tuple[NameServer, Path]
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x70"


async def test_the_proxy_has_no_right_no_file_and_no_variable_of_the_node(outlet: Make) -> None:
    out = await outlet("allowed.test")
    assert out.gate.pid is not None
    inside = max(psutil.Process(out.gate.pid).children(recursive=True), key=lambda process: len(process.parents()))
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{inside.pid}/status").read_text().splitlines())
    uid = status["Uid"].split()[0]
    assert uid not in ("0", str(TEST_UID))
    assert {status[name] for name in ("CapEff", "CapPrm", "CapInh", "CapBnd", "CapAmb")} == {"0" * 16}
    assert (status["NoNewPrivs"], status["Seccomp"], status["Groups"].strip()) == ("1", "2", "")
    assert set(inside.environ()) <= {"PATH", "LOCALDOMAIN", "LC_CTYPE", "PWD"}
    root = Path(f"/proc/{inside.pid}/root")
    assert not (root / "etc/shadow").exists()
    assert not (root / "root/.ssh").exists()
    assert sorted(path.name for path in (root / "nodus/server").iterdir()) == ["h11", "runtime"]


async def test_another_users_worker_cannot_connect_to_the_socket(outlet: Make) -> None:
    out = await outlet("allowed.test", owner=TEST_UID)
    assert out.socket.stat().st_uid == TEST_UID
    assert out.socket.stat().st_mode & 0o777 == 0o600


async def test_attempts_have_rules_of_their_own(outlet: Make, secure: Origin, names: Names) -> None:
    first = await outlet("allowed.test")
    second = await outlet("other.test", gate=first.gate, attempt="att_second")
    names[0].names["other.test"] = ["127.0.0.1"]
    assert b"hello" in await first.fetch(secure, "allowed.test")
    assert (await second.refusal(f"allowed.test:{secure.port}")).startswith("403 ")
    assert b"hello" in await second.fetch(secure, "other.test")
    assert all("other.test" not in line for line in first.lines)


async def test_an_attempt_that_ended_is_cut_off_at_once(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test")
    head, reader, writer = await out.connect(f"allowed.test:{secure.port}")
    assert head.startswith(b"HTTP/1.1 200 ")
    await out.gate.close("att_test")
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises((FileNotFoundError, ConnectionRefusedError)):
        await asyncio.open_unix_connection(str(out.socket))


async def test_a_proxy_that_died_is_replaced_under_its_workers(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test")
    assert b"hello" in await out.fetch(secure, "allowed.test")
    first = out.gate.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    # A connection made meanwhile waits for the next proxy; one that the dead one had taken is lost.
    await eventually(lambda: out.gate.pid not in (None, first))
    assert b"hello" in await out.fetch(secure, "allowed.test")


async def test_nothing_is_left_when_the_node_stops(make_gate: Make, outlet: Make) -> None:
    gate = make_gate()
    out = await outlet("allowed.test", gate=gate)
    process = psutil.Process(gate.pid)
    family = [process, *process.children(recursive=True)]
    await out.gate.close("att_test")
    before = len(os.listdir("/proc/self/fd"))
    await gate.stop()
    assert not any(psutil.pid_exists(each.pid) and each.status() != psutil.STATUS_ZOMBIE for each in family)
    assert len(os.listdir("/proc/self/fd")) < before
