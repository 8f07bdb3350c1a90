"""Every workflow class this server runs; workers, replay tests and the recorder of histories walk this table."""

from __future__ import annotations

from workflows.canary import CanaryWorkflow
from workflows.controller import ControllerWorkflow
from workflows.function_call import FunctionCallWorkflow
from workflows.image_build import ImageBuildWorkflow
from workflows.worker_attempt import WorkerAttemptWorkflow

WORKFLOWS: tuple[type, ...] = (
    FunctionCallWorkflow,
    WorkerAttemptWorkflow,
    ImageBuildWorkflow,
    ControllerWorkflow,
    CanaryWorkflow,
)
