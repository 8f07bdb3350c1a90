"""The node's side of an attempt: run one worker and say how it ended.

`RunWorkerActivities` joins the words of `run_worker_contract.py` to `runtime/supervisor.py`. The activity holds no
more than a grip on the worker: it beats, passes a cancellation on as a drain, and returns what the supervisor
reports. A second activity for an attempt that already runs here takes hold of the same worker instead of starting
another.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from activities.node_api import ApiRefusedError, ApiUnavailableError, Lease, LeasedImage, NodeApi
from activities.run_worker_contract import (
    DRAINED,
    EXITED,
    KILL_WORKER,
    KILLED,
    NODE_RESTARTED,
    NOT_STARTED,
    OUT_OF_MEMORY,
    PLATFORM_AWAY,
    RUN_WORKER,
    START_TIMED_OUT,
    KillWorkerInput,
    RunWorkerInput,
    WorkerExit,
)
from controlplane.settings import Settings
from runtime.host import Host
from runtime.logs import Chunk
from runtime.plans import WorkerPlan
from runtime.supervisor import Phase, WorkerReport, WorkerSupervisor
from runtime.variables import WorkerIdentity

HEARTBEAT_SECONDS = 5.0
LEASE_SECONDS_MAX = 60.0
LEASE_RETRY_SECONDS = 0.5
TOKEN_FILE = "task-token"  # noqa: S105 - the name of a file

log = structlog.get_logger(__name__)


@dataclass(kw_only=True)
class _Running:
    """One worker of this node, from the moment its attempt was taken."""

    given: RunWorkerInput
    phase: str = "Leasing"
    supervisor: WorkerSupervisor | None = None
    stop_seconds_max: float | None = None
    stop_asked: bool = False
    kill_reason: str | None = None
    guarantees: dict[str, Any] = field(default_factory=dict)
    reports: set[asyncio.Task[None]] = field(default_factory=set)
    telling: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Phases are told one after the other: two under way could arrive the other way round, and the earlier stay."""

    def drain(self, seconds_max: float | None) -> None:
        """Let the worker finish its calls, for at most `seconds_max` if given, also when it has yet to start."""
        self.stop_asked = True
        self.stop_seconds_max = seconds_max
        if self.supervisor is not None:
            self.supervisor.drain(seconds_max)

    def kill(self, reason: str) -> None:
        """End the worker now, also when it has yet to start."""
        self.stop_asked = True
        self.kill_reason = reason
        if self.supervisor is not None:
            self.supervisor.kill(reason)


class RunWorkerActivities:
    """The activities of one node."""

    def __init__(self, host: Host, api: NodeApi, settings: Settings) -> None:
        self._host = host
        self._api = api
        self._settings = settings
        self._running: dict[str, tuple[_Running, asyncio.Task[WorkerExit]]] = {}

    @activity.defn(name=RUN_WORKER)
    async def run_worker(self, given: RunWorkerInput) -> WorkerExit:
        """Run the worker of one attempt until nothing of it is left; see the contract."""
        running, work = self._take(given)
        self._keep_token(given.attempt_uid)
        while not work.done():
            try:
                await asyncio.wait((work,), timeout=HEARTBEAT_SECONDS)
                activity.heartbeat(running.phase)
            except asyncio.CancelledError:
                running.drain(self._patience())
        return work.result()

    @activity.defn(name=KILL_WORKER)
    async def kill_worker(self, given: KillWorkerInput) -> bool:
        """Kill the attempt's worker now; false when it does not run here."""
        found = self._running.get(given.attempt_uid)
        if found is None:
            return False
        found[0].kill("the control process asked for it")
        return True

    def drain_all(self) -> None:
        """The node stops: let every worker finish what it can in the time a stopping node has."""
        for running, _ in list(self._running.values()):
            running.drain(self._settings.node_stop_seconds)

    def _patience(self) -> float | None:
        """How long a cancelled activity lets its worker's calls run; None as long as they take."""
        details = activity.cancellation_details()
        return self._settings.node_stop_seconds if details is not None and details.worker_shutdown else None

    def _take(self, given: RunWorkerInput) -> tuple[_Running, asyncio.Task[WorkerExit]]:
        found = self._running.get(given.attempt_uid)
        if found is None:
            running = _Running(given=given)
            # A task of its own: the worker's end must be seen through whatever becomes of the activity.
            work = asyncio.create_task(self._run(running))
            found = self._running[given.attempt_uid] = (running, work)
            work.add_done_callback(lambda _: self._running.pop(given.attempt_uid))
        return found

    def _keep_token(self, attempt_uid: str) -> None:
        """Remember how to end this activity, in case this process cannot."""
        path = self._host.attempt_directory(attempt_uid) / TOKEN_FILE
        # Without a sandbox, workers may pass through the folder.
        path.touch(mode=0o600)
        path.write_bytes(activity.info().task_token)

    async def _run(self, running: _Running) -> WorkerExit:
        uid = running.given.attempt_uid
        structlog.contextvars.bind_contextvars(attempt=uid)
        try:
            lease = await self._lease(running)
            if isinstance(lease, WorkerExit):
                return lease
            report = await self._supervise(running, lease)
            if report.image_missing is not None and lease.image is not None:
                return await self._without_image(lease.image, report.image_missing)
        finally:
            for task in running.reports:
                task.cancel()
            self._host.remove_directory(uid)
        result = worker_exit(report)
        log.info("worker ended", outcome=result.outcome, message=result.message)
        return result

    async def _lease(self, running: _Running) -> Lease | WorkerExit:
        """The attempt's lease, or the end of an attempt that gets none; only a refusal is held against its Function."""
        given = running.given
        problem = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LEASE_SECONDS_MAX):
                while not running.stop_asked:
                    try:
                        return await self._api.lease(given.attempt_uid, given.epoch)
                    except ApiRefusedError as error:
                        return WorkerExit(outcome=NOT_STARTED, message=f"no lease: {error}")
                    except ApiUnavailableError as error:
                        problem = str(error)
                    await asyncio.sleep(LEASE_RETRY_SECONDS)
                problem = "the worker was asked to leave before it had started"
                return WorkerExit(outcome=PLATFORM_AWAY, message=problem)
        return WorkerExit(outcome=PLATFORM_AWAY, message=f"no lease within {LEASE_SECONDS_MAX:g} s: {problem}")

    async def _without_image(self, image: LeasedImage, problem: str) -> WorkerExit:
        """Have an image built again that this node does not have; the Function waits for it and is not to blame."""
        try:
            await self._api.report_missing_image(image.uid, image.digest, problem)
        except (ApiUnavailableError, ApiRefusedError) as error:
            # The next worker tells it again.
            log.warning("a missing image was not told", image=image.uid, problem=str(error))
        return WorkerExit(outcome=PLATFORM_AWAY, message=f"{problem}; it is built again")

    async def _supervise(self, running: _Running, lease: Lease) -> WorkerReport:
        uid = running.given.attempt_uid
        running.guarantees = self._host.guarantees.to_json(
            proxied=lease.egress.proxied, disk_bytes=max(self._host.limits.scratch_bytes_max, lease.disk_bytes or 0)
        )
        identity = WorkerIdentity(
            attempt=uid, project=lease.project, function=lease.function, concurrency=lease.concurrency
        )
        plan = WorkerPlan(
            identity=identity,
            python=lease.python,
            token=lease.token,
            variables=lease.variables,
            directory=lease.directory,
            image=lease.image.key if lease.image is not None else None,
            memory_bytes_max=memory_bytes_max(lease, self._settings),
            memory_bytes_least=lease.memory_bytes or 0,
            disk_bytes_least=lease.disk_bytes,
            cpus_least=lease.cpus or None,
            cpus_max=(lease.cpus or 0) * self._settings.worker_cpu_factor or None,
            egress=replace(lease.egress, hosts=[*lease.egress.hosts, *await self._host.indexes.hosts(lease.presets)]),
            start=lease.start,
            sidecars=lease.sidecars,
            gpus=lease.gpus,
        )

        async def sink(chunk: Chunk) -> None:
            await self._api.store_log(uid, chunk)

        supervisor = WorkerSupervisor(self._host, plan, sink, lambda phase: self._tell_phase(running, phase))
        running.supervisor = supervisor
        if running.kill_reason is not None:
            supervisor.kill(running.kill_reason)
        elif running.stop_asked:
            supervisor.drain(running.stop_seconds_max)
        return await supervisor.run(self._host.attempt_directory(uid))

    def _tell_phase(self, running: _Running, phase: Phase) -> None:
        """Show the phase in heartbeats and to the API; a phase that cannot be told is overtaken by the next."""
        running.phase = phase.value
        task = asyncio.create_task(self._report_phase(running, phase))
        running.reports.add(task)
        task.add_done_callback(running.reports.discard)

    async def _report_phase(self, running: _Running, phase: Phase) -> None:
        given = running.given
        try:
            async with running.telling:
                await self._api.report_phase(
                    given.attempt_uid,
                    given.epoch,
                    phase.value,
                    running.guarantees,
                    # Before that it may be either yet.
                    warm_reuse=running.supervisor.warm_reuse if running.supervisor and phase is Phase.READY else None,
                )
        except (ApiUnavailableError, ApiRefusedError) as error:
            log.info("a phase was not told", attempt=given.attempt_uid, phase=phase.value, problem=str(error))


def memory_bytes_max(lease: Lease, settings: Settings) -> int | None:
    """The smaller of what the Function's floor allows and the host's own limit of a worker; None without either.

    What it writes is in its memory too, so a disk that it asks for is added to the floor's part.
    """
    by_spec = int((lease.memory_bytes or 0) * settings.worker_memory_factor)
    by_spec += (lease.disk_bytes or 0) if by_spec else 0
    return min((limit for limit in (by_spec, settings.worker_memory_bytes_max) if limit), default=None)


def worker_exit(report: WorkerReport) -> WorkerExit:
    """A supervisor's report in the words of the contract."""
    ending = report.ending
    if ending is not None and ending.unprepared is not None and not report.asked:
        return WorkerExit(
            outcome=NOT_STARTED, message=f"its init command {ending.unprepared}", ran_seconds=ending.ran_seconds
        )
    if report.sidecar_ended is not None and not report.asked:
        # No code or signal: those of the worker, which the node killed, say nothing.
        return WorkerExit(
            outcome=EXITED if report.ready else NOT_STARTED,
            message=f"the worker was ended because {report.sidecar_ended}",
            ran_seconds=ending.ran_seconds if ending is not None else 0.0,
        )
    if ending is None:
        # Others use what it needs: that is nothing to hold against its Function, which tries again.
        failed = PLATFORM_AWAY if report.busy else NOT_STARTED
        return WorkerExit(outcome=DRAINED if report.asked else failed, message=report.problem or "")
    if report.problem is not None:
        # Nobody asked it to go and it never claimed: only the limit of starts ends such a one.
        late = PLATFORM_AWAY if report.api_away else START_TIMED_OUT
        outcome, message = KILLED if report.asked or report.ready else late, report.problem
    elif report.out_of_memory and ending.signal == signal.SIGKILL:
        # By another signal it ended of something else, whichever of its children the kernel had killed before.
        outcome, message = OUT_OF_MEMORY, "the worker used more memory than it may"
    elif report.asked:
        outcome, message = DRAINED, ""
    elif report.api_away and ending.exit_code != 0:
        outcome, message = PLATFORM_AWAY, "the worker gave up: the API did not answer it"
    else:
        outcome = EXITED
        message = "" if report.ready else "the worker ended before its first claim; its log says why"
    return WorkerExit(
        outcome=outcome,
        exit_code=ending.exit_code,
        signal=ending.signal,
        message=message,
        ran_seconds=ending.ran_seconds,
    )


async def report_lost_workers(client: Client, host: Host) -> int:
    """Complete the activities a dead node process was running, as its contract promises; returns how many there were.

    Call it before the first activity is taken. Raises RPCError when the engine cannot be told; the rest waits on disk.
    """
    lost = host.leftovers()
    for directory in lost:
        task_token = _kept_token(directory)
        if task_token is not None:
            await _complete_lost(client, task_token)
        host.remove_directory(directory.name)
    return len(lost)


def _kept_token(directory: Path) -> bytes | None:
    try:
        return (directory / TOKEN_FILE).read_bytes()
    except FileNotFoundError:
        return None


async def _complete_lost(client: Client, task_token: bytes) -> None:
    handle = client.get_async_activity_handle(task_token=task_token)
    try:
        await handle.complete(
            WorkerExit(outcome=NODE_RESTARTED, message="the node process died and took the worker along")
        )
    except RPCError as error:
        # The engine has given the activity up already, by timeout or with its whole database.
        if error.status not in (RPCStatusCode.NOT_FOUND, RPCStatusCode.INVALID_ARGUMENT):
            raise
