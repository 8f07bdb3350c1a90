"""What the engine and a node say to each other about one worker.

The workflow of an attempt (`workflows/worker_attempt.py`) schedules the activities named here on the node's own task
queue; the node (`activities/run_worker.py`, hosted by `workers/node.py`) implements them. This module holds only the
words, so workflow code can import it without meeting a sandbox, a socket or a process.

Nothing secret and nothing a user wrote travels here, because operators can read the history: the node fetches the
environment, Secrets and token of the attempt from the API, and a worker's traceback goes to its log.
"""

from __future__ import annotations

from dataclasses import dataclass

RUN_WORKER = "run_worker"
"""Activity: run one worker until its process is gone. Input `RunWorkerInput`, result `WorkerExit`.

It heartbeats every few seconds. A cancellation means drain: no new calls, SIGTERM, let running calls finish, SIGKILL
after the drain grace; the activity then still *returns* its `WorkerExit`. A node that shuts down drains likewise. The
activity raises only when it cannot tell what became of the process; every ending it has seen is a result.
"""

KILL_WORKER = "kill_worker"
"""Activity: SIGKILL the attempt's process tree now. Input `KillWorkerInput`, result whether it was running here.

`run_worker` of the same attempt then returns with outcome `KILLED`. Used when a body goes on after a cancel or a
deadline.
"""


def node_task_queue(node: str) -> str:
    """The task queue that only the node process of that host polls."""
    return f"node/{node}"


@dataclass(frozen=True, kw_only=True)
class RunWorkerInput:
    """Which attempt to run; everything else is fetched with `POST /node/v1/attempts/{attempt_uid}/lease`."""

    attempt_uid: str
    epoch: int


@dataclass(frozen=True, kw_only=True)
class KillWorkerInput:
    """Which attempt's process to kill."""

    attempt_uid: str


EXITED = "Exited"
"""The process ended by itself, whatever its code."""
DRAINED = "Drained"
"""The process ended after it was asked to."""
KILLED = "Killed"
"""The node ended it with SIGKILL: the drain grace passed, or `kill_worker` asked for it."""
START_TIMED_OUT = "StartTimedOut"
"""The node ended it with SIGKILL because it had not claimed in the time that a start may take."""
OUT_OF_MEMORY = "OutOfMemory"
"""The kernel ended it for exceeding the Function's memory."""
NOT_STARTED = "NotStarted"
"""No process came to be, for a reason that will meet the next one too: the API refused the lease, or the environment or
the sandbox failed; `message` says which."""
PLATFORM_AWAY = "PlatformAway"
"""Nothing is wrong with the Function: no node took the attempt, the API did not answer its node or its worker, or it
was told to leave before its node had a lease. Said by the node, and by the workflow where no node says anything."""
NODE_RESTARTED = "NodeRestarted"
"""The node process died and took the worker along. Its next start completes the activity by the task token it had kept
on disk, because the calls of that worker would otherwise hang until the heartbeat timeout."""
NODE_LOST = "NodeLost"
"""Said by the workflow, never by a node: no heartbeat came, or the node could not tell what became of the process."""


@dataclass(frozen=True, kw_only=True)
class WorkerExit:
    """How one worker ended, as the node saw it.

    `outcome` is one of the words above. `exit_code` is set when the process exited, `signal` when one killed it.
    `message` is the node's own sentence, never output of the user's code. `ran_seconds` is the process's lifetime.
    """

    outcome: str
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    ran_seconds: float = 0.0


SETTLE_ATTEMPT = "settle_attempt"
"""Activity on the control queue: write what became of an attempt and give its calls back. Input `SettleAttemptInput`;
idempotent."""


@dataclass(frozen=True, kw_only=True)
class SettleAttemptInput:
    """Which attempt ended and how."""

    attempt_uid: str
    org: str
    project: str
    epoch: int
    exit: WorkerExit


WORKER_ATTEMPT_WORKFLOW = "WorkerAttemptWorkflow"
DRAIN_SIGNAL = "drain"


@dataclass(frozen=True, kw_only=True)
class WorkerAttemptInput:
    """Input of an attempt's workflow: which attempt, and the node that was chosen for it."""

    attempt_uid: str
    org: str
    project: str
    epoch: int
    node: str


@dataclass(frozen=True, kw_only=True)
class DrainRequest:
    """Signal to an attempt's workflow: why the worker should go; `kill` does not wait for what still runs on it."""

    reason: str
    kill: bool = False
