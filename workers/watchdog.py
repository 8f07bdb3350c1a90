"""Ends a control process that no longer runs workflows.

The SDK's worker can lose its workflow pollers under load and idle for ever while its activities go on; nothing tells
and nothing recovers but a restart. So a workflow that does nothing is started now and then. If the engine takes the
start and the end does not come, this process is taken for wedged: it raises, and the supervisor starts a fresh one. An
engine that is away proves nothing. The canary may be answered by another control process; then no workflow waits,
either.
"""

from __future__ import annotations

import asyncio

import structlog
from temporalio.client import Client, WorkflowFailureError
from temporalio.common import Priority, WorkflowIDConflictPolicy
from temporalio.service import RPCError

from activities.run_call_contract import CONTROL_TASK_QUEUE
from workflows.canary import CanaryWorkflow

log = structlog.get_logger(__name__)

START_SECONDS_MAX = 10.0


class WedgedError(RuntimeError):
    """Workflows are accepted and not run."""


async def watch(client: Client, seconds: float) -> None:
    """Send a canary every `seconds` until cancelled; raises WedgedError when one does not come back in `seconds`."""
    while True:
        await asyncio.sleep(seconds)
        await send_canary(client, seconds)


async def send_canary(client: Client, seconds: float) -> None:
    """Start one canary and wait for it; raises WedgedError when it was started and does not end in time."""
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            handle = await client.start_workflow(
                CanaryWorkflow.run,
                id=canary_workflow_id(client),
                task_queue=CONTROL_TASK_QUEUE,
                id_conflict_policy=WorkflowIDConflictPolicy.TERMINATE_EXISTING,
                # Ahead of any backlog: it asks whether workflows run, not how many wait.
                priority=Priority(priority_key=1),
            )
    except (RPCError, TimeoutError, RuntimeError) as error:
        log.warning("the canary could not be started", told=str(error))
        return
    try:
        async with asyncio.timeout(seconds):
            await handle.result()
    except TimeoutError:
        if await _still_open(client, handle.id):
            raise WedgedError(f"a workflow that does nothing took more than {seconds} s") from None
    except (RPCError, WorkflowFailureError) as error:
        log.warning("the canary could not be awaited", told=str(error))


def canary_workflow_id(client: Client) -> str:
    """The id of this process's canary; pids alone repeat from one container to the next."""
    return f"canary/{client.identity}"


async def _still_open(client: Client, workflow_id: str) -> bool:
    """Whether the engine answers and says that the canary runs; an engine that is away proves nothing."""
    try:
        async with asyncio.timeout(START_SECONDS_MAX):
            described = await client.get_workflow_handle(workflow_id).describe()
    except (RPCError, TimeoutError):
        return False
    return described.close_time is None
