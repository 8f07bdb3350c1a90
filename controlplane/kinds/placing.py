"""What work needs and where it may run: resources, placement, and what happens when capacity is lost."""

from __future__ import annotations

import re
from collections.abc import Callable
from fractions import Fraction
from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints

from controlplane.kinds.references import AbsolutePath, ObjectName, ShortText
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import Document
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import NOT_SUPPORTED, problem
from controlplane.machinery.quantities import (
    Duration,
    Money,
    Quantity,
    canonical_duration,
    parse_duration,
    parse_quantity,
)

_GPU_TEXT = re.compile(r"(?P<type>[A-Za-z0-9][A-Za-z0-9._ ·-]*?)(?P<exact>!)?(?::(?P<count>[0-9]{1,4}))?(?P<late>!)?")
_COUNTS = (1, 2, 4, 8)
GpuType = Annotated[str, StringConstraints(min_length=1, max_length=64)]


def _gpu_from_text(value: object) -> object:
    """The object that the short spelling stands for: `H100`, `H100:8`, `H100!` (exactly that variant)."""
    if not isinstance(value, str):
        return value
    found = _GPU_TEXT.fullmatch(value.strip())
    if found is None:
        raise problem('must be an object, or text such as "H100", "H100:8" or "H100!"')
    request: dict[str, object] = {"type": [found["type"].strip()]}
    if found["count"] is not None:
        request["count"] = int(found["count"])
    if found["exact"] or found["late"]:
        request["exact"] = True
    return request


def _bounded(least: str, most: str) -> Callable[[str], str]:
    low, high = parse_quantity(least), parse_quantity(most)

    def validate(text: str) -> str:
        value: Fraction = parse_quantity(text)
        if not low < value <= high:
            raise problem(f"must be greater than {least} and at most {most}")
        return text

    return validate


def _count(count: int) -> int:
    # A Literal would also take `true` and 1.0, which equal 1 in Python.
    if count not in _COUNTS:
        raise problem("must be one of 1, 2, 4 or 8", NOT_SUPPORTED)
    return count


def _true(value: bool) -> bool:
    if not value:
        raise problem("must be true or left out", NOT_SUPPORTED)
    return value


def _one_node(nodes: int) -> int:
    if nodes != 1:
        raise problem("must be 1; use `spec.cluster` for several machines")
    return nodes


class GpuRequest(ApiModel):
    """Accelerators. A family such as H100 matches each of its variants and no other family."""

    type: list[GpuType] = Field(min_length=1, max_length=8, description="Ids or families, any of which will do.")
    count: Annotated[int, AfterValidator(_count)] = Field(
        default=1, json_schema_extra={"enum": list(_COUNTS)}, description="Accelerators a node."
    )
    min_memory: Quantity | None = Field(default=None, description="Least memory of each accelerator.")
    exact: bool | None = Field(default=None, description="Whether only the variant named will do, not its family.")
    interconnect: Literal["Any", "NVLink"] | None = Field(default=None, description="How they are connected.")


DISK_DEFAULT = "10Gi"
"""Of the protocol. What every Function has that says nothing cannot be held against a host that has less."""


class Resources(ApiModel):
    """Processor, memory, disk and accelerators of one worker, at least."""

    cpu: Annotated[Quantity, AfterValidator(_bounded("0", "1k"))] = Field(default="1", description="Virtual CPUs.")
    memory: Annotated[Quantity, AfterValidator(_bounded("0", "64Ti"))] = Field(default="1Gi", description="Memory.")
    disk: Annotated[Quantity, AfterValidator(_bounded("0", "64Ti"))] = Field(
        default=DISK_DEFAULT,
        description="Disk that is gone with the worker; the default is no wish.",
    )
    gpu: Annotated[GpuRequest, BeforeValidator(_gpu_from_text)] | None = Field(
        default=None, description='Accelerators; text such as "H100:8" is accepted and stored as the object.'
    )
    nodes: Annotated[int, AfterValidator(_one_node)] | None = Field(
        default=None, description="Machines; a Function uses `spec.cluster` for more than one."
    )


class Placement(ApiModel):
    """Where work may run."""

    interruptible: Literal["Never", "Allow", "Prefer"] = Field(
        default="Allow", description="Whether capacity may be used that can be taken back."
    )
    profile: Literal["Balanced", "Cost", "Speed"] = Field(default="Balanced", description="What to optimise for.")
    regions: list[ShortText] | None = Field(
        default=None, max_length=32, description="Region classes to choose from; unset means any."
    )
    offerings: list[ShortText] | None = Field(
        default=None, max_length=64, description="Offerings to choose from; unset means any."
    )
    max_rate_usd_per_hour: Money | None = Field(default=None, description="Leave dearer capacity out.")
    queue_timeout: Duration = Field(
        default="86400s", description="How long to wait for capacity; 0s waits for ever. Default 24h."
    )
    pool: ObjectName | None = Field(default=None, description="A Pool of own machines.")
    community: bool | None = Field(default=None, description="Whether machines of a community may be used.")
    dedicated: Annotated[bool, AfterValidator(_true)] | None = Field(
        default=None, description="Whether machines are shared with nobody; only true."
    )


_MINUTES, _HOURS = "1m", "6h"


def _interval(text: str) -> str:
    """`auto` as it is, or a duration; a union of types would name both in the path of a problem."""
    if text == "auto":
        return text
    try:
        text = canonical_duration(text)
    except ValueError:
        text = "0s"
    if not parse_duration(_MINUTES) <= parse_duration(text) <= parse_duration(_HOURS):
        raise problem(f'must be "auto" or a duration between {_MINUTES} and {_HOURS}')
    return text


class CheckpointPolicy(ApiModel):
    """What is saved, how often and for how long. Stored, but workers of Functions take no checkpoints."""

    paths: list[AbsolutePath] | None = Field(
        default=None, min_length=1, max_length=64, description="What is saved together; unset means /nodus/state."
    )
    interval: Annotated[str, AfterValidator(_interval)] | None = Field(
        default=None, description="`auto`, or a duration from 1m to 6h."
    )
    format: Literal["Snapshot", "Dcp"] | None = Field(default=None, description="How it is written.")
    integration: Literal["Auto", "None", "HFTrainer"] | None = Field(
        default=None, description="Which framework is asked to save."
    )
    max_size: Annotated[Quantity, AfterValidator(_bounded("0", "2Ti"))] | None = Field(
        default=None, description="A checkpoint that is larger is not uploaded; unset means 1Ti."
    )
    retain_after_finish: Duration | None = Field(
        default=None, description="How long checkpoints outlive the work; unset means 168h."
    )


class Recovery(ApiModel):
    """What happens to calls whose worker was lost."""

    continuity: Literal["Checkpointed", "Restartable", "Ephemeral"] = Field(
        default="Ephemeral", description="What survives a loss: the last checkpoint, a cursor, or nothing."
    )
    max_attempts: int = Field(
        default=3, ge=1, le=32, description="How often a call is dispatched again after it lost its worker."
    )
    min_progress_duration: Duration = Field(default="120s", description="Run time that counts as progress. Default 2m.")
    on_interruption: Literal["Resume", "Fail"] = Field(
        default="Resume", description="Resume dispatches again; Fail ends the call with the first loss."
    )
    checkpoint: CheckpointPolicy | None = Field(default=None, description="What is saved and how often.")


def disk_least(spec: Document) -> str | None:
    """The disk that a workload asks for; None for one that has the default, which stands for no wish."""
    disk: str | None = value_at(spec, "resources.disk")
    return None if disk == DISK_DEFAULT else disk
