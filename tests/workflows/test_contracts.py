"""Words that two sides must agree on, and the imports that keep workflow code inside the sandbox."""

from __future__ import annotations

import subprocess
import sys

from activities.build_image_contract import IMAGE_BUILD_WORKFLOW
from activities.controller_contract import CONTROLLER_WORKFLOW
from activities.run_call_contract import FUNCTION_CALL_WORKFLOW, REISSUE_SIGNAL
from activities.run_worker_contract import DRAIN_SIGNAL, WORKER_ATTEMPT_WORKFLOW
from workflows.controller import ControllerWorkflow
from workflows.function_call import FunctionCallWorkflow
from workflows.image_build import ImageBuildWorkflow
from workflows.worker_attempt import WorkerAttemptWorkflow

OURS = ("activities", "api", "controlplane", "runtime", "workers", "workflows")
NEEDED_NOWHERE_IN_A_WORKFLOW = ("asyncpg", "sqlalchemy", "pydantic_settings", "httpx", "orjson", "structlog")
LIST_MODULES = "import sys, workflows.registry; print(*sorted(sys.modules))"


def test_workflows_are_started_under_the_names_of_their_classes() -> None:
    assert FunctionCallWorkflow.__name__ == FUNCTION_CALL_WORKFLOW
    assert WorkerAttemptWorkflow.__name__ == WORKER_ATTEMPT_WORKFLOW
    assert ControllerWorkflow.__name__ == CONTROLLER_WORKFLOW
    assert ImageBuildWorkflow.__name__ == IMAGE_BUILD_WORKFLOW


def test_signals_are_sent_under_the_names_of_their_handlers() -> None:
    assert FunctionCallWorkflow.reissue.__name__ == REISSUE_SIGNAL
    assert WorkerAttemptWorkflow.drain.__name__ == DRAIN_SIGNAL


def test_workflow_code_imports_words_and_the_pure_decision_and_nothing_else_of_ours() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", LIST_MODULES], capture_output=True, text=True, check=True
    ).stdout.split()
    ours = {module for module in printed if module.partition(".")[0] in OURS and "." in module}
    assert {module for module in ours if not module.startswith("workflows.")} == {
        "activities.build_image_contract",
        "activities.controller_contract",
        "activities.run_call_contract",
        "activities.run_worker_contract",
        "controlplane.calls",
        "controlplane.calls.decide",
    }
    assert not set(NEEDED_NOWHERE_IN_A_WORKFLOW) & set(printed)
