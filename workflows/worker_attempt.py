"""One worker: run it on its node, drain it when asked, settle what became of it.

The transaction that created the attempt has chosen its node (`controlplane/capacity/attempts.py`), so the workflow
begins with the long activity on that node's queue and nothing delays a cold start. The end of the process ends the
activity at once; a node that vanishes is noticed by its missing heartbeats. Whatever happens, `settle_attempt` runs
last: it closes the attempt, revokes its token and gives its calls back.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from temporalio import workflow
from temporalio.common import RetryPolicy
from temporalio.exceptions import ActivityError
from temporalio.workflow import ActivityCancellationType, ActivityHandle

from activities.run_worker_contract import (
    KILL_WORKER,
    RUN_WORKER,
    SETTLE_ATTEMPT,
    DrainRequest,
    KillWorkerInput,
    RunWorkerInput,
    SettleAttemptInput,
    WorkerAttemptInput,
    WorkerExit,
    node_task_queue,
)
from workflows.decisions import exit_of_silent_worker
from workflows.journal import Journal

# A worker that was started twice under one epoch could hold one call twice; a replacement is a new attempt.
ONCE = RetryPolicy(maximum_attempts=1)
FEW_TIMES = RetryPolicy(maximum_attempts=3)
UNTIL_WRITTEN = RetryPolicy(initial_interval=timedelta(milliseconds=500), maximum_interval=timedelta(seconds=30))

NODE_TAKES_MAX = timedelta(seconds=30)
"""A node that runs takes an attempt within milliseconds; after this there is none."""
NODE_SILENT_MAX = timedelta(seconds=30)
"""Six missed heartbeats. Less would declare workers lost whenever the host is busy."""
RUN_MAX = timedelta(days=365)
KILL_MAX = timedelta(seconds=20)
WRITE_MAX = timedelta(seconds=30)
SETTLE_MAX = timedelta(days=7)


@workflow.defn
class WorkerAttemptWorkflow:
    """The life of one worker; its id is `attempt/<uid>`. Returns the outcome word of its exit."""

    def __init__(self) -> None:
        self._journal = Journal("waiting for its node")
        self._drain: DrainRequest | None = None
        self._kill: DrainRequest | None = None

    @workflow.signal
    def drain(self, request: DrainRequest) -> None:
        """Stop giving the worker time: SIGTERM now, or SIGKILL if `kill` is set. The first reason of each stays."""
        self._drain = self._drain or request
        if request.kill:
            self._kill = self._kill or request

    @workflow.run
    async def run(self, attempt: WorkerAttemptInput) -> str:
        """Run the worker to its end and settle it."""
        self._journal.enter(f"running on {attempt.node}")
        worker = workflow.start_activity(
            RUN_WORKER,
            RunWorkerInput(attempt_uid=attempt.attempt_uid, epoch=attempt.epoch),
            result_type=WorkerExit,
            task_queue=node_task_queue(attempt.node),
            schedule_to_start_timeout=NODE_TAKES_MAX,
            start_to_close_timeout=RUN_MAX,
            schedule_to_close_timeout=RUN_MAX,
            heartbeat_timeout=NODE_SILENT_MAX,
            retry_policy=ONCE,
            cancellation_type=ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        stopping = asyncio.create_task(self._stop(worker, attempt))
        try:
            exit: WorkerExit = await asyncio.shield(worker)
        except ActivityError as error:
            exit = exit_of_silent_worker(error)
            self._journal.decide(
                f"the worker told no end ({type(error.cause).__name__}): {exit.outcome}, {exit.message}"
            )
        finally:
            stopping.cancel()
        self._journal.enter(f"settling: {exit.outcome}")
        await workflow.execute_activity(
            SETTLE_ATTEMPT,
            SettleAttemptInput(
                attempt_uid=attempt.attempt_uid,
                org=attempt.org,
                project=attempt.project,
                epoch=attempt.epoch,
                exit=exit,
            ),
            start_to_close_timeout=WRITE_MAX,
            schedule_to_close_timeout=SETTLE_MAX,
            retry_policy=UNTIL_WRITTEN,
        )
        self._journal.enter(f"ended: {exit.outcome}")
        return exit.outcome

    async def _stop(self, worker: ActivityHandle[WorkerExit], attempt: WorkerAttemptInput) -> None:
        """Pass on the wish to drain, and later the one to kill, while the worker runs."""
        await workflow.wait_condition(lambda: self._drain is not None)
        assert self._drain is not None
        self._journal.decide(f"let it go: {self._drain.reason}")
        self._journal.enter(f"draining: {self._drain.reason}")
        worker.cancel()
        await workflow.wait_condition(lambda: self._kill is not None)
        assert self._kill is not None
        self._journal.decide(f"kill it: {self._kill.reason}")
        self._journal.enter(f"killing: {self._kill.reason}")
        try:
            await workflow.execute_activity(
                KILL_WORKER,
                KillWorkerInput(attempt_uid=attempt.attempt_uid),
                result_type=bool,
                task_queue=node_task_queue(attempt.node),
                start_to_close_timeout=KILL_MAX,
                schedule_to_close_timeout=KILL_MAX,
                retry_policy=FEW_TIMES,
            )
        except ActivityError:
            # A node that cannot be reached is about to miss its heartbeats, which ends the attempt as well.
            self._journal.enter("killing failed; waiting for the node")
