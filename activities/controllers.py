"""The host of controllers: runs one loop inside a heartbeating activity and hands it over in order.

The engine gives the activity of a controller to one process at a time. A process that dies or stalls misses its
heartbeats, and another takes over within seconds; one that is told so (cancelled) stops its loop. The loops are
`starter.py`, `autoscaler.py` and `sweeper.py`; each looks at current state and acts, so two that overlap for a moment
only do some work twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import structlog
from temporalio import activity
from temporalio.exceptions import ApplicationError, ApplicationErrorCategory

from activities.controller_contract import RUN_CONTROLLER, ControllerInput, ControllerName
from controlplane.errors import ApiError

log = structlog.get_logger(__name__)

HEARTBEAT_SECONDS = 1.0
FAULT_SECONDS = 1.0


class ControllerLoop(Protocol):
    """What a controller does while it is the elected one."""

    async def run(self) -> None:
        """Work until cancelled. May raise; it is started again after a moment."""


class Together:
    """Several loops under one election."""

    def __init__(self, *loops: ControllerLoop) -> None:
        self._loops = loops

    async def run(self) -> None:
        """Run all until cancelled; a fault in one ends the others too."""
        async with asyncio.TaskGroup() as group:
            for loop in self._loops:
                group.create_task(loop.run())


class ControllerActivities:
    """Activities of `ControllerWorkflow`."""

    def __init__(self, loops: Mapping[ControllerName, ControllerLoop], round_seconds: float) -> None:
        self._loops = loops
        self._round_seconds = round_seconds

    @activity.defn(name=RUN_CONTROLLER)
    async def run_controller(self, controller: ControllerInput) -> None:
        """Run the loop for one round. A fault in it is logged and the loop begins anew: it must outlive whatever the
        database and the engine do."""
        until = asyncio.get_running_loop().time() + self._round_seconds
        log.info("controller elected", controller=controller.name)
        running = asyncio.create_task(self._run(self._loops[controller.name], controller.name))
        stopping = asyncio.create_task(activity.wait_for_worker_shutdown())
        try:
            while asyncio.get_running_loop().time() < until:
                activity.heartbeat()
                await asyncio.wait([running, stopping], timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
                if stopping.done():
                    # A failure is tried again at once by another process; a return would have to go by the workflow.
                    raise ApplicationError(
                        "this process stops; another one takes over",
                        type="HandedOver",
                        category=ApplicationErrorCategory.BENIGN,
                    )
        finally:
            running.cancel()
            stopping.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _run(self, loop: ControllerLoop, name: ControllerName) -> None:
        while True:
            try:
                await loop.run()
            except* ApiError as errors:
                log.warning("controller interrupted, beginning again", controller=name, told=repr(errors.exceptions[0]))
            except* Exception:
                log.exception("controller failed, beginning again", controller=name)
            await asyncio.sleep(FAULT_SECONDS)

    @property
    def all(self) -> Sequence[Callable[..., Any]]:
        """What a worker registers."""
        return [self.run_controller]
