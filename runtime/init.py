"""The first process of ours inside a sandbox: starts and watches the worker, and joins a loopback port to the API.

It runs under the Function's own interpreter, `python -I -S`, so it is one file, uses the standard library only, works
on CPython 3.10 to 3.13 and imports as little as it can: every import here delays the worker's first call. It runs
with the uid of the attempt, so what it reports can be forged by the code beside it, and only about that code itself.

    argv: CONFIG_FD STATUS_FD
    CONFIG_FD   the worker's start, written by `runtime/process.py::init_config`; never on a command line, where /proc
                would show it
    STATUS_FD   lines to the node: `preparing PID` where something runs before the worker, `unprepared HOW NUMBER` when
                that failed; `started PID`, then `exited CODE` or `signalled NUMBER`
    stdin       bytes from the node: `T` passes SIGTERM on; its end means that the node is gone, and everything here
                ends too

At isolation level none (`plain.py`) there is no sandbox: this is then an ordinary process of the host, which adopts
whatever the worker leaves behind and ends it before it ends itself.

The loopback ports exist for HTTP clients, which know nothing of unix sockets: one leads to the API, which signs blob
URLs with it, and one to the egress proxy, which the variables of the worker name.
"""

from __future__ import annotations

import _socket  # the bare C module: `socket` costs 15 ms of imports that can wait until the worker is on its way
import os
import resource
import select
import signal
import sys
import time

BRIDGE_CONNECTIONS_MAX = 64
BRIDGE_CHUNK_BYTES = 65_536
END_SECONDS_MAX = 10.0
"""For what is left of a plain process; the node ends what is slower."""
OOM_SCORE = "500"


def main() -> None:
    """Start the worker, then wait for its end or the node's word; exits as the worker did (128 + n for signal n)."""
    config_fd, status_fd = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(status_fd, False)
    with open(config_fd, "rb") as config:
        fields = config.read().split(b"\0")
    directory, bridges, *limits = fields[:6]
    plain, seconds_max, preparation_count, argument_count = fields[6:10]
    first, second = 10 + int(preparation_count), 10 + int(preparation_count) + int(argument_count)
    preparation, arguments = fields[10:first], fields[first:second]
    environment = dict(field.split(b"=", 1) for field in fields[second:])
    _lower_limits(limits)
    if plain:
        _adopt()
    wakeup = _watch_signals()
    doors = []
    for bridge in bridges.decode().split():
        port, _, path = bridge.partition("=")
        doors.append((_listen(int(port)), path))
    _enter(directory)
    if preparation:
        _bridge_all(doors)
        _prepare(preparation, environment, int(seconds_max), wakeup, status_fd)
    worker = _start(arguments, environment)
    os.write(status_fd, b"started %d\n" % worker)
    if not preparation:
        _bridge_all(doors)
    how, number = _supervise(worker, wakeup, None)
    if how != "orphaned":
        os.write(status_fd, b"%s %d\n" % (how.encode(), number))
    _end_children()
    # Not sys.exit: bridge threads may be blocked, and nothing here needs a farewell.
    os._exit(number if how == "exited" else 128 + number)


_LIMITS = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, resource.RLIMIT_DATA)
"""In the order of the orders; an empty one is left as it is."""


def _lower_limits(told: list[bytes]) -> None:
    """Limits that the worker inherits and cannot raise again."""
    wanted = [(limit, int(value)) for limit, value in zip(_LIMITS, told) if value]  # noqa: B905 - of four each
    for limit, value in [*wanted, (resource.RLIMIT_CORE, 0)]:
        hard = resource.getrlimit(limit)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (ceiling, ceiling))
    # When the host runs out of memory, user code goes before the server. Raising the score needs no privilege.
    with open("/proc/self/oom_score_adj", "w") as score:
        score.write(OOM_SCORE)


def _watch_signals() -> int:
    """A descriptor that becomes readable when a child has ended or a signal has come."""
    readable, writable = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    return readable


def _listen(port: int) -> _socket.socket:
    """The listening port; made before the worker starts, so that the worker cannot come too early."""
    listener = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    listener.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        # Only what shares this network can have come first.
        print(f"init: port {port}, which is the worker's own, cannot be had: {error.strerror}", file=sys.stderr)  # noqa: T201
        _end_children()
        os._exit(1)
    listener.listen(BRIDGE_CONNECTIONS_MAX)
    return listener


def _enter(directory: bytes) -> None:
    """Make `directory` the working directory; one that cannot be entered ends the attempt."""
    try:
        os.makedirs(directory, exist_ok=True)
        os.chdir(directory)
    except OSError as error:
        print(f"init: the working directory cannot be used: {error}", file=sys.stderr)  # noqa: T201
        _end_children()
        os._exit(1)


def _prepare(
    arguments: list[bytes], environment: dict[bytes, bytes], seconds_max: int, wakeup: int, status_fd: int
) -> None:
    """Run what must succeed before the worker; its failure ends the attempt."""
    preparation = _start(arguments, environment)
    os.write(status_fd, b"preparing %d\n" % preparation)
    how, number = _supervise(preparation, wakeup, time.monotonic() + seconds_max)
    if (how, number) != ("exited", 0):
        os.write(status_fd, b"unprepared %s %d\n" % (how.encode(), number))
        _end_children()
        os._exit(1)


def _start(arguments: list[bytes], environment: dict[bytes, bytes]) -> int:
    """Start a process and return its pid; a program that is not there ends the attempt as a shell would."""
    spawn = os.posix_spawn if b"/" in arguments[0] else os.posix_spawnp
    # `posix_spawnp` looks where this process's own PATH says.
    os.environb[b"PATH"] = environment.get(b"PATH", b"")
    try:
        pid = (
            _spawn_tied(arguments, environment)
            if _PLAIN
            else spawn(
                arguments[0],
                arguments,
                environment,
                file_actions=[(os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0)],
                # A Python ignores these two; the worker starts with the default, like a process started from a shell.
                setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
            )
        )
    except OSError as error:
        print(f"init: {os.fsdecode(arguments[0])} cannot be started: {error.strerror}", file=sys.stderr)  # noqa: T201
        _end_children()
        os._exit(127)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os.kill(pid, signal.SIGTERM))
    return pid


def _supervise(worker: int, wakeup: int, until: float | None) -> tuple[str, int]:
    """Wait until the process has ended and return how: `exited` with its code, or `signalled`, or killed by us, because
    the node is gone (`orphaned`) or it took too long (`late`), with the signal's number."""
    poll = select.poll()
    poll.register(0, select.POLLIN)
    poll.register(wakeup, select.POLLIN)
    while True:
        left = None if until is None else max(0.0, until - time.monotonic()) * 1_000
        happened = poll.poll(left)
        if not happened:
            os.kill(worker, signal.SIGKILL)
            return "late", signal.SIGKILL
        for descriptor, _ in happened:
            if descriptor == wakeup:
                os.read(wakeup, 512)
                continue
            commands = os.read(0, 64)
            if not commands:
                os.kill(worker, signal.SIGKILL)
                return "orphaned", signal.SIGKILL
            if b"T" in commands:
                os.kill(worker, signal.SIGTERM)
        status = _ended(worker)
        if status is None:
            continue
        if os.WIFSIGNALED(status):
            return "signalled", os.WTERMSIG(status)
        return "exited", os.WEXITSTATUS(status)


def _ended(worker: int) -> int | None:
    """The status of the worker if it has ended; any other child was adopted, and is forgotten."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == worker and not os.WIFSTOPPED(status):  # stopped, it asked to be traced, which nobody here does
            return status
        if pid == 0:
            return None


_PLAIN: list[bool] = []
"""Not empty where no sandbox ends what is left."""


def _adopt() -> None:
    """Become the parent of every descendant that loses its own, and give up gaining rights by any program."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    be_subreaper, no_new_privileges = 36, 38  # of prctl(2)
    for option in (be_subreaper, no_new_privileges):
        if libc.prctl(option, 1, 0, 0, 0) != 0:
            print(f"init: prctl {option} failed: {os.strerror(ctypes.get_errno())}", file=sys.stderr)  # noqa: T201
            os._exit(1)
    _PLAIN.append(True)


def _tie() -> None:
    """Have the kernel end this process when its parent dies; for a child between its fork and its program."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)


def _spawn_tied(arguments: list[bytes], environment: dict[bytes, bytes]) -> int:
    """Start a process that the kernel ends when this one dies, however that comes."""
    import subprocess

    # Without `close_fds`, since a worker that waits has a pipe to read from; no descriptor of ours is inheritable.
    popen = subprocess.Popen(arguments, env=environment, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=_tie)
    _STARTED.append(popen)
    return popen.pid


_STARTED: list[object] = []
"""Kept, because what collects them waits for their ends, which is this file's to do."""


def _end_children() -> None:
    """End everything that descends from here, where no sandbox does: children of those that go become ours."""
    if not _PLAIN:
        return
    until = time.monotonic() + END_SECONDS_MAX
    while time.monotonic() < until:
        for pid in _children():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)


def _children() -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parent = int(file.read().rpartition(b") ")[2].split()[1])
            except OSError:
                continue
            if parent == os.getpid():
                found.append(int(name))
    return found


def _bridge_all(doors: list[tuple[_socket.socket, str]]) -> None:
    for listener, path in doors:
        _bridge(listener, path)


def _bridge(listener: _socket.socket, socket_path: str) -> None:
    """Join every connection to the port with one to the socket, two threads each, at most a fixed number."""
    import socket
    import threading

    free = threading.Semaphore(BRIDGE_CONNECTIONS_MAX)
    door = socket.socket(fileno=listener.detach())

    def accept() -> None:
        while True:
            free.acquire()
            client, _ = door.accept()
            upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                upstream.connect(socket_path)
                threading.Thread(target=join, args=(client, upstream), daemon=True).start()
            except (OSError, RuntimeError):
                # The socket is away, or the attempt has used up its threads: this one connection fails.
                client.close()
                upstream.close()
                free.release()

    def join(client: socket.socket, upstream: socket.socket) -> None:
        back = threading.Thread(target=pump, args=(upstream, client), daemon=True)
        back.start()
        pump(client, upstream)
        back.join()
        client.close()
        upstream.close()
        free.release()

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while chunk := source.recv(BRIDGE_CHUNK_BYTES):
                target.sendall(chunk)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            # One side broke: break the other, so that the thread of the opposite direction ends as well.
            for end in (source, target):
                try:
                    end.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    threading.Thread(target=accept, daemon=True).start()


if __name__ == "__main__":
    main()
