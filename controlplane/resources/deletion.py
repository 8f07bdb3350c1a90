"""Deletes, and what must follow them: dependents, finalizers, orphans.

`Deleter.delete` is the verb. The rest is a garbage collector in level-triggered steps: each looks at what is there now
and does what is due, so any may run at any time, twice, or after a crash. They run right after a delete, so that
cascades take milliseconds, and again from the sweeper (`collect`), so that a lost step costs latency and nothing else.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain

import orjson
import structlog

from controlplane.errors import ApiError, Reason, not_found
from controlplane.machinery.kind import GROUP, Kind, Scope
from controlplane.machinery.managed_fields import owners_after_removal, with_managed_fields
from controlplane.resources.answers import Answer, DeleteOptions, Propagation
from controlplane.resources.mutations import HTTP_OK, Delete, Due, RaceLostError, always_due
from controlplane.store import finalizers
from controlplane.store.batch import owner_uids
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.garbage import Garbage, Owned, Unchanged
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.rehearsal import Rehearsal
from controlplane.store.writer import Writer

log = structlog.get_logger("resources")

RACES_MAX = 8
"""Namesakes met before a delete is given up as a Conflict: each was created and deleted between a read and a commit, a
matter of milliseconds, so more of them are a client that does nothing else."""
DEPENDENTS_MAX = 500
"""Dependents handled in one step, as many as a page has objects: they share few commits, and the documents that these
hold stay few as well. The next step takes the rest."""
STEPS_MAX = 100
"""Steps a cascade may take before it leaves the rest to the sweeper: its client waits for them, and an App with its
Functions and their workers needs some ten."""

SUCCESS: Document = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}
"""What every delete answers that left nothing; the rest says what it was."""


class Release:
    """Takes one finalizer off an object and removes the object if that was the last; answers its owners' uids."""

    def __init__(self, key: Key, finalizer: str, hooks: KindHooks) -> None:
        self._key = key
        self._finalizer = finalizer
        self._hooks = hooks

    def reads(self) -> Reads:
        reads = self._hooks.reads_delete(self._key)
        return Reads(keys=(self._key, *reads.keys), loads=reads.loads)

    def apply(self, tx: Tx) -> Document | None:
        """The object that went, or None while it stays (or went before)."""
        current = tx.get(self._key)
        if current is None:
            return None
        released = finalizers.without_finalizer(current, self._finalizer)
        if finalizers.settle(tx, self._key, released) is not None:
            return None
        self._hooks.removed(tx, self._key, released)
        return released


class Disown:
    """Takes the references to one owner off an object, for deletes that orphan and for objects that another owns too.

    `last` says whether the only owner may be taken off. Where it may not, an object that lost its other owners
    meanwhile keeps this one, by which the next step finds it.
    """

    def __init__(self, kind: Kind, key: Key, owner_uid: str, *, last: bool) -> None:
        self._kind = kind
        self._key = key
        self._owner_uid = owner_uid
        self._last = last

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> None:
        current = tx.get(self._key)
        if current is None:
            return
        metadata = dict(current["metadata"])
        owners = [owner for owner in metadata.pop("ownerReferences", ()) if owner["uid"] != self._owner_uid]
        if not owners and not self._last:
            return
        if owners:
            metadata["ownerReferences"] = owners
        new = {**current, "metadata": metadata}
        tx.put(self._key, with_managed_fields(new, owners_after_removal(self._kind, current, new)))


@dataclass(frozen=True, slots=True)
class OwnerGone:
    """Work of a cascade: whatever this uid alone owned has no owner left."""

    uid: str


Work = Key | OwnerGone
"""One item of a cascade; a key means: look whether something is due for this deleting object."""


class Deleter:
    """Deletes objects and finishes deletions."""

    def __init__(
        self,
        *,
        writer: Writer,
        objects: Objects,
        garbage: Garbage,
        kinds: Mapping[str, Kind],
        hooks: Mapping[str, KindHooks],
    ) -> None:
        self._writer = writer
        self._objects = objects
        self._garbage = garbage
        self._kinds = kinds
        self._hooks = hooks
        self._collected_upto: dict[str, Key] = {}
        """By kind, the last object that the collector looked at; the next pass goes on behind it."""

    async def delete(self, key: Key, options: DeleteOptions) -> Answer:
        """Delete the object; answers it as it stays for its finalizers, or the Status that tells it is gone."""
        kind = self._kinds[key.kind]
        base, stored = await self._mark(key, options)
        if not options.dry_run:
            await self._cascade(self._after(key, base, stored, options.propagation))
        if stored is None:
            return Answer(HTTP_OK, _gone(kind, base))
        return Answer(HTTP_OK, orjson.dumps(stored))

    async def forget(self, unchanged: Sequence[Unchanged]) -> None:
        """Delete objects whose time is over, in shared commits; one that was replaced or changed hands meanwhile stays.

        What owns nothing needs no look before its delete and no cascade after it, which is what most of a delete costs.
        """
        await asyncio.gather(*(self._forget_one(found) for found in unchanged))

    async def _forget_one(self, found: Unchanged) -> None:
        key = found.key
        try:
            if found.has_dependents:
                await self.delete(key, DeleteOptions(uid=found.uid))
                return
            base = {"metadata": {"uid": found.uid}}
            mutation = Delete(
                self._kinds[key.kind], key, base, self._hooks[key.kind], DeleteOptions(), has_dependents=False
            )
            await self._writer.write(mutation)
        except ApiError as error:
            # It is gone, or another one has its name now.
            if error.reason not in (Reason.NOT_FOUND, Reason.CONFLICT):
                raise

    async def release(self, key: Key, finalizer: str) -> None:
        """Take `finalizer` off the object and do what its going makes possible; a controller calls this when done."""
        await self._cascade(await self._release(key, finalizer))

    async def collect(self) -> int:
        """One pass of the garbage collector; returns how many objects it looked at.

        Of each kind it takes the next objects that are being deleted, in the order of their keys and round again: many
        may wait for something that is not here, and must not hide the others.
        """
        work: list[Work] = []
        for kind in self._kinds:
            found = await self._objects.deleting(kind, self._collected_upto.pop(kind, None), DEPENDENTS_MAX)
            if len(found) == DEPENDENTS_MAX:
                self._collected_upto[kind] = found[-1]
            work += found
        orphans = await self._garbage.orphaned(DEPENDENTS_MAX)
        work += await self._delete_owned(orphans, Propagation.BACKGROUND)
        # Every object that was found gets its step.
        await self._cascade(work, len(work) + STEPS_MAX)
        return len(work) + len(orphans)

    async def delete_found(self, found: Mapping[Key, Due], options: DeleteOptions) -> int:
        """Delete those of these objects that are still due, in shared commits, and what must follow; returns how many
        were found so."""
        deleted = await asyncio.gather(*(self._delete_one(key, options, due) for key, due in found.items()))
        await self._cascade(dict.fromkeys(chain.from_iterable(work for work in deleted if work is not None)))
        return sum(work is not None for work in deleted)

    async def _mark(self, key: Key, options: DeleteOptions, due: Due = always_due) -> tuple[Document, Document | None]:
        """The object before, and after the delete; again when it was replaced by a namesake meanwhile. NotFound when
        it is not due any more."""
        kind = self._kinds[key.kind]
        for _ in range(RACES_MAX):
            base = await self._objects.get_document(key)
            if base is None:
                raise not_found(kind.plural, key.name)
            has_dependents = bool(await self._objects.owned_by(base["metadata"]["uid"], 1))
            hooks = self._hooks[key.kind]
            mutation = Delete(kind, key, base, hooks, options, has_dependents=has_dependents, due=due)
            try:
                return base, await self._writer.write(Rehearsal(mutation) if options.dry_run else mutation)
            except RaceLostError:
                continue
        raise RaceLostError(kind, key.name)

    async def _cascade(self, work: Iterable[Work], steps_max: int | None = None) -> None:
        """Take the steps that are due; a fault here is not the deleting client's, the sweeper repeats them."""
        queue = deque(work)
        for _ in range(STEPS_MAX if steps_max is None else steps_max):
            if not queue:
                return
            item = queue.popleft()
            try:
                queue.extend(await self._advance(item))
            except ApiError as error:
                log.warning("a cascade was left to the sweeper", item=repr(item), error=error.message)
                return

    async def _advance(self, item: Work) -> list[Work]:
        """Do what is due for one item; returns what may have become due by it."""
        if isinstance(item, OwnerGone):
            orphans = await self._garbage.orphaned_by(item.uid, DEPENDENTS_MAX)
            work = await self._delete_owned(orphans, Propagation.BACKGROUND)
            return [*work, item] if orphans else []
        document = await self._objects.get_document(item)
        if document is None or not finalizers.is_deleting(document):
            return []
        held_by = finalizers.finalizers(document)
        own = self._kinds[item.kind].deletion_finalizer
        if finalizers.ORPHAN in held_by:
            return await self._orphan_dependents(item, document)
        if finalizers.CONTENTS in held_by:
            return await self._empty_project(item)
        if own and own in held_by:
            # Its controller comes first: workers must stop before their records go.
            return []
        if finalizers.FOREGROUND in held_by:
            return await self._delete_dependents(item, document)
        return [] if held_by else await self._release(item, "")

    async def _orphan_dependents(self, key: Key, document: Document) -> list[Work]:
        uid = document["metadata"]["uid"]
        dependents = await self._objects.owned_by(uid, DEPENDENTS_MAX)
        if not dependents:
            return await self._release(key, finalizers.ORPHAN)
        await asyncio.gather(
            *(self._writer.write(Disown(self._kinds[found.kind], found, uid, last=True)) for found in dependents)
        )
        return [key]

    async def _delete_dependents(self, key: Key, document: Document) -> list[Work]:
        """Delete what this object owns, but let others keep what they own too; it goes when nothing blocks it.

        As in Kubernetes, only dependents that say `blockOwnerDeletion` are waited for, as the server's own all do.
        """
        uid = document["metadata"]["uid"]
        found = await self._garbage.untouched(uid, DEPENDENTS_MAX)
        if found:
            shared = [dependent.key for dependent in found if dependent.shared]
            await asyncio.gather(
                *(self._writer.write(Disown(self._kinds[each.kind], each, uid, last=False)) for each in shared)
            )
            alone = (dependent for dependent in found if not dependent.shared)
            return [*await self._delete_owned(alone, Propagation.FOREGROUND), key]
        if await self._garbage.is_blocked(uid):
            return []
        return await self._release(key, finalizers.FOREGROUND)

    async def _empty_project(self, key: Key) -> list[Work]:
        """Delete everything in a project that is going; it goes when nothing is left."""
        contents = await self._garbage.contents(key.org, key.name, DEPENDENTS_MAX)
        if not contents and await self._garbage.forget_blobs(key.org, key.name):
            return [key]
        if not contents:
            return await self._release(key, finalizers.CONTENTS)
        remaining = {found: always_due for found, deleting in contents if not deleting}
        work = await self._delete_all(remaining, Propagation.BACKGROUND)
        return [*work, key] if work else []

    async def _delete_owned(self, found: Iterable[Owned], propagation: Propagation) -> list[Work]:
        """Delete these objects unless others own them by now."""
        return await self._delete_all({each.key: partial(_has_owners, each.owners) for each in found}, propagation)

    async def _delete_all(self, found: Mapping[Key, Due], propagation: Propagation) -> list[Work]:
        """Delete these objects in shared commits; returns what may have become due."""
        options = DeleteOptions(propagation=propagation)
        work = await asyncio.gather(*(self._delete_one(key, options, due) for key, due in found.items()))
        return list(dict.fromkeys(chain.from_iterable(each or () for each in work)))

    async def _delete_one(self, key: Key, options: DeleteOptions, due: Due) -> list[Work] | None:
        """What may have become due by the delete; None when the object was gone, or not due any more."""
        try:
            base, stored = await self._mark(key, options, due)
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                return None
            raise
        if options.dry_run or finalizers.is_deleting(base):
            # It is on its way already and may be looked at by whoever sent it there.
            return []
        return self._after(key, base, stored, options.propagation)

    async def _release(self, key: Key, finalizer: str) -> list[Work]:
        gone = await self._writer.write(Release(key, finalizer, self._hooks[key.kind]))
        # What stays has another finalizer, which may be due now that this one is off.
        return [key] if gone is None else self._after(key, gone, None, Propagation.BACKGROUND)

    def _after(self, key: Key, before: Document, stored: Document | None, propagation: Propagation) -> list[Work]:
        """What a delete makes due: the object itself while it stays; else its dependents and its waiting owners."""
        if stored is not None:
            return [key]
        metadata = before["metadata"]
        work: list[Work] = [] if propagation is Propagation.ORPHAN else [OwnerGone(metadata["uid"])]
        for reference in metadata.get("ownerReferences", ()):
            kind = self._kinds.get(reference["kind"])
            if kind is not None:
                project = key.project if kind.scope is Scope.PROJECT else ""
                work.append(Key(kind.kind, key.org, project, reference["name"]))
        return work


def _has_owners(owners: frozenset[str], current: Document) -> bool:
    """Whether the object has the owners still for whose end it was chosen."""
    return owners == set(owner_uids(current["metadata"]))


def _gone(kind: Kind, document: Document) -> bytes:
    """The Status of a delete that left nothing (R-DEL-1)."""
    metadata = document["metadata"]
    details = {"name": metadata["name"], "group": GROUP, "kind": kind.plural, "uid": metadata["uid"]}
    return orjson.dumps({**SUCCESS, "details": details})
