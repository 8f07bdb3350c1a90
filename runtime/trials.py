"""What the canary tries inside its sandbox (`canary.py` runs it there, with nothing but a bare interpreter).

Each trial does something that user code must not be able to do, and returns or raises OSError. The answer is one JSON
object: by trial, "done" or the error. The name of a trial completes the sentence "code inside can …".
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import Any

PROCESSES = 32
"""More than the canary's group allows, by the double."""
CONNECT_SECONDS_MAX = 2.0

# The same numbers as in `seccomp.py`: unshare, mount and ptrace, by machine.
_SYSTEM_CALLS = {"x86_64": (272, 165, 101), "aarch64": (97, 40, 117)}
_NEW_USER_NAMESPACE = 0x10000000


def _read_files_of_the_host(bait: Mapping[str, Any]) -> None:
    with open(bait["file"]):
        pass


def _read_the_hosts_passwords(bait: Mapping[str, Any]) -> None:
    with open("/etc/shadow"):
        pass


def _write_to_the_system(bait: Mapping[str, Any]) -> None:
    for path in ("/usr/canary", "/etc/canary", "/canary"):
        with contextlib.suppress(OSError), open(path, "w"):
            return
    raise OSError(errno.EROFS, "nowhere")


def _reach_the_hosts_ports(bait: Mapping[str, Any]) -> None:
    socket.create_connection(("127.0.0.1", bait["port"]), CONNECT_SECONDS_MAX).close()


def _reach_the_metadata_service(bait: Mapping[str, Any]) -> None:
    socket.create_connection(("169.254.169.254", 80), CONNECT_SECONDS_MAX).close()


def _signal_processes_of_the_host(bait: Mapping[str, Any]) -> None:
    os.kill(bait["pid"], 0)


def _end_its_own_supervisor(bait: Mapping[str, Any]) -> None:
    os.kill(1, signal.SIGKILL)
    # The kernel passes over what a namespace sends to its own first process, without a word. Who reads this lives.
    raise OSError(errno.EPERM, "nothing happened")


def _read_the_supervisors_environment(bait: Mapping[str, Any]) -> None:
    with open("/proc/1/environ", "rb") as file:
        # Without root's rights outside, both are one user, and there must be nothing to read.
        if not file.read().strip(b"\0").replace(b"PATH=/usr/bin:/bin", b""):
            raise OSError(errno.EACCES, "nothing")


def _become_root(bait: Mapping[str, Any]) -> None:
    os.setuid(0)


def _make_a_user_namespace(bait: Mapping[str, Any]) -> None:
    _call(0, _NEW_USER_NAMESPACE)


def _mount_file_systems(bait: Mapping[str, Any]) -> None:
    _call(1, b"none", b"/tmp", b"tmpfs", 0, 0)


def _trace_processes(bait: Mapping[str, Any]) -> None:
    _call(2, 0, 0, 0, 0)


def _open_raw_sockets(bait: Mapping[str, Any]) -> None:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()


def _fill_the_hosts_disk(bait: Mapping[str, Any]) -> None:
    with open("/workspace/canary", "wb") as file:
        for _ in range(64):
            file.write(bytes(1 << 20))


def _start_many_processes(bait: Mapping[str, Any]) -> None:
    started: list[int] = []
    try:
        for _ in range(PROCESSES):
            pid = os.fork()
            if pid == 0:
                signal.pause()
            started.append(pid)
    finally:
        for pid in started:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


_MANY_PROCESSES = "start many processes"

Trial = Callable[[Mapping[str, Any]], None]

TRIALS: Mapping[str, Trial] = {
    "read files of the host": _read_files_of_the_host,
    "read the host's passwords": _read_the_hosts_passwords,
    "write to the system": _write_to_the_system,
    "reach the host's ports": _reach_the_hosts_ports,
    "reach the metadata service": _reach_the_metadata_service,
    "signal processes of the host": _signal_processes_of_the_host,
    "end its own supervisor": _end_its_own_supervisor,
    "read its supervisor's environment": _read_the_supervisors_environment,
    "become root": _become_root,
    "make a user namespace": _make_a_user_namespace,
    "mount file systems": _mount_file_systems,
    "trace processes": _trace_processes,
    "open raw sockets": _open_raw_sockets,
    "fill the host's disk": _fill_the_hosts_disk,
    _MANY_PROCESSES: _start_many_processes,
}


HARMLESS = (
    "read files of the host",
    "read the host's passwords",
    "reach the host's ports",
    "signal processes of the host",
    "become root",
    "make a user namespace",
    "open raw sockets",
    _MANY_PROCESSES,
)
"""Those that change nothing where they succeed, as they may outside a sandbox; one that asks to be traced stops."""


def _call(position: int, *arguments: object) -> None:
    number = _SYSTEM_CALLS[os.uname().machine][position]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, *arguments) != 0:
        raise OSError(ctypes.get_errno(), "refused")


def outcome(trial: Trial, bait: Mapping[str, Any]) -> str:
    """ "done", or the name of the error that the trial met."""
    try:
        trial(bait)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, repr(error))
    return "done"


if __name__ == "__main__":
    given = json.loads(sys.argv[1])
    told = {name: outcome(TRIALS[name], given) for name in given.get("trials", TRIALS)}
    sys.stdout.write(json.dumps(told))
