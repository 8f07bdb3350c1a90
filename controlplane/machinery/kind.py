"""What one row of the table of kinds contains.

A `Kind` is data: names, scope, verbs, models, columns, selectable fields and a `Strategy` for what only this kind
needs. Routes, discovery, OpenAPI, tables, selectors, admission and scopes are derived from it, so adding a kind adds a
row and no handler. The rows live in `controlplane/kinds/`; the list is `controlplane/kinds/registry.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from functools import cached_property
from typing import Any, Protocol

from controlplane.machinery.model import ApiModel

GROUP = "nodus.dev"
VERSION = "v1"
API_VERSION = f"{GROUP}/{VERSION}"
SCALE_GROUP = "autoscaling"
SCALE_KIND = "Scale"
SCALE_API_VERSION = f"{SCALE_GROUP}/v1"

Document = dict[str, Any]
SettlingJudge = Callable[[Document, datetime], bool]
"""See `Kind.is_settling`."""


class Scope(Enum):
    """Whether objects live in a project or belong to the whole organisation."""

    PROJECT = "project"
    ORG = "org"


class Verb(Enum):
    """What clients may do to a kind; discovery lists these words."""

    CREATE = "create"
    GET = "get"
    LIST = "list"
    WATCH = "watch"
    PATCH = "patch"
    UPDATE = "update"
    DELETE = "delete"
    DELETE_COLLECTION = "deletecollection"


ALL_VERBS = frozenset(Verb)
READ_VERBS = frozenset({Verb.GET, Verb.LIST, Verb.WATCH})


@dataclass(frozen=True)
class Column:
    """A printer column: its cell is `read(document, now)`. Priority 0 always shows, 1 shows with `-o wide`."""

    name: str
    read: Callable[[Document, datetime], str | int]
    description: str
    type: str = "string"
    format: str = ""
    priority: int = 0


class Lookup(Protocol):
    """What admission may ask about the rest of the project while it judges one object."""

    async def get(self, kind: str, name: str) -> Document | None:
        """The object of that kind and name in the same project (or organisation), or None."""

    async def blob_exists(self, digest: str) -> bool:
        """Whether the project holds the blob with this 64-digit hex digest."""

    async def secrets_holding(self, texts: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Which of these texts are values of the project's Secrets: by text, the Secret's name and the key."""


class Caller(Protocol):
    """Who asks, as far as admission judges it (`identity/principal.py`)."""

    @property
    def user_uuid(self) -> str | None:
        """The person behind the credential, None for one that is nobody's."""

    @property
    def role(self) -> str | None:
        """The person's role in the organisation."""

    @property
    def scopes(self) -> frozenset[str]:
        """What the credential may do."""

    @property
    def projects(self) -> frozenset[str]:
        """Where, or `*`."""


@dataclass(frozen=True, kw_only=True)
class AdmissionContext:
    """Who asks, where and when, and what may be looked up."""

    org: str
    project: str
    principal: str
    now: datetime
    lookup: Lookup
    caller: Caller | None = None
    """Whose scopes bound what may be given to others; None for the server itself."""
    body: Document | None = None
    """What the client sent for an update: a merge patch, or the whole object. None when it cannot be told."""


class Strategy(Protocol):
    """What a kind adds to the generic verbs. All methods may change `document` in place and raise ApiError."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        """Default from other state, stamp labels and owners, initialise `status`; the spec is already validated."""

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        """Judge a change of spec or metadata; `new.status` equals the stored status."""


class PlainStrategy:
    """The strategy of kinds that need nothing beyond their models: status starts with no conditions."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        document["status"] = {"conditions": []}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        return None


@dataclass(frozen=True)
class Subresource:
    """Something served below an object (`functions/log`): its verbs, and the kind of what it takes or gives."""

    name: str
    verbs: tuple[str, ...]
    description: str
    kind: str = ""
    """Empty means the kind of the object itself."""
    group: str = ""
    """Of `kind`; empty means the group of the object's kind."""
    scope: str = ""
    """The scope that its route asks for; empty means the read or write scope of the object's kind."""
    status: type[ApiModel] | None = None
    """The model of the status of `kind`, when that is a kind of its own that is served only here."""


_WRITABLE = ("get", "patch", "update")
_STATUS_READ = Subresource("status", ("get",), "The object; its status is written by the server.")
_STATUS = Subresource("status", _WRITABLE, "The object; clients may add conditions of their own to its status.")
_SCALE = Subresource("scale", _WRITABLE, "How many replicas are wanted.", SCALE_KIND, SCALE_GROUP)


@dataclass(frozen=True)
class ScalePaths:
    """Where an object keeps what `autoscaling/v1` calls replicas: dotted paths of a wanted and an observed count."""

    wanted: str
    observed: str


@dataclass(frozen=True)
class Unoffered:
    """A part of a valid spec that this deployment does not offer (422 Unsupported).

    `is_used` looks at a canonical spec; `field` names the part (`spec.volumes`), `advice` what to do instead.
    """

    field: str
    is_used: Callable[[Document], bool]
    advice: str
    has_price: bool = False
    """Whether a price book may price it, so that a rehearsal tells what it would cost beside the refusal."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Kind:
    """One row of the table of kinds. A row equals only itself, so what is derived from one is found quickly."""

    kind: str
    plural: str
    api_version: str = API_VERSION
    uid_prefix: str
    scope: Scope
    verbs: frozenset[Verb]
    description: str
    spec: type[ApiModel] | None
    """The model of `spec`, or None for kinds whose fields are top-level (Event)."""
    status: type[ApiModel] | None
    flat: type[ApiModel] | None = None
    """The model of the top-level fields of a kind that has neither spec nor status (Event)."""
    columns: tuple[Column, ...]
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ("nodus",)
    selectable_fields: tuple[str, ...] = ()
    """Dotted paths beyond metadata.name and metadata.namespace that field selectors may use; they go to SQL columns."""
    labelled_fields: Mapping[str, str] = field(default_factory=dict)
    """Selectable fields that the server repeats as a label of its own, so that one index answers both."""
    immutable_fields: tuple[str, ...] = ()
    """Paths under `spec.` that no update may change (409 FieldImmutable); an update that leaves one out keeps it."""
    quiet_fields: tuple[str, ...] = ()
    """Fields of `spec.` whose change alone is no new generation (an App's renewals)."""
    owners_from_first_apply: bool = False
    """Whether `managedFields` begin with the first server-side apply and not with the create: for kinds whose objects
    are made by programs all day and hardly ever shared (FunctionCall)."""
    unoffered: tuple[Unoffered, ...] = ()
    """What the specs may say but this deployment refuses."""
    subresources: tuple[Subresource, ...] = ()
    """What is served below its objects beyond `status` and `scale`."""
    scale: ScalePaths | None = None
    """Set for kinds that `kubectl scale` can scale."""
    deletion_finalizer: str = ""
    """Left on an object when its delete is asked, until a controller cleaned up after it."""
    deleting_phase: str = "Terminating"
    """The phase of an object whose delete waits for something; "" for kinds whose phase is the course of a run."""
    is_settling: SettlingJudge | None = None
    """Whether an object will soon be as its reader waits to see it: a read then gives it `settling_seconds`, so that
    the reader need not open a watch for it (decision 0016)."""
    forgotten: str = ""
    """What to say where one is asked for that is not there, for kinds whose objects go by themselves; `{days}` stands
    for how long finished ones are kept."""
    shorthand: Callable[[Document], Document] | None = None
    """Turns what a client of ours sends in short into an object (`nodus create invite`); objects it leaves alone."""
    strategy: Strategy = field(default_factory=PlainStrategy)
    project_field: str = "metadata.namespace"
    """The selectable field that names the project an object belongs to, or for a kind of the organisation is about.
    A key that is limited to projects sees and changes only objects of these. Empty for what is about no project
    and shown to every key."""
    verbs_of_all_projects: frozenset[Verb] = frozenset()
    """Verbs that a credential for some projects may not use, because they reach beyond any project."""
    scope_to_change: Callable[[Document, Caller], str] | None = None
    """The scope that a change or delete of this object needs beyond its kind's, or "" (an Owner, another's key)."""
    scope_resource: str | None = None
    """The word of the scope grammar (`functions:read`); None means any valid key of the organisation may read."""

    @property
    def singular(self) -> str:
        return self.kind.lower()

    @property
    def group(self) -> str:
        """The group of its version; empty for core/v1."""
        return self.api_version.rpartition("/")[0]

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def is_project(self) -> bool:
        """Whether its objects are the projects themselves, whose name is the project they are about."""
        return self.project_field == "metadata.name"

    @property
    def served_subresources(self) -> tuple[Subresource, ...]:
        """All subresources, as discovery and OpenAPI list them."""
        status = () if self.status is None else (_STATUS if self.takes_conditions else _STATUS_READ,)
        return status + ((_SCALE,) if self.scale else ()) + self.subresources

    @property
    def takes_conditions(self) -> bool:
        """Whether clients may write conditions of their own into the status."""
        return self.status is not None and "conditions" in self.status.model_fields and Verb.PATCH in self.verbs

    @cached_property
    def selectable_paths(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Each selectable field with the steps that lead to it in a document, split once because writes are hot."""
        return tuple((path, tuple(path.split("."))) for path in self.selectable_fields)
