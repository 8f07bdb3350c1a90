"""How workflow code is run: fast in production, fenced in tests.

The sandbox of the SDK re-imports a workflow's modules for every run and forbids clocks, randomness and I/O. It costs
half the CPU of a worker, so production goes without; every test and every replay of a recorded history goes with it,
and a test keeps the imports of `workflows/` to modules that need no pass-through. Both runners are chosen here and
nowhere else.
"""

from __future__ import annotations

from temporalio.worker import UnsandboxedWorkflowRunner, WorkflowRunner
from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner


def production_runner() -> WorkflowRunner:
    """Runs workflow code as it is."""
    return UnsandboxedWorkflowRunner()


def fenced_runner() -> WorkflowRunner:
    """Runs workflow code in the sandbox with the SDK's own restrictions; nothing of ours is passed through."""
    return SandboxedWorkflowRunner()
