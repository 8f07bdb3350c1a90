"""Slow-moving objects in memory: what every call needs to know about its Function, App, Project and Secrets.

Filled once at start and kept current by the change feed, so creating or claiming a call reads no SQL for them. It may
lag by the few milliseconds the feed does; whoever must be exact names the key among a mutation's reads.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, ChangeType, Document, Key
from controlplane.store.database import Database

LOAD = "SELECT kind, org, project, name, doc FROM objects WHERE kind = ANY($1::text[])"


class ObjectCache:
    """The current documents of some kinds. Documents are shared: copy before changing."""

    def __init__(self, database: Database, feed: ChangeFeed, kinds: frozenset[str]) -> None:
        self._database = database
        self._kinds = kinds
        self._documents: dict[Key, Document] = {}
        self._by_uid: dict[str, Key] = {}
        feed.add_listener(self._changed)

    async def start(self) -> None:
        """Load what exists. The feed must be running, so that nothing is missed between."""
        for row in await self._database.fetch(LOAD, list(self._kinds)):
            key = Key(row["kind"], row["org"], row["project"], row["name"])
            document = orjson.loads(row["doc"])
            known = self._documents.get(key)
            if known is None or _revision(known) < _revision(document):
                self._keep(key, document)

    def get(self, key: Key) -> Document | None:
        """The object, or None."""
        return self._documents.get(key)

    def by_uid(self, uid: str) -> Document | None:
        """The object with this uid, or None."""
        key = self._by_uid.get(uid)
        return self._documents.get(key) if key is not None else None

    def of_kind(self, kind: str) -> list[tuple[Key, Document]]:
        """All objects of one kind."""
        return [(key, document) for key, document in self._documents.items() if key.kind == kind]

    def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key.kind not in self._kinds:
                continue
            if change.type is ChangeType.DELETED:
                known = self._documents.pop(change.key, None)
                if known is not None:
                    self._by_uid.pop(known["metadata"]["uid"], None)
            else:
                self._keep(change.key, orjson.loads(change.document))

    def _keep(self, key: Key, document: Document) -> None:
        self._documents[key] = document
        self._by_uid[document["metadata"]["uid"]] = key


def _revision(document: Document) -> int:
    return int(document["metadata"]["resourceVersion"])
