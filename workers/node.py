"""The node process: it takes attempts from Temporal and runs their workers on this host.

It serves nothing. Its task queue carries its name, so attempts placed here wait here; its own requests go to the API
with the node's token. A start proves the sandbox, clears what a killed predecessor left and reports the workers it
lost; `activities/run_worker.py` does the work.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator
from datetime import timedelta
from urllib.parse import urlsplit

import httpx
import structlog
from temporalio.client import Client
from temporalio.worker import Worker

from activities.build_image import BuildImageActivities, collect_images
from activities.node_api import NodeApi
from activities.run_worker import RunWorkerActivities, report_lost_workers
from activities.run_worker_contract import node_task_queue
from controlplane import failpoints
from controlplane.settings import Settings
from runtime.egress.limits import EgressLimits, EgressSettings
from runtime.environments import EnvironmentFailedError
from runtime.gpus import read_inventory
from runtime.host import Host, HostLimits, open_host
from runtime.image_builder import BuildLimits, ImageBuilder
from runtime.logs import LogLimits
from runtime.package_indexes import IndexSettings
from runtime.pythons import PythonMissingError
from runtime.templates import worker_template

BUILD_ID = "node"
"""Constant: without one the SDK hashes every module at start, about a second; nodes are not versioned in the engine."""
API_SECONDS_MAX = 30.0
ENGINE_RETRY_SECONDS = 1.0
STOP_MARGIN_SECONDS = 5
KILLS_MAX = 8
"""Activities beyond one for each worker, so that a full node can still be told to kill some."""
BUILDS_WAITING_MAX = 32
"""Activities beyond those again, so that builds which wait for their turn hold up no worker."""
CANCEL_LATENCY = timedelta(seconds=2)
"""How late a drain may reach the node: a cancellation travels with a heartbeat, and the SDK holds heartbeats back."""

log = structlog.get_logger(__name__)


async def run_node(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT, then let workers finish for a bounded time.

    Raises SandboxUnavailableError when this host cannot confine workers.
    """
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    failpoints.watch_folder(settings.failpoints_dir)
    host = await open_host(
        directory=settings.data_dir / "node",
        environments=settings.data_dir / "environments",
        api_url=settings.api_url,
        environ=os.environ,
        limits=host_limits(settings),
        reach=failpoints.reach,
        gpus=await asyncio.to_thread(read_inventory, settings.data_dir / "node" / "gpus", settings.nvml_module),
        unsandboxed=settings.unsandboxed_dir if settings.unsandboxed else None,
    )
    if not host.confines:
        log.warning(
            "WORKERS ARE NOT CONFINED: they are plain processes and see the files and the network of this host; run "
            "only code of your own, and unset NODUS_SERVER_UNSANDBOXED where a sandbox can be made",
            node=settings.node_name,
            guarantees=host.guarantees.to_json(),
        )
    try:
        async with _node_api(settings) as api:
            builds = BuildImageActivities(
                ImageBuilder(host, build_limits(settings), os.environ), api, settings.blob_bytes_max
            )
            collecting = asyncio.create_task(
                collect_images(
                    host, api, every_seconds=settings.image_collect_seconds, idle_seconds=settings.image_idle_seconds
                )
            )
            try:
                await _serve(settings, host, RunWorkerActivities(host, api, settings), builds, stop)
            finally:
                collecting.cancel()
    finally:
        await host.close()


async def _serve(
    settings: Settings,
    host: Host,
    activities: RunWorkerActivities,
    builds: BuildImageActivities,
    stop: asyncio.Event,
) -> None:
    warming = asyncio.create_task(_warm(host))
    stopped = asyncio.create_task(stop.wait())
    starting = asyncio.create_task(_engine(settings))
    await asyncio.wait((starting, stopped), return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        starting.cancel()
        await _ended(warming)
        return
    client = await starting
    lost = await report_lost_workers(client, host)
    worker = Worker(
        client,
        task_queue=node_task_queue(settings.node_name),
        activities=[activities.run_worker, activities.kill_worker, builds.build_image],
        build_id=BUILD_ID,
        max_concurrent_activities=settings.workers_max + KILLS_MAX + BUILDS_WAITING_MAX,
        graceful_shutdown_timeout=timedelta(seconds=settings.node_stop_seconds + STOP_MARGIN_SECONDS),
        max_heartbeat_throttle_interval=CANCEL_LATENCY,
        default_heartbeat_throttle_interval=CANCEL_LATENCY,
    )
    log.info(
        "node ready",
        node=settings.node_name,
        guarantees=host.guarantees.to_json(),
        accelerators=host.gpus.inventory.told,
        lost_workers=lost,
    )
    serving = asyncio.create_task(worker.run())
    await asyncio.wait((serving, stopped), return_when=asyncio.FIRST_COMPLETED)
    if stop.is_set():
        await _ended(warming)
        activities.drain_all()
        await worker.shutdown()
    await serving
    await _ended(warming)


async def _ended(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has cleaned up; what it failed with is raised."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def _engine(settings: Settings) -> Client:
    """A client of the engine, as soon as there is one: a node may start first."""
    told = False
    while True:
        try:
            return await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
        except RuntimeError as error:
            if not told:
                log.warning("waiting for Temporal", address=settings.temporal_address, problem=str(error))
            told = True
        await asyncio.sleep(ENGINE_RETRY_SECONDS)


async def _warm(host: Host) -> None:
    """Build the environment most calls of this host will want before the first of them comes, and keep the pool of
    warm workers filled.
    """
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        environment = await host.environment(minor, lambda step: log.info("environment", step=step))
        host.warm.expect(worker_template(environment, host.limits.scratch_bytes_max))
    except (PythonMissingError, EnvironmentFailedError) as error:
        log.warning("no environment was built ahead", python=minor, problem=str(error))
    await host.warm.run()


@contextlib.asynccontextmanager
async def _node_api(settings: Settings) -> AsyncIterator[NodeApi]:
    token = settings.node_token.get_secret_value()
    async with httpx.AsyncClient(
        base_url=settings.api_url,
        headers={"authorization": f"Bearer {token}"},
        timeout=API_SECONDS_MAX,
        trust_env=False,
    ) as client:
        yield NodeApi(client)


def build_limits(settings: Settings) -> BuildLimits:
    """The bounds of image builds."""
    return BuildLimits(
        builds_max=settings.image_builds_max,
        seconds_max=settings.image_build_seconds_max,
        disk_bytes_max=settings.image_disk_bytes_max,
        images_disk_bytes_max=settings.images_disk_bytes_max,
        memory_bytes_max=settings.image_memory_bytes_max,
    )


def host_limits(settings: Settings) -> HostLimits:
    """The bounds of workers, from settings and the host's own size."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return HostLimits(
        scratch_bytes_max=settings.worker_scratch_bytes_max,
        pids_max=settings.worker_pids_max,
        worker_memory_bytes_max=settings.worker_memory_bytes_max or None,
        all_memory_bytes_max=settings.workers_memory_bytes_max or memory_bytes * 9 // 10,
        start_seconds_max=settings.worker_start_seconds_max,
        exit_seconds_max=settings.drain_seconds,
        silence_seconds_max=settings.lease_seconds,
        isolation_min=settings.isolation_min,
        logs=LogLimits(line_bytes_max=settings.log_line_bytes_max),
        warm_workers_max=settings.warm_workers_max,
        egress=egress_settings(settings),
        indexes=IndexSettings(
            python_url=settings.image_index_url,
            python_hosts=settings.image_index_hosts,
            npm_hosts=settings.egress_npm_hosts,
        ),
    )


def egress_settings(settings: Settings) -> EgressSettings:
    """The way out of workers, from settings."""
    return EgressSettings(
        ports=frozenset(settings.egress_ports),
        closed_ports=frozenset(settings.egress_ports_closed),
        opened=[str(network) for network in settings.egress_private_ranges],
        closed_endpoints=_own_endpoints(settings),
        resolv_conf=settings.egress_resolv_conf,
        limits=EgressLimits(
            connections_max=settings.egress_connections_max,
            head_bytes_max=settings.egress_head_bytes_max,
            head_seconds_max=settings.egress_head_seconds_max,
            connect_seconds_max=settings.egress_connect_seconds_max,
            hello_seconds_max=settings.egress_hello_seconds_max,
            idle_seconds_max=settings.egress_idle_seconds_max,
            bytes_per_second_max=settings.egress_bytes_per_second_max,
            lookups_max=settings.egress_lookups_max,
            decisions_max=settings.egress_decisions_max,
        ),
    )


def _own_endpoints(settings: Settings) -> list[tuple[str, int]]:
    """Where the parts of this server listen, as far as this node knows: no opened range leads there."""
    engine = urlsplit(f"//{settings.temporal_address}")
    found = [(engine.hostname, engine.port or 7233)]
    for url, port in ((settings.database_url, 5432), (settings.api_url, 80)):
        parts = urlsplit(url)
        found.append((parts.hostname, parts.port or (443 if parts.scheme == "https" else port)))
    if settings.s3_endpoint:
        parts = urlsplit(f"//{settings.s3_endpoint}")
        found.append((parts.hostname, parts.port or (443 if settings.s3_secure else 80)))
    return [(host, port) for host, port in found if host]
