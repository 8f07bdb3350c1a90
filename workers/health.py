"""Whether a process does its work, asked from outside.

An API says so itself (`/readyz`). `control` and `node` serve nobody over HTTP: what they do is poll a Temporal task
queue, and Temporal knows who polls. `up` waits for this at start, and `python -m workers health NAME` is the health
check of a container. Temporal's client is loaded by those who ask for it: `up` does while its processes load theirs.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

from activities.run_call_contract import CONTROL_TASK_QUEUE
from activities.run_worker_contract import node_task_queue
from controlplane.settings import Settings
from workers.engines.probe import says_ok
from workers.names import ProcessName

if TYPE_CHECKING:
    from temporalio.client import Client

ANSWER_SECONDS_MAX = 5.0


async def api_is_ready(port: int) -> bool:
    """Whether the API on this host's port says it can serve."""
    return await says_ok(port, "/readyz", ANSWER_SECONDS_MAX)


async def polls(client: Client, queue: str, identity: str) -> bool:
    """Whether a process whose identity (`pid@host`) contains `identity` polls activities of the queue."""
    from temporalio.api.enums.v1 import TaskQueueType
    from temporalio.api.taskqueue.v1 import TaskQueue
    from temporalio.api.workflowservice.v1 import DescribeTaskQueueRequest
    from temporalio.service import RPCError

    request = DescribeTaskQueueRequest(
        namespace=client.namespace,
        task_queue=TaskQueue(name=queue),
        task_queue_type=TaskQueueType.TASK_QUEUE_TYPE_ACTIVITY,
    )
    try:
        answer = await client.workflow_service.describe_task_queue(request)
    except RPCError:
        return False
    return any(identity in poller.identity for poller in answer.pollers)


async def is_healthy(process: ProcessName, settings: Settings) -> bool:
    """Whether the process of that kind on this host works."""
    if process is ProcessName.API:
        return await api_is_ready(settings.http_port)
    from temporalio.client import Client

    queues = {ProcessName.CONTROL: CONTROL_TASK_QUEUE, ProcessName.NODE: node_task_queue(settings.node_name)}
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            client = await Client.connect(settings.temporal_address, namespace=settings.temporal_namespace)
            return await polls(client, queues[process], f"@{socket.gethostname()}")
    except (TimeoutError, RuntimeError):
        return False
