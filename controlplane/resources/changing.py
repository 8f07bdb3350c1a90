"""Replaces and patches: read the object, apply the change, judge the result, write it if the copy was still true.

A request that names a `resourceVersion` loses against any other write, as optimistic locking demands. One that names
none means "whatever it is now": when somebody was faster the change is applied again to the newer object.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime

from controlplane.admission import Admission
from controlplane.errors import not_found
from controlplane.estimates.estimator import FUNCTION_KIND, Estimator
from controlplane.identity.principal import Principal
from controlplane.machinery.apply import Apply
from controlplane.machinery.kind import Kind
from controlplane.machinery.managed_fields import STATUS, Manager, after_update
from controlplane.machinery.statuses import document_for_status
from controlplane.resources.answers import Answer
from controlplane.resources.mutations import RaceLostError, Update
from controlplane.store.contract import Document, Key
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.rehearsal import Rehearsal
from controlplane.store.writer import Writer

RACES_MAX = 8
"""Lost races before a change without a resourceVersion is given up as a Conflict."""

Produce = Callable[[Document], Document]
"""From the stored object, which it must leave as it is, to the object the client wants."""


class Changer:
    """The verbs that change an object."""

    def __init__(
        self,
        *,
        writer: Writer,
        objects: Objects,
        admission: Admission,
        kinds: Mapping[str, Kind],
        hooks: Mapping[str, KindHooks],
        estimator: Estimator,
    ) -> None:
        self._writer = writer
        self._objects = objects
        self._admission = admission
        self._kinds = kinds
        self._hooks = hooks
        self._estimator = estimator

    async def change(
        self,
        key: Key,
        produce: Produce,
        caller: Principal,
        *,
        body: Document | None,
        dry_run: bool,
        manager: Manager | None = None,
    ) -> Answer:
        """Store what `produce` makes of the object and answer it; nothing is written when nothing differs.

        `body` is what the client sent when that is an object (a merge patch, a replacement): an App counts deploys by
        it. `manager` becomes the owner of what changes, in the subresource it names; without one nobody does.
        Raises NotFound, Conflict for a stale resourceVersion, FieldImmutable, Invalid, and what `produce` raises.
        """
        kind, hooks = self._kinds[key.kind], self._hooks[key.kind]

        async def attempt(stored: Document) -> Update:
            wanted = _current(kind, stored, produce(hooks.editable(stored)))
            new = await self._judged(kind, key, stored, wanted, caller, body, manager.subresource if manager else "")
            if manager is None:
                return Update(kind, key, stored, new, hooks)
            owner = manager

            def owners(live: Document, compared: Document, now: datetime) -> list[Document]:
                return after_update(kind, live, wanted, compared, owner, now)

            return Update(kind, key, stored, new, hooks, owners)

        return await self._repeat(key, attempt, dry_run=dry_run)

    async def apply(self, key: Key, apply: Apply, caller: Principal, *, dry_run: bool) -> Answer:
        """Apply to the object as it is. Raises what `change` raises, and Conflict for fields of another manager."""
        kind, hooks = self._kinds[key.kind], self._hooks[key.kind]

        async def attempt(stored: Document) -> Update:
            wanted = _current(kind, stored, apply.wanted(hooks.editable(stored)))
            new = await self._judged(kind, key, stored, wanted, caller, apply.config, apply.manager.subresource)
            return Update(kind, key, stored, new, hooks, apply.owners, claims=True)

        return await self._repeat(key, attempt, dry_run=dry_run)

    async def _judged(
        self,
        kind: Kind,
        key: Key,
        stored: Document,
        wanted: Document,
        caller: Principal,
        body: Document | None,
        subresource: str,
    ) -> Document:
        """The new object: `wanted` outside the status, or in the status alone."""
        if subresource == STATUS:
            return document_for_status(kind, stored, wanted)
        new = await self._admission.update(kind, stored, wanted, caller, body)
        if kind.kind != FUNCTION_KIND or new["spec"] == stored["spec"]:
            return new
        # What the old spec would have cost says nothing about the new one.
        quote = await self._estimator.quote(key, new)
        return new if quote is None else {**new, "status": {**new["status"], "estimate": quote.estimate}}

    async def _repeat(self, key: Key, attempt: Callable[[Document], Awaitable[Update]], *, dry_run: bool) -> Answer:
        """Write what `attempt` makes of the stored object; again when somebody else wrote meanwhile."""
        kind = self._kinds[key.kind]
        for _ in range(RACES_MAX):
            stored = await self._objects.get_document(key)
            if stored is None:
                raise not_found(kind.plural, key.name)
            update = await attempt(stored)
            try:
                return await self._writer.write(Rehearsal(update) if dry_run else update)
            except RaceLostError:
                continue
        raise RaceLostError(kind, key.name)


def _current(kind: Kind, stored: Document, wanted: Document) -> Document:
    """`wanted`, unless it names another version of the object than the stored one."""
    if _version(wanted) not in ("", _version(stored)):
        raise RaceLostError(kind, stored["metadata"]["name"])
    return wanted


def _version(document: Document) -> str:
    """The resourceVersion a document carries, or "" when it carries none."""
    metadata = document.get("metadata")
    version = metadata.get("resourceVersion") if isinstance(metadata, dict) else None
    return "" if version is None else str(version)
