"""`python -m workers up`: the whole system on one machine, in the foreground.

Order: PostgreSQL and Temporal, the schema and the first key, then the API, the node and the control process together.
When the API says it is ready and the others poll their queues, the files for clients are written; `client.env` is there
no longer than the system is. SIGTERM or SIGINT stops everything in the opposite order; after a `kill -9` the same
command goes on where it was, because all state is in the folder. The parts are `state.py` (the folder),
`supervision.py` (keeping processes alive) and `health.py`.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from activities.run_call_contract import CONTROL_TASK_QUEUE
from activities.run_worker_contract import node_task_queue
from controlplane.clock import SystemClock
from controlplane.settings import Settings
from workers.addresses import HOST, Addresses, passed_over
from workers.client_files import Access, write_client_env, write_kubeconfig
from workers.configuration import PREFIX, read_operator_key, read_settings
from workers.engines.postgres import EmbeddedPostgres
from workers.engines.temporal import EmbeddedTemporal
from workers.health import api_is_ready, polls
from workers.initialise import is_initialised
from workers.prerequisites import build_environment, check_engines, check_host
from workers.progress import Progress
from workers.state import StartError, StateFolder, read_private
from workers.supervision import GaveUpError, ServerProcess, Supervisor, Unit, run_to_end
from workers.tls import ensure_tls, given_tls, write_trusted

if TYPE_CHECKING:
    from temporalio.client import Client

PASSED_ON = (PREFIX, "NODUS_PYTHON_")
"""Our settings and the places of interpreters reach the processes; what is meant for clients does not."""
READY_SECONDS_MAX = 120.0
STOP_SECONDS = 15.0
EXPECTED = (RuntimeError, StartError, GaveUpError)
"""Failures whose message tells all an operator needs."""


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What the command line said."""

    data_dir: Path
    port: int | None = None
    example: Path | None = None
    tls: bool = False
    """Tell the SDK and CLI the https address; kubectl is told no other."""


def run_up(options: UpOptions) -> int:
    """Run until a signal; the exit code: 0 after a clean stop, 1 when it could not start or keep going."""
    progress = Progress()
    folder = StateFolder(options.data_dir)
    try:
        folder.create()
        with folder.locked() as lock:
            return _run_locked(folder, options, progress, lock)
    except StartError as error:
        progress.warn(str(error))
        return 1


def _run_locked(folder: StateFolder, options: UpOptions, progress: Progress, lock: int) -> int:
    given = read_settings()
    check_engines()
    check_host(os.environ, unsandboxed=given.unsandboxed, isolation_min=given.isolation_min)
    if given.unsandboxed:
        progress.warn(
            "workers run WITHOUT A SANDBOX and see the files and the network of this host: run only your own code"
        )
    return asyncio.run(Machine(folder, options, progress, lock).run())


class Machine:
    """The processes of one machine and how they are wired to each other."""

    def __init__(self, folder: StateFolder, options: UpOptions, progress: Progress, lock: int) -> None:
        self._folder = folder
        self._options = options
        self._progress = progress
        self._lock = lock
        self._supervisor = Supervisor(progress.warn, folder.logs)
        self._ports = folder.ports(options.port)
        self._secrets = folder.secrets()
        given = read_settings()
        self._tls = given_tls(given) or ensure_tls(folder.tls, SystemClock())
        self._addresses = Addresses(
            http_port=self._ports["http"], https_port=self._ports["https"], given=given.public_url, tls=options.tls
        )
        self._postgres = EmbeddedPostgres(
            folder.postgres,
            port=self._ports["postgres"],
            password=self._secrets["database_password"],
            log=folder.logs / "postgres.log",
            inherit=(lock,),
        )
        self._temporal = EmbeddedTemporal(
            folder.temporal, port=self._ports["temporal"], log=folder.logs / "temporal.log"
        )
        self._client: Client | None = None

    async def run(self) -> int:
        """Start, serve until a signal or a failure, stop; the exit code."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()

        def asked() -> None:
            if stop.is_set():
                self._supervisor.kill()
                os._exit(1)  # asked twice: the state survives this, patience may not
            stop.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, asked)
        serving = asyncio.create_task(self._serve())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        serving.cancel()
        try:
            failure = await _failure(serving)
            if failure is not None:
                self._progress.warn(failure)
        finally:
            await self._stop()
        return 0 if failure is None else 1

    async def _serve(self) -> None:
        await self._start()
        access = self._publish()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._supervisor.run())
            if self._options.example is not None:
                from workers.demo import run_example  # its client library would slow every other start

                await run_example(self._options.example, access, self._progress)
            self._progress.say("Serving. Ctrl-C stops everything; the state stays in " + str(self._folder.path))

    async def _start(self) -> None:
        unused = passed_over(os.environ, self._wiring)
        if unused:
            self._progress.warn(
                f"{', '.join(unused)} given, but `up` decides that itself: unset it, or run the processes one by one "
                "(README, On more than one machine)"
            )
        step = self._progress.step
        async with asyncio.TaskGroup() as beside:
            environment = beside.create_task(self._build_environment())
            tables = beside.create_task(self._make_tables())
            with step("PostgreSQL and Temporal"):
                await self._start_together({"postgres": self._postgres, "temporal": self._temporal})
            with step("tables and the admin key"):
                await tables
            with step(f"API on {self._addresses.http}, node and control"):
                # All at once: they wait for each other, and most of a start is loading libraries.
                await self._start_together({name: self._process(name) for name in ("api", "node", "control")})
            if not self._settings.unsandboxed:
                with step("environment for user code"):
                    await asyncio.wait([environment])
            gap = await environment
        if gap is not None:
            self._progress.warn(gap)

    async def _make_tables(self) -> None:
        """Most starts find the tables and the key; only another start pays for a process that makes them."""
        if read_operator_key() is None and await is_initialised(self._settings, self._folder.admin_key):
            return
        await run_to_end(
            [sys.executable, "-m", "workers", "init", "--key-file", str(self._folder.admin_key)],
            environment=self._environment,
            log=self._folder.logs / "init.log",
            inherit=(self._lock,),
        )

    async def _start_together(self, units: Mapping[str, Unit]) -> None:
        async with asyncio.TaskGroup() as group:
            for name, unit in units.items():
                group.create_task(self._supervisor.start(name, unit))

    async def _stop(self) -> None:
        self._folder.client_env.unlink(missing_ok=True)
        with self._progress.step("stopped"):
            # Workers report what they finished while the API is still there.
            await self._supervisor.stop(["node", "control"])
            await self._supervisor.stop(["api"])
            await self._supervisor.stop(["postgres", "temporal"])

    def _process(self, name: str) -> ServerProcess:
        ready = {"api": self._api_is_ready, "control": self._control_is_ready, "node": self._node_is_ready}[name]
        return ServerProcess(
            name,
            environment={**self._environment, **self._metrics(name)},
            log=self._folder.logs / f"{name}.log",
            ready=ready,
            ready_seconds_max=READY_SECONDS_MAX,
            stop_seconds=STOP_SECONDS + (self._settings.node_stop_seconds if name == "node" else 0),
            inherit=(self._lock,),
        )

    def _metrics(self, name: str) -> Mapping[str, str]:
        """Two processes of one machine cannot share the operator's port."""
        port = self._settings.metrics_port
        return {f"{PREFIX}METRICS_PORT": str(port + 1)} if port and name == "control" else {}

    async def _api_is_ready(self, pid: int) -> bool:
        return await api_is_ready(self._ports["http"])

    async def _build_environment(self) -> str | None:
        """Where it is used; a node without a sandbox may have its environments elsewhere, and builds them itself."""
        if self._settings.unsandboxed:
            return None
        return await build_environment(self._folder.environments, os.environ)

    async def _control_is_ready(self, pid: int) -> bool:
        return await polls(await self._engine(), CONTROL_TASK_QUEUE, f"{pid}@")

    async def _node_is_ready(self, pid: int) -> bool:
        return await polls(await self._engine(), node_task_queue(self._settings.node_name), f"{pid}@")

    async def _engine(self) -> Client:
        if self._client is None:
            from temporalio.client import Client

            self._client = await Client.connect(self._temporal.address)
        return self._client

    @cached_property
    def _settings(self) -> Settings:
        return read_settings(**self._wiring)

    @cached_property
    def _wiring(self) -> dict[str, str]:
        """The settings that this machine decides; all others are the operator's."""
        return {
            "database_url": self._postgres.local_url,
            "temporal_address": self._temporal.address,
            "temporal_namespace": self._temporal.namespace,
            "data_dir": str(self._folder.path),
            "secret_key": self._secrets["secret_key"],
            "node_token": self._secrets["node_token"],
            "http_host": HOST,
            "http_port": str(self._ports["http"]),
            "https_port": str(self._ports["https"]),
            "tls_certificate": str(self._tls.certificate),
            "tls_key": str(self._tls.key),
            "public_url": self._addresses.links,
            "api_url": self._addresses.http,
        }

    @cached_property
    def _environment(self) -> Mapping[str, str]:
        """What the processes get: the operator's environment and settings, without what is meant for clients."""
        passed = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("NODUS_") or name.startswith(PASSED_ON)
        }
        ours = {f"{PREFIX}{name.upper()}": value for name, value in self._wiring.items()}
        return {**passed, **ours, "PYTHONUNBUFFERED": "1"}

    def _trusted(self) -> Path:
        """The certificates with which clients recognise us and the rest of the world."""
        path = self._folder.tls / "trusted.crt"
        path.parent.mkdir(exist_ok=True, mode=0o700)
        write_trusted(path, self._tls.authority)
        return path.resolve()

    def _publish(self) -> Access:
        """Write the files for clients and tell how to use them."""
        access = Access(
            api_url=self._addresses.clients,
            https_url=self._addresses.https,
            api_key=read_private(self._folder.admin_key) or "",
            trusted=self._trusted() if self._addresses.needs_trust else None,
        )
        write_kubeconfig(self._folder.kubeconfig, access, self._tls.authority)
        write_client_env(self._folder.client_env, access)
        self._progress.say(
            "\nReady. The public SDK and CLI use it with\n\n"
            + "".join(f"  export {name}={value}\n" for name, value in access.variables.items())
            + f"\n(or: set -a; . {self._folder.client_env}; set +a)\n"
            f"and kubectl with\n\n"
            f"  export KUBECONFIG={self._folder.kubeconfig}\n"
        )
        return access


async def _failure(serving: asyncio.Task[None]) -> str | None:
    """Why serving ended, or None when it was only asked to; whatever nobody expected is raised."""
    try:
        await serving
    except asyncio.CancelledError:
        return None
    except EXPECTED as error:
        return str(error)
    except ExceptionGroup as group:
        expected, unexpected = group.split(EXPECTED)
        if unexpected is not None or expected is None:
            raise
        return "; ".join(dict.fromkeys(str(error) for error in _leaves(expected)))
    return None


def _leaves(group: ExceptionGroup[Exception]) -> list[Exception]:
    """The errors of a group, whatever groups are inside it."""
    found: list[Exception] = []
    for error in group.exceptions:
        found += _leaves(error) if isinstance(error, ExceptionGroup) else [error]
    return found
