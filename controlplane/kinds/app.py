"""The App kind: what groups the Functions and Secrets of one program.

`nodus run` makes an ephemeral App, which lives as long as its client renews it; `nodus deploy` makes one that stays and
counts its versions. What an App owns goes with it. Its members and expiry are looked after in `controlplane/apps.py`.
"""

from __future__ import annotations

from pydantic import Field

from controlplane.clock import format_time
from controlplane.errors import Cause, invalid
from controlplane.kinds.references import BlobReference, digest_of
from controlplane.machinery.conditions import Condition, Conditions, with_condition
from controlplane.machinery.documents import value_at
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Column, Document, Kind, Scope, Subresource
from controlplane.machinery.meta import LAST_APPLIED
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import NOT_FOUND
from controlplane.machinery.quantities import Time
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, PHASE_COLUMN, text_at


class AppSource(ApiModel):
    """The source of an App."""

    blob: BlobReference | None = Field(default=None, description="A tar.gz of the source, as a blob of the project.")


class AppSpec(ApiModel):
    """What a client declares about an App."""

    ephemeral: bool = Field(default=False, description="Whether it lives only while it is renewed.")
    renew_time: Time | None = Field(
        default=None, description="When the client last renewed it; two minutes of silence end an ephemeral App."
    )
    source: AppSource | None = Field(default=None, description="Its source.")
    description: str | None = Field(default=None, max_length=1_024, description="A note for people.")


class AppMembers(ApiModel):
    """The members of an App, counted."""

    functions: int = Field(description="Functions.")
    agents: int = Field(description="Agents.")
    ready: int = Field(description="Members that take work.")


class AppStatus(ApiModel):
    """What the server observed about an App."""

    phase: str | None = Field(default=None, description="Pending, Ready, Failed or Terminating.")
    message: str | None = Field(default=None, description="Why it is in that phase.")
    conditions: Conditions | None = Field(default=None, description="Ready.")
    observed_generation: int | None = Field(default=None, description="The generation this status speaks of.")
    version: int | None = Field(default=None, description="Counts the deploys.")
    deploy_time: str | None = Field(default=None, description="When it was last deployed.")
    members: AppMembers | None = Field(default=None, description="Its members.")


class AppStrategy:
    """What Apps add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        await _check_source(None, document, context)
        ready = Condition("Ready", "True", "MembersReady", "every member takes work", 1)
        document["status"] = {
            "phase": "Ready",
            "conditions": with_condition([], ready, context.now),
            "observedGeneration": 1,
            "version": 1,
            "deployTime": format_time(context.now),
            "members": {"functions": 0, "agents": 0, "ready": 0},
        }

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        await _check_source(old, new, context)
        new["status"] = {**new["status"], "observedGeneration": new["metadata"]["generation"]}
        if not new["spec"]["ephemeral"] and _is_deploy(old, new, context.body):
            version = value_at(old, "status.version") or 0
            new["status"] = {**new["status"], "version": version + 1, "deployTime": format_time(context.now)}


def _is_deploy(old: Document, new: Document, body: Document | None) -> bool:
    """Whether a write is a deploy: it changes the source or description, or brings the applied manifest again.

    A deploy of unchanged source brings it too, and counts.
    """
    changed = any(value_at(old, path) != value_at(new, path) for path in ("spec.source", "spec.description"))
    manifest = [document["metadata"].get("annotations", {}).get(LAST_APPLIED) for document in (old, new)]
    sent = value_at(body, "metadata.annotations") if body is not None else None
    return changed or manifest[0] != manifest[1] or (isinstance(sent, dict) and bool(sent.get(LAST_APPLIED)))


async def _check_source(old: Document | None, new: Document, context: AdmissionContext) -> None:
    blob = value_at(new, "spec.source.blob")
    if blob is None or (old is not None and blob == value_at(old, "spec.source.blob")):
        return
    if not await context.lookup.blob_exists(digest_of(blob)):
        told = f'must name a blob that was uploaded to the project; "{blob}" does not exist'
        raise invalid(APP.plural, new["metadata"].get("name", ""), [Cause("spec.source.blob", told, NOT_FOUND)])


APP = Kind(
    kind="App",
    plural="apps",
    uid_prefix="app",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="A program: its Functions and Secrets, deployed and deleted together.",
    spec=AppSpec,
    status=AppStatus,
    columns=(
        NAME_COLUMN,
        PHASE_COLUMN,
        Column("Version", text_at("status.version", 0), "Counts the deploys.", type="integer"),
        Column("Members", text_at("status.members.functions", 0), "Its Functions.", type="integer"),
        Column("Ready", text_at("status.members.ready", 0), "Members that take work.", type="integer"),
        Column("Ephemeral", text_at("spec.ephemeral"), "Whether it ends with its client."),
        AGE_COLUMN,
    ),
    short_names=("app",),
    selectable_fields=("spec.ephemeral", "status.phase"),
    immutable_fields=("spec.ephemeral",),
    quiet_fields=("spec.renewTime",),
    subresources=(Subresource("log", ("get",), "What the workers of all members printed."),),
    strategy=AppStrategy(),
    scope_resource="apps",
)
