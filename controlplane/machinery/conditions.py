"""Conditions: what is true of an object, one entry a type, with the time it last became so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from controlplane.clock import format_time
from controlplane.machinery.model import ApiModel, list_map


class ObjectCondition(ApiModel):
    """One condition as clients see it."""

    type: str = Field(description="What the condition is about, such as Ready.")
    status: str = Field(description="True, False or Unknown.")
    reason: str = Field(description="One CamelCase word for programs.")
    message: str = Field(description="A sentence for people.")
    last_transition_time: str = Field(description="When `status` last changed.")
    observed_generation: int | None = Field(default=None, description="The generation the condition speaks of.")


Conditions = Annotated[list[ObjectCondition], list_map("type")]


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition to be set: `status` is "True", "False" or "Unknown"."""

    type: str
    status: str
    reason: str
    message: str
    observed_generation: int | None = None


def with_condition(conditions: Sequence[dict[str, Any]], new: Condition, now: datetime) -> list[dict[str, Any]]:
    """The conditions with `new` in place of its predecessor, whose time it keeps unless the status changed."""
    stored = next((condition for condition in conditions if condition["type"] == new.type), None)
    since = stored["lastTransitionTime"] if stored and stored["status"] == new.status else format_time(now)
    entry: dict[str, Any] = {
        "type": new.type,
        "status": new.status,
        "reason": new.reason,
        "message": new.message,
        "lastTransitionTime": since,
    }
    if new.observed_generation is not None:
        entry["observedGeneration"] = new.observed_generation
    if stored is None:
        return [*conditions, entry]
    return [entry if condition is stored else condition for condition in conditions]
