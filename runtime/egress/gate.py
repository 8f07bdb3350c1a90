"""The node's hold on its egress proxy: starts it, hands attempts to it, keeps its words, starts it again.

The proxy is a process of its own (`__main__.py`), in a sandbox that has the host's network and nothing else of the
host: a user of its own when the node is root, no capability, the filter of every worker, its own processes, and of the
host's files those a resolver reads. It starts with the first attempt that may reach anything. The node keeps the
listeners, so a proxy that died is replaced under the feet of its workers: they lose their connections, not their way.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

import h11
import structlog

from runtime import sandbox
from runtime.cgroups import Cgroup, Cgroups, Limits
from runtime.egress import channel
from runtime.egress.channel import Message
from runtime.egress.limits import EgressSettings
from runtime.egress.rules import EgressRules
from runtime.process import Command, SandboxProcess
from runtime.pythons import Interpreter
from runtime.sandbox import Network, SandboxSpec, SandboxUnavailableError, Tools
from runtime.uids import UidLease, lease_uid
from runtime.unix_sockets import bind_socket

RESTART_SECONDS = 0.5
CLOSE_SECONDS_MAX = 2.0
MEMORY_BYTES_MAX = 512 << 20
PIDS_MAX = 128
FILES_MAX = 65_536
"""Two for each connection of each worker, as far as the host allows."""
LINE_CHARACTERS_MAX = 1_000
_SAID_BYTES_MAX = 65_536
_SCRATCH_BYTES = 1 << 20
_SERVER = Path("/nodus/server")
_BOOT = f"import runpy, sys; sys.path.insert(0, {str(_SERVER)!r}); runpy.run_module('runtime.egress', None, '__main__')"
_RESOLVER_FILES = ("/etc/hosts", "/etc/nsswitch.conf", "/etc/gai.conf")

log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class _Attempt:
    """One attempt with a way out. `note` adds a line to its log."""

    listener: socket.socket
    rules: EgressRules
    note: Callable[[str], None]
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    def opening(self, uid: str) -> Message:
        told = {
            "policy": self.rules.policy,
            "hosts": sorted(self.rules.hosts),
            "ports": sorted(self.rules.ports),
            "closedPorts": sorted(self.rules.closed_ports),
        }
        return Message("open", uid, told, (self.listener.fileno(),))


class EgressGate:
    """The way out of one node's workers. Made with its host, used by `supervisor.py`."""

    def __init__(self, tools: Tools, interpreter: Interpreter, cgroups: Cgroups, settings: EgressSettings) -> None:
        self.settings = settings
        self._tools = tools
        self._interpreter = interpreter
        self._cgroups = cgroups
        self._attempts: dict[str, _Attempt] = {}
        self._starting = asyncio.Lock()
        self._running: _Running | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def open(
        self, attempt: str, directory: Path, owner: int | None, rules: EgressRules, note: Callable[[str], None]
    ) -> None:
        """Listen on `directory/egress.sock`, for `owner` (a uid) only, and serve it by `rules` until `close`.

        Raises SandboxUnavailableError when the proxy cannot be started.
        """
        # The attempt may have lost a sandbox that was to be its own, and go on in another.
        await self.close(attempt)
        opened = _Attempt(listener=bind_socket(directory, sandbox.EGRESS_SOCKET.name, owner), rules=rules, note=note)
        opened.listener.listen()
        try:
            async with self._starting:
                if self._running is None:
                    self._running = await self._start()
                    self._keeper = asyncio.create_task(self._keep())
            self._attempts[attempt] = opened
            self._tell(opened.opening(attempt))
        except BaseException:
            self._attempts.pop(attempt, None)
            opened.listener.close()
            raise

    async def close(self, attempt: str) -> None:
        """Cut the attempt off and note what it did in all."""
        closed = self._attempts.get(attempt)
        if closed is None:
            return
        self._tell(Message("close", attempt, {}))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS_MAX):
                await closed.closed.wait()
        del self._attempts[attempt]
        closed.listener.close()

    async def stop(self) -> None:
        """End the proxy; no attempt may be left."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        async with self._starting:
            if self._running is not None:
                await self._running.end()
                self._running = None

    @property
    def pid(self) -> int | None:
        """The pid of the proxy's sandbox on the host, while there is one."""
        return self._running.process.pid if self._running is not None else None

    async def _keep(self) -> None:
        """Replace the proxy whenever it ends."""
        while True:
            if self._running is not None:
                await self._running.over()
                log.warning("the egress proxy ended and is started again", attempts=len(self._attempts))
                # Connections wait in the listeners meanwhile; a proxy that dies at once must not take a processor.
                await asyncio.sleep(RESTART_SECONDS)
            async with self._starting:
                if self._running is not None:
                    await self._running.end()
                    self._running = None
                try:
                    self._running = await self._start()
                except SandboxUnavailableError as error:
                    log.error("the egress proxy cannot be started", problem=str(error))
            if self._running is None:
                await asyncio.sleep(RESTART_SECONDS)
                continue
            for uid, attempt in self._attempts.items():
                self._tell(attempt.opening(uid))

    async def _start(self) -> _Running:
        lease = lease_uid() if os.geteuid() == 0 else None
        cgroup = self._cgroups.create("egress-proxy", Limits(memory_bytes_max=MEMORY_BYTES_MAX, pids_max=PIDS_MAX))
        ours, proxys = channel.pair()
        try:
            process = await SandboxProcess.start(
                self._sandbox(lease), self._command(proxys.fileno()), self._tools, cgroup
            )
        except BaseException:
            ours.close()
            cgroup.remove()
            if lease is not None:
                lease.release()
            raise
        finally:
            proxys.close()
        return _Running(process, ours, cgroup, lease, self._hear)

    def _sandbox(self, lease: UidLease | None) -> SandboxSpec:
        prefix = self._interpreter.prefix
        read_only = [] if prefix.is_relative_to("/usr") else [(prefix, prefix)]
        read_only.append((Path(__file__).parents[1], _SERVER / "runtime"))
        read_only.append((Path(h11.__file__).parent, _SERVER / "h11"))
        resolver = {path: Path(path) for path in _RESOLVER_FILES} | {"/etc/resolv.conf": self.settings.resolv_conf}
        read_only += [(host.resolve(), Path(inside)) for inside, host in resolver.items() if host.exists()]
        return SandboxSpec(
            uid=lease.uid if lease is not None else None,
            read_only=read_only,
            scratch_bytes_max=_SCRATCH_BYTES,
            shared_memory_bytes_max=_SCRATCH_BYTES,
            hostname="nodus-egress",
            network=Network.INHERITED,
        )

    def _command(self, descriptor: int) -> Command:
        told = {
            "opened": list(self.settings.opened),
            "closedEndpoints": list(self.settings.closed_endpoints),
            "limits": asdict(self.settings.limits),
        }
        python = self._interpreter.executable
        return Command(
            python=python,
            arguments=[str(python), "-I", "-S", "-c", _BOOT, str(descriptor), json.dumps(told)],
            # Without it, libc would add the host's own domains to names, and find others than the ones that were meant.
            environment={"PATH": "/usr/bin:/bin", "LOCALDOMAIN": ""},
            directory=str(sandbox.WORKSPACE),
            files_max=FILES_MAX,
            bridges={},
            inherited=[descriptor],
        )

    def _tell(self, message: Message) -> None:
        """Send to the proxy; one that does not take it is ended, and learns everything anew."""
        if self._running is not None:
            try:
                channel.send(self._running.channel, message)
            except OSError:
                self._running.process.kill()

    def _hear(self, message: Message) -> None:
        attempt, line = self._attempts.get(message.attempt), message.content.get("line")
        if attempt is None:
            return
        if isinstance(line, str):
            attempt.note(line[:LINE_CHARACTERS_MAX])
        if message.word == "closed":
            attempt.closed.set()


class _Running:
    """One proxy process and what belongs to it."""

    def __init__(
        self,
        process: SandboxProcess,
        end: socket.socket,
        cgroup: Cgroup,
        lease: UidLease | None,
        hear: Callable[[Message], None],
    ) -> None:
        self.process = process
        self.channel = end
        self._cgroup = cgroup
        self._lease = lease
        self._hear = hear
        self._waiting = asyncio.create_task(process.wait())
        loop = asyncio.get_running_loop()
        loop.add_reader(end, self._receive)
        for descriptor in (process.stdout, process.stderr):
            loop.add_reader(descriptor, self._read_output, descriptor)

    async def over(self) -> None:
        """Return when the process is gone."""
        await asyncio.shield(self._waiting)

    async def end(self) -> None:
        """Kill it if need be, and give everything back."""
        if not self._waiting.done():
            self.process.kill()
        await self._waiting
        loop = asyncio.get_running_loop()
        for descriptor in (self.process.stdout, self.process.stderr):
            self._read_output(descriptor)
            loop.remove_reader(descriptor)
        loop.remove_reader(self.channel)
        self.process.close_output()
        self.channel.close()
        self._cgroup.remove()
        if self._lease is not None:
            self._lease.release()

    def _receive(self) -> None:
        """Take what the proxy says; one that makes no sense has been taken over, and ends."""
        try:
            message = channel.receive(self.channel)
        except BlockingIOError:
            return
        except (ValueError, TypeError, OSError):
            self.process.kill()
            message = None
        if message is None:
            asyncio.get_running_loop().remove_reader(self.channel)
            return
        for descriptor in message.descriptors:
            os.close(descriptor)
        self._hear(message)

    def _read_output(self, descriptor: int) -> None:
        """What the process prints are its own troubles; they go to the node's log, and never fill a pipe."""
        try:
            said = os.read(descriptor, _SAID_BYTES_MAX)
        except BlockingIOError:
            return
        if said:
            log.warning("the egress proxy says", text=said.decode(errors="replace")[-LINE_CHARACTERS_MAX:])
        else:
            asyncio.get_running_loop().remove_reader(descriptor)
