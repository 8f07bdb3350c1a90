"""The floor: one Temporal workflow with one activity, written as Temporal's own samples would write it.

Users could run their functions this way instead, so every figure of ours is printed as a ratio to it. The worker is a
process of its own (`python -m bench.floor ADDRESS QUEUE`), on the same tuned server that the measured system uses.
"""

from __future__ import annotations

import asyncio
import sys
import time
import uuid
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

ACTIVITY_TIMEOUT = timedelta(seconds=60)
# Twice the cores' worth of workflow tasks keeps both cores busy without timing tasks out.
WORKFLOW_TASKS_MAX = 20


@activity.defn
async def noop(value: int) -> int:
    return value


@workflow.defn(sandboxed=False)
class NoopWorkflow:
    @workflow.run
    async def run(self, value: int) -> int:
        return await workflow.execute_activity(noop, value, start_to_close_timeout=ACTIVITY_TIMEOUT)


async def serve(address: str, queue: str) -> None:
    client = await Client.connect(address)
    worker = Worker(
        client,
        task_queue=queue,
        workflows=[NoopWorkflow],
        activities=[noop],
        workflow_runner=UnsandboxedWorkflowRunner(),
        max_concurrent_workflow_tasks=WORKFLOW_TASKS_MAX,
        build_id="floor",
    )
    await worker.run()


async def one_by_one(client: Client, queue: str, count: int) -> list[float]:
    """Seconds of each of `count` executions, one after the other."""
    seconds = []
    for value in range(count):
        begun = time.perf_counter()
        await client.execute_workflow(NoopWorkflow.run, value, id=f"floor-{uuid.uuid4().hex}", task_queue=queue)
        seconds.append(time.perf_counter() - begun)
    return seconds


async def burst(client: Client, queue: str, count: int, in_flight: int) -> float:
    """Executions per second of `count` executions with at most `in_flight` at once."""
    gate = asyncio.Semaphore(in_flight)

    async def one(value: int) -> None:
        async with gate:
            await client.execute_workflow(NoopWorkflow.run, value, id=f"floor-{uuid.uuid4().hex}", task_queue=queue)

    begun = time.perf_counter()
    await asyncio.gather(*(one(value) for value in range(count)))
    return count / (time.perf_counter() - begun)


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2]))
