"""The node of a fault run: it takes attempts as the real one does and runs scripted workers instead of sandboxes.

Leases, phases and the words to Temporal are the server's own. A worker is a child that dies with this process, and an
activity's token is kept on disk, so that the next node process can tell what became of the workers of a killed one.
`python -m tests.faults.node` reads the server's settings and the harness's variables from its environment.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import httpx
from temporalio import activity
from temporalio.client import Client
from temporalio.service import RPCError
from temporalio.worker import Worker

from activities.node_api import ApiRefusedError, ApiUnavailableError, Lease, NodeApi
from activities.run_worker_contract import (
    DRAINED,
    EXITED,
    KILL_WORKER,
    KILLED,
    NODE_RESTARTED,
    NOT_STARTED,
    PLATFORM_AWAY,
    RUN_WORKER,
    KillWorkerInput,
    RunWorkerInput,
    WorkerExit,
    node_task_queue,
)
from workers.configuration import read_settings
from workers.engines.child import start_child
from workers.supervision import ended

HEARTBEAT_SECONDS = 1.0
LEASE_SECONDS_MAX = 60.0


class ScriptedNode:
    """The activities, and the workers that run."""

    def __init__(self, folder: Path, urls: list[str], token: str) -> None:
        self._folder = folder
        self._urls = urls
        headers = {"authorization": f"Bearer {token}"}
        self._apis = [
            NodeApi(httpx.AsyncClient(base_url=url, headers=headers, timeout=10, trust_env=False)) for url in urls
        ]
        self._workers: dict[str, subprocess.Popen[bytes]] = {}
        self._asked: set[str] = set()
        self._killed: set[str] = set()

    @activity.defn(name=RUN_WORKER)
    async def run_worker(self, given: RunWorkerInput) -> WorkerExit:
        """Run a worker to its end; a cancellation asks it to go."""
        uid = given.attempt_uid
        token = self._folder / uid
        token.write_bytes(activity.info().task_token)
        work = asyncio.create_task(self._run(given))
        while not work.done():
            try:
                await asyncio.wait([work], timeout=HEARTBEAT_SECONDS)
                activity.heartbeat()
            except asyncio.CancelledError:
                self._asked.add(uid)
                if uid in self._workers:
                    self._workers[uid].terminate()
        token.unlink()
        return work.result()

    @activity.defn(name=KILL_WORKER)
    async def kill_worker(self, given: KillWorkerInput) -> bool:
        """End a worker at once."""
        self._asked.add(given.attempt_uid)
        self._killed.add(given.attempt_uid)
        worker = self._workers.get(given.attempt_uid)
        if worker is not None:
            worker.kill()
        return worker is not None

    async def _run(self, given: RunWorkerInput) -> WorkerExit:
        lease = await self._lease(given)
        if isinstance(lease, WorkerExit):
            return lease
        uid, began = given.attempt_uid, time.monotonic()
        worker = self._workers[uid] = start_child(
            [sys.executable, "-m", "tests.faults.worker"],
            environment={**os.environ, **self._clock(), **self._variables(uid, lease)},
            log=self._folder.with_suffix(".log"),
            death_signal=signal.SIGKILL,
        )
        if uid in self._asked:
            worker.terminate()
        await ended(worker)
        code = worker.wait()
        del self._workers[uid]
        outcome = KILLED if uid in self._killed else DRAINED if uid in self._asked else EXITED
        ran_seconds = time.monotonic() - began
        if code < 0:
            return WorkerExit(outcome=outcome, signal=-code, ran_seconds=ran_seconds)
        return WorkerExit(outcome=outcome, exit_code=code, ran_seconds=ran_seconds)

    async def _lease(self, given: RunWorkerInput) -> Lease | WorkerExit:
        until = time.monotonic() + LEASE_SECONDS_MAX
        while given.attempt_uid not in self._asked and time.monotonic() < until:
            self._apis.append(self._apis.pop(0))
            try:
                return await self._apis[0].lease(given.attempt_uid, given.epoch)
            except ApiRefusedError as error:
                return WorkerExit(outcome=NOT_STARTED, message=f"no lease: {error}")
            except ApiUnavailableError:
                await asyncio.sleep(0.2)
        return WorkerExit(outcome=PLATFORM_AWAY, message="no lease")

    def _variables(self, uid: str, lease: Lease) -> dict[str, str]:
        return {
            "FAULTS_URLS": json.dumps(self._urls),
            "FAULTS_TOKEN": lease.token,
            "FAULTS_ATTEMPT": uid,
            "FAULTS_CONCURRENCY": str(lease.concurrency),
            "FAULTS_FUNCTION": lease.function,
            "FAULTS_PROJECT": lease.project,
        }

    def _clock(self) -> dict[str, str]:
        """The variables that move the next worker's clock, if the harness asked for that."""
        clock = self._folder.with_suffix(".clock")
        return dict(json.loads(clock.read_text())) if clock.exists() else {}


async def report_lost(client: Client, folder: Path) -> None:
    """Tell of the workers that died with the node process before this one."""
    for token in folder.iterdir():
        handle = client.get_async_activity_handle(task_token=token.read_bytes())
        try:
            await handle.complete(WorkerExit(outcome=NODE_RESTARTED, message="the node process died"))
        except RPCError:
            pass  # given up already
        token.unlink()


async def main() -> None:
    """Serve until SIGTERM."""
    settings = read_settings()
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    folder = Path(os.environ["FAULTS_NODE_FOLDER"])
    folder.mkdir(exist_ok=True)
    node = ScriptedNode(folder, json.loads(os.environ["FAULTS_URLS"]), settings.node_token.get_secret_value())
    client = await _connected(settings.temporal_address)
    await report_lost(client, folder)
    worker = Worker(
        client,
        task_queue=node_task_queue(settings.node_name),
        activities=[node.run_worker, node.kill_worker],
        build_id="node",
        graceful_shutdown_timeout=timedelta(seconds=settings.node_stop_seconds),
        max_heartbeat_throttle_interval=timedelta(seconds=1),
        default_heartbeat_throttle_interval=timedelta(seconds=1),
    )
    async with worker:
        await stop.wait()


async def _connected(address: str) -> Client:
    while True:
        try:
            return await Client.connect(address)
        except RuntimeError:
            await asyncio.sleep(0.5)


if __name__ == "__main__":
    asyncio.run(main())
