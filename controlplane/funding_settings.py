"""The settings of what workers cost and how that is funded; `settings.py` has all others and takes these in.

A group of its own, because a server without a price needs none of them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings


class FundingSettings(BaseSettings):
    """Price books, holds of workers, and what of a worker's time is not charged."""

    pricebook_file: Path | None = Field(
        default=None, description="YAML or JSON file of price books, read at start; without one nothing is offered."
    )
    host_region_class: str = Field(
        default="local",
        description="Region class of the hosts where no price book offers them; `placement.regions` must name it or be "
        "empty. Name the region that your Functions ask for to run them unchanged.",
    )
    worker_hold_seconds: int = Field(
        default=300,
        ge=1,
        description="A worker holds its price for this long at a time. What its calls cost meanwhile is charged beside "
        "the hold, so a longer window keeps more money from other workers; a shorter one writes more.",
    )
    worker_hold_seconds_min: int = Field(
        default=60,
        ge=1,
        description="Where less is left a shorter window is held, but none shorter than this: a start takes as long.",
    )
    worker_hold_renew_seconds: int = Field(
        default=30, ge=0, description="A hold is renewed this long before it is used up: a controller may restart."
    )
    wait_message_unfunded_calls_max: int = Field(
        default=200,
        ge=1,
        description="Calls of one queue that are told at once that they wait for money; each may be a write, and "
        "the rest follows a moment later.",
    )
    teardown_seconds_max: int = Field(
        default=45,
        ge=0,
        description="Charged for the stop of a worker at most: the grace that it has to drain, and the node's margin. "
        "What takes longer is the platform's.",
    )
