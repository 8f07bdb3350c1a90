"""A workflow that does nothing, to tell whether workflows are still being run.

A worker of the SDK can lose its workflow pollers and sit idle for ever while its activities go on. The watchdog
(`workers/watchdog.py`) starts one of these now and then and ends the process when it does not come back.
"""

from __future__ import annotations

from temporalio import workflow


@workflow.defn
class CanaryWorkflow:
    """Ends at once; its id is `canary/<process>`."""

    @workflow.run
    async def run(self) -> None:
        """Nothing: to be run at all is the answer."""
