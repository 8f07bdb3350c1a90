"""Admission: from what a client sent to the object that may be stored.

`machinery/documents.py` judges the body against the kind's models; the kind's strategy adds what needs other state;
here the two are put in order and the server's own metadata is stamped. Everything with I/O happens here, before the
transaction; what must still be true at the commit is checked again there (`resources/mutations.py`, the kinds' hooks).
"""

from __future__ import annotations

import copy
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from controlplane.clock import Clock, format_time
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.principal import Principal
from controlplane.ids import generated_name, new_uid
from controlplane.limits.switches import Switches
from controlplane.machinery.documents import document_for_create, document_for_update
from controlplane.machinery.kind import AdmissionContext, Document, Kind, Scope
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Key
from controlplane.store.finalizers import is_deleting
from controlplane.store.objects import Objects

CREATED_BY = "nodus.dev/created-by"
PROJECT_KIND = "Project"

BlobExists = Callable[[str, str, str], Awaitable[bool]]
"""Whether (org, project, digest) names a blob that was uploaded and verified."""

SecretsHolding = Callable[[str, str, Collection[str]], Awaitable[Mapping[str, tuple[str, str]]]]
"""Which of some texts are values of Secrets of (org, project): by text, the Secret's name and the key."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A new object, complete but for its resourceVersion; `generate_name` is set when the server chose its name."""

    document: Document
    generate_name: str


@dataclass(slots=True)
class ProjectLookup:
    """What strategies ask about one project, each question once a request; found objects must not be changed."""

    org: str
    project: str
    kinds: Mapping[str, Kind]
    cache: ObjectCache
    objects: Objects
    blob_exists_in: BlobExists
    secrets_holding_in: SecretsHolding
    _documents: dict[tuple[str, str], Document | None] = field(default_factory=dict)
    _blobs: dict[str, bool] = field(default_factory=dict)

    async def get(self, kind: str, name: str) -> Document | None:
        """The object: from memory when it is kept there already, else from the database."""
        asked = (kind, name)
        if asked not in self._documents:
            key = Key(kind, self.org, self.project if self.kinds[kind].scope is Scope.PROJECT else "", name)
            read = self.cache.read if self.cache.holds(kind) else self.objects.get_document
            self._documents[asked] = await read(key)
        return self._documents[asked]

    async def blob_exists(self, digest: str) -> bool:
        """Whether the project holds the blob."""
        if digest not in self._blobs:
            self._blobs[digest] = await self.blob_exists_in(self.org, self.project, digest)
        return self._blobs[digest]

    async def secrets_holding(self, texts: Collection[str]) -> Mapping[str, tuple[str, str]]:
        """Which of these texts are values of the project's Secrets."""
        return await self.secrets_holding_in(self.org, self.project, texts)


class Admission:
    """Judges creates and updates of all kinds."""

    def __init__(
        self,
        *,
        kinds: Mapping[str, Kind],
        cache: ObjectCache,
        objects: Objects,
        blob_exists: BlobExists,
        secrets_holding: SecretsHolding,
        switches: Switches,
        clock: Clock,
    ) -> None:
        self._switches = switches
        self._kinds = kinds
        self._cache = cache
        self._objects = objects
        self._blob_exists = blob_exists
        self._secrets_holding = secrets_holding
        self._clock = clock

    def lookup(self, org: str, project: str) -> ProjectLookup:
        """The look-ups of one request; sharing one between the objects of a batch asks each question once."""
        return ProjectLookup(
            org, project, self._kinds, self._cache, self._objects, self._blob_exists, self._secrets_holding
        )

    async def require_project(self, org: str, project: str) -> Document:
        """The Project, or 404 for kind projects."""
        found = await self.lookup(org, "").get(PROJECT_KIND, project)
        if found is None:
            raise not_found(self._kinds[PROJECT_KIND].plural, project)
        return found

    async def create(
        self,
        kind: Kind,
        project: str,
        body: Document,
        caller: Principal,
        lookup: ProjectLookup | None = None,
        *,
        quotable: list[ApiError] | None = None,
        wanting: list[ApiError] | None = None,
    ) -> Admitted:
        """The object that `body` asks for, with defaults, uid, labels and status. Raises what its parts raise, but for
        what goes to `quotable` (`refuse_unoffered`) and, of want of money, to `wanting`."""
        lookup = lookup or self.lookup(caller.org, project)
        if kind.scope is Scope.PROJECT:
            await self._require_open_project(lookup, project)
        if (refusal := self._switches.refusal(kind.kind, kind.plural, caller.org)) is not None:
            if wanting is None or not refusal.is_want:
                raise refusal
            wanting.append(refusal)
        document = document_for_create(kind, body, project=project, quotable=quotable)
        now = self._clock.now()
        metadata = document["metadata"]
        generate_name = "" if metadata.get("name") else metadata["generateName"]
        if generate_name:
            metadata["name"] = generated_name(generate_name)
        metadata["uid"] = new_uid(kind.uid_prefix)
        metadata["generation"] = 1
        metadata["creationTimestamp"] = format_time(now)
        metadata["labels"] = {**metadata.get("labels", {}), CREATED_BY: caller.label}
        await kind.strategy.prepare_create(document, self._context(caller, lookup))
        return Admitted(document, generate_name)

    async def update(
        self, kind: Kind, stored: Document, wanted: Document, caller: Principal, body: Document | None
    ) -> Document:
        """The object that `wanted` makes of `stored`, equal to `stored` when nothing changes; `body` is what the client
        sent, when that is an object."""
        lookup = self.lookup(caller.org, stored["metadata"].get("namespace", ""))
        new = copy.deepcopy(document_for_update(kind, stored, wanted))
        await kind.strategy.prepare_update(stored, new, self._context(caller, lookup, body))
        return new

    def _context(self, caller: Principal, lookup: ProjectLookup, body: Document | None = None) -> AdmissionContext:
        return AdmissionContext(
            org=caller.org,
            project=lookup.project,
            principal=caller.label,
            now=self._clock.now(),
            lookup=lookup,
            caller=caller,
            body=body,
        )

    async def _require_open_project(self, lookup: ProjectLookup, project: str) -> None:
        found = await lookup.get(PROJECT_KIND, project)
        if found is None:
            raise not_found(self._kinds[PROJECT_KIND].plural, project)
        if is_deleting(found):
            raise ApiError(
                Reason.FORBIDDEN,
                f'project "{project}" is being deleted: no new objects may be created in it',
                fix="Use another project, or create this one again once it is gone.",
                subject=(self._kinds[PROJECT_KIND].plural, project),
            )
