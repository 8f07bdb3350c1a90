"""What the workflow of a controller and the loop it keeps alive say to each other.

A controller is a loop of which the whole installation runs one. `workflows/controller.py` is its election: one
workflow with a fixed id, one heartbeating activity, run by whichever control process takes it.
`activities/controllers.py` hosts the loops. This module holds only words, so workflow code can import it inside the
sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

RUN_CONTROLLER = "run_controller"
"""Activity: run the loop of one controller until it has run for a while, then return. Input `ControllerInput`."""


CONTROLLER_WORKFLOW = "ControllerWorkflow"


class ControllerName(StrEnum):
    """The controllers; design section by section in their modules."""

    STARTER = "starter"
    AUTOSCALER = "autoscaler"
    SWEEPER = "sweeper"


@dataclass(frozen=True, kw_only=True)
class ControllerInput:
    """Which loop to run. `journal` is what the workflow told of its rounds before, for itself alone."""

    name: ControllerName
    journal: dict[str, list[str]] | None = None
