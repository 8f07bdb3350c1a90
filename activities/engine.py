"""What this server asks of Temporal: start, signal and complete, each with its id, its policy and a bound in time.

The only module that knows workflow ids and their conflict policies. A start may be repeated: the ids are those of the
objects, so the engine refuses or ignores a second one. The client of the SDK retries an absent server for ever; here
every request ends after `engine_call_seconds_max` with `EngineUnavailableError`, and whoever asked tries again later,
because all that must happen is written in SQL.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, TypeVar

from temporalio.api.workflowservice.v1 import DescribeNamespaceRequest
from temporalio.client import Client, WorkflowExecutionStatus
from temporalio.common import Priority, WorkflowIDConflictPolicy, WorkflowIDReusePolicy
from temporalio.exceptions import WorkflowAlreadyStartedError
from temporalio.service import RPCError, RPCStatusCode

from activities.build_image_contract import IMAGE_BUILD_WORKFLOW, ImageBuildInput
from activities.controller_contract import CONTROLLER_WORKFLOW, ControllerInput, ControllerName
from activities.run_call_contract import (
    CONTROL_TASK_QUEUE,
    FUNCTION_CALL_WORKFLOW,
    REISSUE_SIGNAL,
    CallOutcome,
    CallReference,
    FunctionCallInput,
)
from activities.run_worker_contract import (
    DRAIN_SIGNAL,
    WORKER_ATTEMPT_WORKFLOW,
    DrainRequest,
    WorkerAttemptInput,
)

Result = TypeVar("Result")

URGENT = Priority(priority_key=1)
"""What somebody waits for: a decision about a call, a worker. The default is 3."""


UNLESS_COMPLETED = WorkflowIDReusePolicy.ALLOW_DUPLICATE_FAILED_ONLY
"""A call's workflow that an operator terminated may start again; one that completed has told its end."""


class EngineUnavailableError(Exception):
    """Temporal did not answer in time, or not at all. Nothing is lost: SQL says what is left to do."""


class Engine:
    """The requests, over one client."""

    def __init__(self, client: Client, seconds_max: float) -> None:
        self._client = client
        self._seconds_max = seconds_max

    async def identity(self) -> str:
        """Which database our workflows live in: a fresh one has another id."""
        request = DescribeNamespaceRequest(namespace=self._client.namespace)
        answer = await self._bounded(self._client.workflow_service.describe_namespace(request))
        return answer.namespace_info.id

    async def start_call(self, call: CallReference, *, urgent: bool) -> bool:
        """Start the call's workflow, unless it runs; False when it ran and completed before."""
        return await self._start_call(FunctionCallInput(call=call), urgent=urgent)

    async def start_call_over(self, call: CallReference) -> None:
        """Start the call's workflow although one completed before, unless one runs."""
        await self._start_call(FunctionCallInput(call=call), urgent=True, reuse=WorkflowIDReusePolicy.ALLOW_DUPLICATE)

    async def tell_end(self, call: CallReference, ended: dict[str, Any]) -> None:
        """Start the call's workflow with its end, which completes it at once; one that runs already asks for it.

        That one may wait behind an activity that was lost with its process, and nothing else would end the wait.
        """
        told = FunctionCallInput(call=call, ended=ended)
        if not await self._start_call(told, conflict=WorkflowIDConflictPolicy.FAIL):
            await self.ask_again(call.uid)

    async def ask_again(self, uid: str) -> bool:
        """Let the call's workflow ask for its outcome anew; False when none runs.

        Not a signal that starts a workflow where none runs: repeated after a lost answer, it would start a second one
        for a call whose workflow it woke and that completed since.
        """
        try:
            await self._bounded(self._client.get_workflow_handle(call_workflow_id(uid)).signal(REISSUE_SIGNAL))
        except _NotFoundError:
            return False
        return True

    async def call_is_open(self, uid: str) -> bool:
        """Whether the call's workflow exists and runs."""
        try:
            described = await self._bounded(self._client.get_workflow_handle(call_workflow_id(uid)).describe())
        except _NotFoundError:
            return False
        return described.status is WorkflowExecutionStatus.RUNNING

    async def complete_call(self, token: bytes, outcome: CallOutcome) -> bool:
        """Complete a `run_call` activity; False when nobody waits behind this token any more."""
        try:
            await self._bounded(self._client.get_async_activity_handle(task_token=token).complete(outcome))
        except _NotFoundError:
            return False
        return True

    async def start_attempt(self, attempt: WorkerAttemptInput) -> None:
        """Start the workflow that looks after a worker; nothing happens when it has one or had one."""
        await self._started(
            self._client.start_workflow(
                WORKER_ATTEMPT_WORKFLOW,
                attempt,
                id=attempt_workflow_id(attempt.attempt_uid),
                task_queue=CONTROL_TASK_QUEUE,
                static_summary=f"{attempt.project}/{attempt.attempt_uid} on {attempt.node}",
                id_reuse_policy=WorkflowIDReusePolicy.REJECT_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                priority=URGENT,
            )
        )

    async def start_image_build(self, build: ImageBuildInput) -> None:
        """Start the workflow that builds an Image, unless it runs. One that ran before may be wanted again."""
        await self._started(
            self._client.start_workflow(
                IMAGE_BUILD_WORKFLOW,
                build,
                id=image_workflow_id(build.image_uid, build.generation),
                task_queue=CONTROL_TASK_QUEUE,
                static_summary=f"{build.project}/{build.name} on {build.node}",
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            )
        )

    async def drain_attempt(self, uid: str, request: DrainRequest) -> bool:
        """Ask the worker to go; False when no workflow looks after it (any more)."""
        handle = self._client.get_workflow_handle(attempt_workflow_id(uid))
        try:
            await self._bounded(handle.signal(DRAIN_SIGNAL, request))
        except _NotFoundError:
            return False
        return True

    async def ensure_controller(self, name: ControllerName) -> None:
        """Start the workflow of a controller unless it runs."""
        await self._started(
            self._client.start_workflow(
                CONTROLLER_WORKFLOW,
                ControllerInput(name=name),
                id=controller_workflow_id(name),
                task_queue=CONTROL_TASK_QUEUE,
                id_reuse_policy=WorkflowIDReusePolicy.ALLOW_DUPLICATE,
                id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
                priority=URGENT,
            )
        )

    async def _start_call(
        self,
        call: FunctionCallInput,
        *,
        urgent: bool = False,
        reuse: WorkflowIDReusePolicy = UNLESS_COMPLETED,
        conflict: WorkflowIDConflictPolicy = WorkflowIDConflictPolicy.USE_EXISTING,
    ) -> bool:
        request = self._client.start_workflow(
            FUNCTION_CALL_WORKFLOW,
            call,
            id=call_workflow_id(call.call.uid),
            task_queue=CONTROL_TASK_QUEUE,
            static_summary=f"{call.call.project}/{call.call.name}",
            id_reuse_policy=reuse,
            id_conflict_policy=conflict,
            priority=URGENT if urgent else Priority.default,
        )
        return await self._started(request)

    async def _started(self, request: Awaitable[object]) -> bool:
        """Whether the request started its workflow or found it running; False when its policies forbade both."""
        try:
            await self._bounded(request)
        except WorkflowAlreadyStartedError:
            return False
        return True

    async def _bounded(self, request: Awaitable[Result]) -> Result:
        try:
            async with asyncio.timeout(self._seconds_max):
                return await request
        except RPCError as error:
            if error.status is RPCStatusCode.NOT_FOUND:
                raise _NotFoundError from error
            raise EngineUnavailableError(str(error)) from error
        except (TimeoutError, RuntimeError) as error:
            # A client that never connected raises RuntimeError.
            raise EngineUnavailableError(f"no answer in {self._seconds_max} s") from error


class _NotFoundError(Exception):
    """The engine knows no such workflow or activity, or it is closed."""


def call_workflow_id(uid: str) -> str:
    """The id of a call's workflow."""
    return f"call/{uid}"


def image_workflow_id(uid: str, generation: int) -> str:
    """The id of the workflow that builds one generation of an Image."""
    return f"image/{uid}/{generation}"


def attempt_workflow_id(uid: str) -> str:
    """The id of a worker's workflow."""
    return f"attempt/{uid}"


def controller_workflow_id(name: ControllerName) -> str:
    """The id of a controller's workflow."""
    return f"controller/{name}"
