"""The activities of a node, on a real engine, with real workers, against a scripted API."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from temporalio import workflow
from temporalio.client import Client, WorkflowHandle
from temporalio.common import RetryPolicy
from temporalio.worker import UnsandboxedWorkflowRunner, Worker

from activities.node_api import Lease
from activities.run_worker import memory_bytes_max, worker_exit
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
    node_task_queue,
)
from controlplane.settings import Settings
from runtime.process import Ending
from runtime.supervisor import WorkerReport
from tests.fixtures.eventually import eventually
from tests.fixtures.processes import of_attempt
from tests.runtime.scripted_api import ScriptedApi
from tests.workers.node_process import Node
from workers.engines.temporal import EmbeddedTemporal

CODE = """
import os, time
import nodus

app = nodus.App("test")

@app.function()
def target(seconds=0):
    print(os.environ["GREETING"])
    time.sleep(seconds)
"""


@workflow.defn
class RunOnNode:
    """The least a workflow does with a node: run an attempt named like it, cancel it when told, kill it when told."""

    def __init__(self) -> None:
        self._told: list[str] = []

    @workflow.signal
    def tell(self, what: str) -> None:
        self._told.append(what)

    @workflow.run
    async def run(self, node: str) -> WorkerExit:
        worker = workflow.start_activity(
            RUN_WORKER,
            RunWorkerInput(attempt_uid=node, epoch=1),
            result_type=WorkerExit,
            task_queue=node_task_queue(node),
            schedule_to_close_timeout=timedelta(minutes=5),
            heartbeat_timeout=timedelta(seconds=120),
            retry_policy=RetryPolicy(maximum_attempts=1),
            cancellation_type=workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED,
        )
        stopping = asyncio.create_task(self._stop(worker, node))
        try:
            return await asyncio.shield(worker)
        finally:
            stopping.cancel()

    async def _stop(self, worker: workflow.ActivityHandle[WorkerExit], node: str) -> None:
        await workflow.wait_condition(lambda: "drain" in self._told)
        worker.cancel()
        await workflow.wait_condition(lambda: "kill" in self._told)
        await workflow.execute_activity(
            KILL_WORKER,
            KillWorkerInput(attempt_uid=node),
            result_type=bool,
            task_queue=node_task_queue(node),
            schedule_to_close_timeout=timedelta(seconds=60),
        )


@pytest.fixture
async def api() -> AsyncIterator[ScriptedApi]:
    """What a lease and the code are is known before there is a node that could ask."""
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    async with ScriptedApi(leased={"concurrency": 1, "python": minor, "env": [["GREETING", "hello"]]}).serving() as api:
        api.set_code({"app.py": CODE})
        yield api


@pytest.fixture(scope="session")
def node_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("node-data")


@pytest.fixture
async def node(api: ScriptedApi, temporal: EmbeddedTemporal, node_data: Path, tmp_path: Path) -> AsyncIterator[Node]:
    name = f"node-{uuid.uuid4().hex[:8]}"
    settings = {
        "node_name": name,
        "node_token": api.node_token,
        "api_url": api.url,
        "temporal_address": temporal.address,
        "data_dir": str(node_data),
        "node_stop_seconds": "2",
    }
    made = Node(settings, tmp_path / "node.log")
    made.start()
    yield made
    logging.getLogger(__name__).info(made.log.read_text())
    # Asked, not killed: only then does it take its control groups along.
    made.signal(signal.SIGTERM)
    await made.ended()


@pytest.fixture
async def handle(node: Node, temporal_client: Client, task_queue: str) -> AsyncIterator[WorkflowHandle[Any, Any]]:
    """A workflow that runs the worker of one attempt on the node."""
    worker = Worker(
        temporal_client,
        task_queue=task_queue,
        workflows=[RunOnNode],
        workflow_runner=UnsandboxedWorkflowRunner(),
        build_id="test",
    )
    async with worker:
        started = await temporal_client.start_workflow(
            RunOnNode.run, node.settings["node_name"], id=node.settings["node_name"], task_queue=task_queue
        )
        yield started
        with contextlib.suppress(Exception):
            await started.terminate()


async def test_a_worker_runs_with_what_the_lease_says_and_drains_when_the_activity_is_cancelled(
    api: ScriptedApi, handle: WorkflowHandle[Any, Any]
) -> None:
    api.call("one")
    await eventually(lambda: "one" in api.outcomes)
    assert api.outcomes["one"]["outcome"] == "Succeeded"
    await eventually(lambda: "hello" in api.log)
    await handle.signal(RunOnNode.tell, "drain")
    result: WorkerExit = await handle.result()
    assert (result.outcome, result.exit_code) == (DRAINED, 0)
    assert result.ran_seconds > 0
    assert api.phases == ["Preparing", "Starting", "Ready", "Draining"]
    # Whether it had been started ahead is known when it is ready, and not before.
    assert [isinstance(told, bool) for told in api.warm_reuse[:3]] == [False, False, True]


@pytest.fixture
def accelerated(api: ScriptedApi) -> None:
    """The lease of a Function that asks for accelerators which no host has; there before the node is."""
    wanted = {"type": ["Z9000"], "count": 2, "minMemory": "80Gi", "interconnect": "NVLink", "exact": True}
    api.leased["resources"] = {"gpu": wanted}


async def test_a_worker_that_asks_for_accelerators_is_told_what_its_host_has(
    accelerated: None, handle: WorkflowHandle[Any, Any]
) -> None:
    result: WorkerExit = await handle.result()
    assert result.outcome == NOT_STARTED
    asked = "2 of Z9000! with 81920 MiB, joined by NVLink"
    assert result.message.startswith(f"`spec.resources.gpu` asks for {asked}, and this host has ")


async def test_a_worker_that_goes_on_is_killed_when_the_control_process_asks(
    api: ScriptedApi, handle: WorkflowHandle[Any, Any]
) -> None:
    api.call("one", 600)
    await eventually(lambda: "hello" in api.log)
    await handle.signal(RunOnNode.tell, "drain")
    await handle.signal(RunOnNode.tell, "kill")
    result: WorkerExit = await handle.result()
    assert (result.outcome, result.signal) == (KILLED, 9)
    assert "control process" in result.message


async def test_a_killed_node_leaves_no_worker_and_its_next_start_reports_the_loss(
    api: ScriptedApi, node: Node, handle: WorkflowHandle[Any, Any]
) -> None:
    api.call("one", 600)
    await eventually(lambda: "hello" in api.log)
    workers = processes_of(node)
    assert workers
    node.signal(signal.SIGKILL)
    await node.ended()
    await eventually(lambda: not any(worker.is_running() for worker in workers))
    node.start()
    result: WorkerExit = await handle.result()
    assert result.outcome == NODE_RESTARTED


async def test_a_stopping_node_drains_its_workers_and_exits(
    api: ScriptedApi, node: Node, handle: WorkflowHandle[Any, Any]
) -> None:
    api.call("one", 600)
    await eventually(lambda: "hello" in api.log)
    workers = processes_of(node)
    assert workers
    node.signal(signal.SIGTERM)
    assert await node.ended() == 0
    result: WorkerExit = await handle.result()
    assert result.outcome == KILLED
    assert "2 s after it was asked to" in result.message
    await eventually(lambda: not any(worker.is_running() for worker in workers))


@pytest.fixture
def refusing(api: ScriptedApi) -> None:
    """An API that gives no lease; so before the node asks."""
    api.lease_refusal = 409


async def test_an_attempt_the_api_refuses_is_not_started(refusing: None, handle: WorkflowHandle[Any, Any]) -> None:
    result: WorkerExit = await handle.result()
    assert result.outcome == NOT_STARTED
    assert "the attempt is over" in result.message


def processes_of(node: Node) -> list[psutil.Process]:
    """The processes in the sandbox of the node's one attempt, which has the node's name."""
    return of_attempt(Path(node.settings["data_dir"]) / "node", node.settings["node_name"])


def report(**changes: Any) -> WorkerReport:
    ending = Ending(exit_code=0, signal=None, ran_seconds=1.5)
    plain = WorkerReport(ending=ending, problem=None, asked=False, ready=True, out_of_memory=False, api_away=False)
    return dataclasses.replace(plain, **changes)


GAVE_UP = Ending(exit_code=1, signal=None, ran_seconds=80.0)
KILLED_BY_KERNEL = Ending(exit_code=None, signal=signal.SIGKILL, ran_seconds=1.5)
SEGFAULT = Ending(exit_code=None, signal=signal.SIGSEGV, ran_seconds=1.5)
TERMINATED = Ending(exit_code=None, signal=signal.SIGTERM, ran_seconds=1.5)


@pytest.mark.parametrize(
    ("told", "outcome"),
    [
        (report(), EXITED),
        (report(asked=True), DRAINED),
        (report(ending=None, problem="no environment"), NOT_STARTED),
        # Told to leave while its environment was being prepared, as when the node stops.
        (report(ending=None, problem="asked to leave", asked=True, ready=False), DRAINED),
        (report(ending=GAVE_UP, ready=False, api_away=True), PLATFORM_AWAY),
        (report(ending=GAVE_UP, ready=False), EXITED),
        (report(api_away=True), EXITED),
        (report(ending=KILLED_BY_KERNEL, problem="the node killed the worker: so"), KILLED),
        (report(ending=KILLED_BY_KERNEL, problem="asked and stayed", asked=True, ready=False), KILLED),
        (report(ending=KILLED_BY_KERNEL, problem="no claim in time", ready=False), START_TIMED_OUT),
        (report(ending=KILLED_BY_KERNEL, problem="no claim in time", ready=False, api_away=True), PLATFORM_AWAY),
        (report(ending=KILLED_BY_KERNEL, out_of_memory=True), OUT_OF_MEMORY),
        (report(ending=KILLED_BY_KERNEL, out_of_memory=True, asked=True), OUT_OF_MEMORY),
        # Killed by the node, whatever the kernel had killed before.
        (report(ending=KILLED_BY_KERNEL, out_of_memory=True, problem="the node killed the worker: so"), KILLED),
        # A child that was killed for its memory did not end the worker.
        (report(out_of_memory=True), EXITED),
        (report(ending=SEGFAULT, out_of_memory=True), EXITED),
        (report(ending=SEGFAULT, out_of_memory=True, asked=True), DRAINED),
        (report(ending=TERMINATED, out_of_memory=True), EXITED),
        (report(ending=TERMINATED, out_of_memory=True, asked=True), DRAINED),
        (report(ending=KILLED_BY_KERNEL), EXITED),
    ],
)
def test_each_report_has_one_word(told: WorkerReport, outcome: str) -> None:
    assert worker_exit(told).outcome == outcome


@pytest.mark.parametrize(
    ("floor", "factor", "host", "limit"),
    [
        (100, 2.0, 0, 200),
        (100, 1.5, 0, 150),
        (100, 2.0, 120, 120),
        (100, 2.0, 900, 200),
        (100, 0.0, 0, None),
        (100, 0.0, 900, 900),
        (None, 2.0, 0, None),
        (None, 2.0, 900, 900),
    ],
)
def test_a_workers_memory_ends_at_the_smaller_of_its_functions_and_its_hosts_limit(
    floor: int | None, factor: float, host: int, limit: int | None
) -> None:
    lease = Lease(
        token="t", project="p", function="f", concurrency=1, python="3.12", variables=(), directory=None,
        memory_bytes=floor,
    )  # fmt: skip
    settings = Settings(worker_memory_factor=factor, worker_memory_bytes_max=host)
    assert memory_bytes_max(lease, settings) == limit
    with_disk = memory_bytes_max(dataclasses.replace(lease, disk_bytes=50), settings)
    assert with_disk == (limit if limit in (None, host) else limit + 50)


def test_a_worker_that_ended_before_it_claimed_says_where_to_look() -> None:
    assert "log says why" in worker_exit(report(ready=False)).message
