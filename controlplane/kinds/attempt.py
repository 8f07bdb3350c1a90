"""The Attempt kind: the life of one worker. The server writes it; clients read it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from controlplane.kinds.money import CostSegments
from controlplane.machinery.kind import READ_VERBS, Column, Document, Kind, Scope, Subresource
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Money
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, NOTHING, PHASE_COLUMN, REASON_COLUMN, text_at

InterruptionTrigger = Literal[
    "PreemptionNotice",
    "ProviderEvidence",
    "HeartbeatLoss",
    "ReadinessFailed",
    "StartupTimeout",
    "Drill",
    "Funding",
    "User",
    "CloudCredit",
    "CloudAccess",
]


class AttemptGang(ApiModel):
    """The gang a worker belongs to."""

    id: str = Field(description="Name of the gang.")
    epoch: int = Field(description="Epoch of the gang.")
    rank: int = Field(description="Its rank in the gang.")
    size: int = Field(description="Machines of the gang.")


class AttemptCursor(ApiModel):
    """How much of a job was done."""

    completed: int = Field(description="Units that are done.")
    total: int = Field(description="Units in all.")


class AttemptRestore(ApiModel):
    """What a worker resumes from."""

    seq: int | None = Field(default=None, description="Number of the checkpoint.")
    cursor: AttemptCursor | None = Field(default=None, description="How far the work was.")


class AttemptSpec(ApiModel):
    """Which place a worker fills."""

    slot: str = Field(description="The place in the pool; its workers follow one another.")
    epoch: int = Field(description="Grows with every replacement in the slot; older epochs are refused.")
    gang: AttemptGang | None = Field(default=None, description="The gang it belongs to.")
    restore_from: AttemptRestore | None = Field(default=None, description="What it resumes from.")


class AttemptInterruption(ApiModel):
    """Why a worker was lost."""

    trigger: InterruptionTrigger = Field(description="What told that it was lost.")
    time: str | None = Field(default=None, description="When it was lost.")
    lost_seconds: int | None = Field(default=None, description="Work that was lost with it.")
    recovery_seconds: int | None = Field(default=None, description="How long the replacement took.")


class PlacementRejection(ApiModel):
    """An offering that was not chosen."""

    offering_class: str = Field(description="Its class.")
    reason: str = Field(description="Why not.")


class PlacementExplain(ApiModel):
    """How the scheduler came to its choice."""

    profile: str | None = Field(default=None, description="What it optimised for.")
    scores: dict[str, str] | None = Field(default=None, description="The score of each offering.")
    fallbacks: list[str] | None = Field(default=None, description="What it would have taken next.")
    rejected: list[PlacementRejection] | None = Field(default=None, description="What it would not have taken.")


class AttemptPlacement(ApiModel):
    """The capacity of a worker."""

    offering: str | None = Field(default=None, description="The Offering it runs on.")
    rate_usd_per_hour: Money | None = Field(default=None, description="What it costs an hour.")
    region_class: str | None = Field(default=None, description="Where it is.")
    interruptible: bool | None = Field(default=None, description="Whether it can be taken back.")
    profile: str | None = Field(default=None, description="What was optimised for.")
    warm_reuse: bool | None = Field(default=None, description="Whether a machine that was up was reused.")
    hedged: bool | None = Field(default=None, description="Whether a second machine raced it.")
    candidates: int | None = Field(default=None, description="Offerings that were considered.")
    cloud_account: str | None = Field(default=None, description="The CloudAccount it runs in.")
    cloud_rate_usd_per_hour: Money | None = Field(default=None, description="What that cloud charges an hour.")
    cloud_spend_usd: Money | None = Field(default=None, description="What it cost that account.")
    explain: PlacementExplain | None = Field(default=None, description="How it was chosen.")


class AttemptPredicted(ApiModel):
    """What was expected of a worker when it was placed."""

    cost_usd: Money | None = Field(default=None, description="Cost.")
    hours: str | None = Field(default=None, description="Run time in hours.")
    interruption_rate: str | None = Field(default=None, description="Losses an hour.")


class AttemptActual(ApiModel):
    """What a worker came to."""

    cost_usd: Money | None = Field(default=None, description="Cost.")
    hours: str | None = Field(default=None, description="Run time in hours.")
    segments: CostSegments | None = Field(default=None, description="The cost by segment.")


class AttemptProgress(ApiModel):
    """How far a worker is."""

    stage: str | None = Field(
        default=None,
        description="Pending, Placing, Acquiring, Starting, Running, Succeeded, Failed, Lost or Stopped.",
    )


class AttemptCheckpoints(ApiModel):
    """The checkpoints of a worker."""

    count: int | None = Field(default=None, description="How many it took.")
    last_seq: int | None = Field(default=None, description="Number of the last one.")
    restore_bytes: int | None = Field(default=None, description="What it restored.")


class AttemptTimings(ApiModel):
    """When a worker came to where."""

    queued_time: str | None = Field(default=None, description="It was created.")
    acquired_time: str | None = Field(default=None, description="Its capacity was chosen and asked for.")
    registered_time: str | None = Field(default=None, description="It made its first claim.")
    billing_start_time: str | None = Field(default=None, description="It began to cost.")
    command_started_time: str | None = Field(default=None, description="Its process started.")
    finished_time: str | None = Field(default=None, description="It ended.")
    deletion_proven_time: str | None = Field(default=None, description="Nothing of it was left.")
    boot_seconds: int | None = Field(default=None, description="From acquired to serving.")
    pull_seconds: int | None = Field(default=None, description="The part of it for the image.")
    restore_seconds: int | None = Field(default=None, description="The same for a worker that resumed.")
    teardown_seconds: int | None = Field(default=None, description="From the stop until nothing was left.")


class AttemptGuarantees(ApiModel):
    """How a worker is isolated, as its node proved at its start."""

    level: Literal["none", "basic", "standard", "strong"] = Field(
        description="Strong: a user of its own and hard limits. Standard: one of these. Basic: neither. None: no "
        "sandbox."
    )
    uid: Literal["per_attempt", "shared"] = Field(description="Whether two workers are two users to the kernel.")
    memory: Literal["hard", "soft", "none"] = Field(
        description="Hard: its memory is limited. Soft: that of each of its processes is."
    )
    pids: Literal["hard", "soft", "none"] = Field(
        description="Whether the number of its processes is limited: hard by its group, soft by its user."
    )
    cpu: Literal["shared", "none"] = Field(
        default="none", description="Whether it gets its part of the processors when all want them."
    )
    network: Literal["none", "proxy", "host"] = Field(
        description="What it reaches beyond its own loopback: nothing, what the egress proxy lets through, or all that "
        "its host does."
    )
    disk_bytes: int | None = Field(
        default=None,
        ge=0,
        description="Size of each of its writable folders, where they have one; what is written counts as its memory.",
    )
    filter_sha256: str | None = Field(
        default=None,
        max_length=64,
        pattern=r"^[0-9a-f]{64}$",
        description="Of the filter over its system calls, if there is one.",
    )
    missing: list[Annotated[str, StringConstraints(max_length=256)]] = Field(
        default_factory=list, max_length=8, description="What keeps the host from the next level."
    )


class AttemptStatus(ApiModel):
    """What the server observed about a worker."""

    phase: str | None = Field(
        default=None, description="Queued, Provisioning, Running, Succeeded, Failed or Cancelled."
    )
    reason: str | None = Field(default=None, description="Why it failed or was stopped, in one word.")
    message: str | None = Field(default=None, description="The same in a sentence, or what it is doing.")
    exit_code: int | None = Field(default=None, description="What its process exited with.")
    signal: int | None = Field(default=None, description="The signal that ended its process.")
    superseded_by: str | None = Field(default=None, description="The next Attempt in its slot.")
    interruption: AttemptInterruption | None = Field(default=None, description="Why it was lost.")
    placement: AttemptPlacement | None = Field(default=None, description="Where it runs.")
    guarantees: AttemptGuarantees | None = Field(default=None, description="How it is isolated.")
    predicted: AttemptPredicted | None = Field(default=None, description="What was expected of it.")
    actual: AttemptActual | None = Field(default=None, description="What it came to.")
    progress: AttemptProgress | None = Field(default=None, description="How far it is.")
    checkpoints: AttemptCheckpoints | None = Field(default=None, description="Its checkpoints.")
    timings: AttemptTimings | None = Field(default=None, description="When it came to where.")


def _owner_cell(document: Document, now: datetime) -> str | int:
    owners = document["metadata"].get("ownerReferences", ())
    return f"{owners[0]['kind'].lower()}/{owners[0]['name']}" if owners else NOTHING


def _exit_cell(document: Document, now: datetime) -> str | int:
    status = document.get("status") or {}
    if status.get("signal") is not None:
        return f"signal {status['signal']}"
    code = status.get("exitCode")
    return NOTHING if code is None else str(code)


ATTEMPT = Kind(
    kind="Attempt",
    plural="attempts",
    uid_prefix="att",
    scope=Scope.PROJECT,
    verbs=READ_VERBS,
    description="The life of one worker, from its placement to its end.",
    spec=AttemptSpec,
    status=AttemptStatus,
    columns=(
        NAME_COLUMN,
        Column("Owner", _owner_cell, "What it works for."),
        PHASE_COLUMN,
        REASON_COLUMN,
        Column("Offering", text_at("status.placement.offering"), "What it runs on."),
        AGE_COLUMN,
        Column("Isolation", text_at("status.guarantees.level"), "How far its node confines it.", priority=1),
        Column("Exit", _exit_cell, "What its process exited with, or the signal that ended it.", priority=1),
        Column("Message", text_at("status.message"), "Why it ended, or what it is doing.", priority=1),
    ),
    short_names=("att",),
    selectable_fields=("status.phase", "status.reason"),
    subresources=(Subresource("log", ("get",), "What it printed."),),
    deleting_phase="",
    scope_resource=None,
)
