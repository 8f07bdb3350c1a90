"""An example beside the server: whatever becomes of it is told, and nothing of it stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from tests.fixtures.eventually import eventually
from workers import demo
from workers.client_files import Access
from workers.demo import run_example
from workers.engines.child import free_port
from workers.progress import Progress

STUBBORN = """
import os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
told = Path(__file__).with_name("told")
told.with_suffix(".new").write_text(str(os.getpid()))
told.with_suffix(".new").rename(told)
time.sleep(600)
"""


@pytest.fixture
def access() -> Access:
    """A server that is not there; these examples end before they would ask it."""
    return Access(
        api_url=f"http://127.0.0.1:{free_port()}", https_url=f"https://127.0.0.1:{free_port()}", api_key="nodus_none"
    )


def example(folder: Path, source: str) -> Path:
    path = folder / "example.py"
    path.write_text(source)
    return path


async def test_an_example_that_fails_is_told_with_its_code(
    tmp_path: Path, access: Access, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_example(example(tmp_path, "raise SystemExit(3)\n"), access, Progress())
    assert "the example ended with code 3" in capsys.readouterr().out


async def test_an_example_that_takes_too_long_is_ended_and_the_server_serves_on(
    tmp_path: Path, access: Access, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "EXAMPLE_SECONDS_MAX", 0.5)
    await run_example(example(tmp_path, "import time\ntime.sleep(600)\n"), access, Progress())
    assert "the example was ended after 0.5 s" in capsys.readouterr().out


async def test_costs_that_cannot_be_read_are_told(
    tmp_path: Path, access: Access, capsys: pytest.CaptureFixture[str]
) -> None:
    await run_example(example(tmp_path, "raise SystemExit(0)\n"), access, Progress())
    assert "its costs cannot be read" in capsys.readouterr().out


async def test_an_example_that_ignores_a_stop_is_killed(
    tmp_path: Path, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "STOP_SECONDS", 0.2)
    running = asyncio.create_task(run_example(example(tmp_path, STUBBORN), access, Progress()))
    await eventually(lambda: (tmp_path / "told").exists())
    program = psutil.Process(int((tmp_path / "told").read_text()))
    assert str(tmp_path / "example.py") in program.cmdline()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 60)
    await eventually(lambda: has_ended(program))


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True
