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
from itertools import chain

import orjson
import structlog

from controlplane.errors import ApiError, Reason, not_found
from controlplane.machinery.kind import GROUP, Kind, Scope
from controlplane.machinery.managed_fields import owners_after_removal, with_managed_fields
from controlplane.resources.answers import Answer, DeleteOptions, Propagation
from controlplane.resources.mutations import HTTP_OK, Delete, RaceLostError
from controlplane.store import finalizers
from controlplane.store.contract import Document, Key, Reads, Selection, Tx
from controlplane.store.garbage import Garbage, Unchanged
from controlplane.store.hooks import KindHooks
from controlplane.store.objects import Objects
from controlplane.store.rehearsal import Rehearsal
from controlplane.store.writer import Writer

log = structlog.get_logger("resources")

RACES_MAX = 8
"""Lost races before a delete is given up as a Conflict."""
DEPENDENTS_MAX = 500
"""Dependents handled in one step; the next step takes the rest."""
PAGE_BYTES_MAX = 8 << 20
"""Objects read at once to delete a collection."""
STEPS_MAX = 100
"""Steps a cascade may take before it leaves the rest to the sweeper."""


_SUCCESS = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}


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
    """Takes the references to one owner off an object, for deletes that orphan."""

    def __init__(self, kind: Kind, key: Key, owner_uid: str) -> None:
        self._kind = kind
        self._key = key
        self._owner_uid = owner_uid

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> None:
        current = tx.get(self._key)
        if current is None:
            return
        metadata = dict(current["metadata"])
        owners = [owner for owner in metadata.pop("ownerReferences", ()) if owner["uid"] != self._owner_uid]
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

    async def delete(self, key: Key, options: DeleteOptions) -> Answer:
        """Delete the object; answers it as it stays for its finalizers, or the Status that tells it is gone."""
        kind = self._kinds[key.kind]
        base, stored = await self._mark(key, options)
        if not options.dry_run:
            await self._cascade(self._after(key, base, stored, options.propagation))
        if stored is None:
            return Answer(HTTP_OK, _gone(kind, base))
        return Answer(HTTP_OK, orjson.dumps(stored))

    async def delete_collection(self, selection: Selection, options: DeleteOptions) -> Answer:
        """Delete every object of the selection as it is now, in commits of bounded size; answers how many they were."""
        after, at_rv, count = None, None, 0
        while True:
            page = await self._objects.list_page(
                selection, limit=DEPENDENTS_MAX, bytes_max=PAGE_BYTES_MAX, after=after, at_rv=at_rv
            )
            keys = [_key_of(selection, orjson.loads(document)) for document in page.documents]
            found = await asyncio.gather(*(self._delete_one(key, options) for key in keys))
            await self._cascade(chain.from_iterable(found))
            count += len(keys)
            if page.next_key is None:
                return Answer(HTTP_OK, orjson.dumps({**_SUCCESS, "details": {"group": GROUP, "count": count}}))
            after, at_rv = page.next_key, page.rv

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
        """One pass of the garbage collector over everything; returns how many objects it looked at."""
        work: list[Work] = []
        for kind in self._kinds:
            work += await self._objects.deleting(kind, DEPENDENTS_MAX)
        orphans = await self._garbage.orphaned(DEPENDENTS_MAX)
        work += await self._delete_all(orphans, Propagation.BACKGROUND)
        # Every object that was found gets its step: many may wait for something else, and must not hide the others.
        await self._cascade(work, len(work) + STEPS_MAX)
        return len(work) + len(orphans)

    async def _mark(self, key: Key, options: DeleteOptions) -> tuple[Document, Document | None]:
        """The object before, and after the delete; again when it was replaced by a namesake meanwhile."""
        kind = self._kinds[key.kind]
        for _ in range(RACES_MAX):
            base = await self._objects.get_document(key)
            if base is None:
                raise not_found(kind.plural, key.name)
            dependents = await self._objects.owned_by(base["metadata"]["uid"], 1)
            mutation = Delete(kind, key, base, self._hooks[key.kind], options, has_dependents=bool(dependents))
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
            work = await self._delete_all(orphans, Propagation.BACKGROUND)
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
            *(self._writer.write(Disown(self._kinds[dependent.kind], dependent, uid)) for dependent in dependents)
        )
        return [key]

    async def _delete_dependents(self, key: Key, document: Document) -> list[Work]:
        dependents = await self._objects.owned_by(document["metadata"]["uid"], DEPENDENTS_MAX)
        if not dependents:
            return await self._release(key, finalizers.FOREGROUND)
        return await self._delete_all(dependents, Propagation.FOREGROUND)

    async def _empty_project(self, key: Key) -> list[Work]:
        """Delete everything in a project that is going; it goes when nothing is left."""
        contents = await self._garbage.contents(key.org, key.name, DEPENDENTS_MAX)
        if not contents and await self._garbage.forget_blobs(key.org, key.name):
            return [key]
        if not contents:
            return await self._release(key, finalizers.CONTENTS)
        work = await self._delete_all((found for found, deleting in contents if not deleting), Propagation.BACKGROUND)
        return [*work, key] if work else []

    async def _delete_all(self, keys: Iterable[Key], propagation: Propagation) -> list[Work]:
        """Delete these objects in shared commits; returns what may have become due."""
        options = DeleteOptions(propagation=propagation)
        found = await asyncio.gather(*(self._delete_one(key, options) for key in keys))
        return list(dict.fromkeys(chain.from_iterable(found)))

    async def _delete_one(self, key: Key, options: DeleteOptions) -> list[Work]:
        try:
            base, stored = await self._mark(key, options)
        except ApiError as error:
            if error.reason is Reason.NOT_FOUND:
                return []
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


def _key_of(selection: Selection, document: Document) -> Key:
    metadata = document["metadata"]
    return Key(selection.kind, selection.org, metadata.get("namespace", ""), metadata["name"])


def _gone(kind: Kind, document: Document) -> bytes:
    """The Status of a delete that left nothing (R-DEL-1)."""
    metadata = document["metadata"]
    details = {"name": metadata["name"], "group": GROUP, "kind": kind.plural, "uid": metadata["uid"]}
    return orjson.dumps({**_SUCCESS, "details": details})
