"""Children that cannot outlive us: how every engine and process of one machine is started.

A child leads its own process group, so a terminal's Ctrl-C reaches only the supervisor, and asks the kernel for
SIGTERM when its parent dies, so nothing is left after `kill -9`. The kernel ties that to the *thread* that forked:
start from the main thread.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_PDEATHSIG = 1
STOP_SECONDS = 10.0
OUTGOING_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
PORT_MIN = 10_000
"""Below are the ports of well-known services, which may be started later."""
PORT_TRIES_MAX = 100
"""How many ports are looked at before the kernel is asked for one: more than a host has listeners there."""

_libc = ctypes.CDLL(None)


def start_child(
    argv: Sequence[str],
    *,
    environment: Mapping[str, str],
    log: Path,
    user: int | None = None,
    death_signal: signal.Signals = signal.SIGTERM,
    inherit: Sequence[int] = (),
) -> subprocess.Popen[bytes]:
    """Start a child that appends to `log`; `user` drops root to that uid and gid first; it inherits the descriptors."""
    parent = os.getpid()

    def prepare() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, int(death_signal))
        if os.getppid() != parent:
            os._exit(1)  # the parent died before the request took hold

    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
            user=user,
            group=user,
            extra_groups=[] if user is not None else None,
            pass_fds=inherit,
            preexec_fn=prepare,
        )


def stop_child(process: subprocess.Popen[bytes], with_signal: signal.Signals = signal.SIGTERM) -> None:
    """Ask the child to end, and end it when it does not within STOP_SECONDS."""
    if process.poll() is not None:
        return
    process.send_signal(with_signal)
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now; another process may take it before the child does.

    It is none of those that the kernel gives to outgoing connections, if it leaves any: a listener that is started
    again needs its port back while its clients try to connect, and one of these would take it, or be connected to
    itself.
    """
    ports = max(first_outgoing_port() - PORT_MIN, 0)
    for _ in range(PORT_TRIES_MAX if ports else 0):
        port = PORT_MIN + secrets.randbelow(ports)
        if is_free(port):
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        chosen: int = probe.getsockname()[1]
        return chosen


def first_outgoing_port() -> int:
    """From where on the kernel gives ports to outgoing connections; 0 when it does not tell."""
    try:
        return int(OUTGOING_PORTS.read_text().split()[0])
    except OSError:
        return 0


def is_free(port: int) -> bool:
    """Whether 127.0.0.1:port can be bound now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
