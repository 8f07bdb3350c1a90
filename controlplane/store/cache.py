"""Slow-moving objects in memory: what every call needs to know about its Function, App, Project and Secrets.

Filled once at start and kept current by the change feed, so creating or claiming a call reads no SQL for them. What
this process wrote is there when the write returns; what another wrote may lag by the few milliseconds the feed does.
Whoever must be exact names the key among a mutation's reads.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

import orjson
import structlog

from controlplane.errors import ApiError
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, ChangeType, Document, Key
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

_AGAIN_SECONDS = 1.0
"""Between two tries to load everything; whoever asks for one object meanwhile looks it up."""
_LOAD = "SELECT kind, org, project, name, rv, doc FROM objects WHERE kind = ANY($1::text[])"
_READ = "SELECT rv, doc FROM objects WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4"


class ObjectCache:
    """The current documents of some kinds. Documents are shared: copy before changing."""

    def __init__(self, database: Database, feed: ChangeFeed, kinds: frozenset[str]) -> None:
        self._database = database
        self._feed = feed
        self._kinds = kinds
        self._documents: dict[str, dict[Key, tuple[int, Document]]] = {kind: {} for kind in kinds}
        self._by_uid: dict[str, Key] = {}
        self._gone: dict[Key, int] = {}
        """While a snapshot is being loaded: what was deleted meanwhile, and must not come back with it."""
        self._loading = 0
        self._reload: asyncio.Task[None] | None = None
        feed.add_listener(self._changed, lost=self._lost)

    async def start(self) -> None:
        """Load what exists. The feed must have been started, so that nothing is missed between."""
        self._loading += 1
        try:
            for row in await self._database.fetch(_LOAD, list(self._kinds)):
                self._learn(Key(row["kind"], row["org"], row["project"], row["name"]), row["rv"], row["doc"])
        finally:
            self._loaded()

    def holds(self, kind: str) -> bool:
        """Whether objects of the kind are kept here at all."""
        return kind in self._kinds

    def get(self, key: Key) -> Document | None:
        """The object, or None."""
        found = self._documents[key.kind].get(key)
        return found[1] if found else None

    async def read(self, key: Key) -> Document | None:
        """The object; what the cache does not know is looked up, so one that another process just created is found."""
        if key not in self._documents[key.kind]:
            self._loading += 1
            try:
                row = await self._database.fetchrow(_READ, key.kind, key.org, key.project, key.name)
                if row is not None:
                    self._learn(key, row["rv"], row["doc"])
            finally:
                self._loaded()
        return self.get(key)

    def by_uid(self, uid: str) -> Document | None:
        """The object with this uid, or None."""
        key = self._by_uid.get(uid)
        return self.get(key) if key is not None else None

    def key_of(self, uid: str) -> Key | None:
        """The address of the object with this uid, or None."""
        return self._by_uid.get(uid)

    def of_kind(self, kind: str) -> list[tuple[Key, Document]]:
        """All objects of one kind."""
        return [(key, document) for key, (_, document) in self._documents[kind].items()]

    def _changed(self, changes: Sequence[Change]) -> None:
        for change in changes:
            if change.key.kind not in self._kinds:
                continue
            if change.type is ChangeType.DELETED:
                self._forget([change.key])
                if self._loading:
                    self._gone[change.key] = change.rv
            else:
                self._learn(change.key, change.rv, change.document)

    def _learn(self, key: Key, rv: int, doc: str | bytes) -> None:
        """Keep the object unless something newer is known of it."""
        known = self._documents[key.kind].get(key)
        if (known is not None and known[0] >= rv) or self._gone.get(key, 0) > rv:
            return
        self._forget([key])
        document: Document = orjson.loads(doc)
        self._documents[key.kind][key] = (rv, document)
        self._by_uid[document["metadata"]["uid"]] = key

    def _forget(self, keys: Iterable[Key]) -> None:
        for key in keys:
            known = self._documents[key.kind].pop(key, None)
            if known is not None:
                self._by_uid.pop(known[1]["metadata"]["uid"], None)

    def _loaded(self) -> None:
        self._loading -= 1
        if not self._loading:
            self._gone.clear()

    def _lost(self) -> None:
        """The feed skipped changes: what is here may be gone, so begin anew; `read` finds what is not loaded yet."""
        for documents in self._documents.values():
            self._forget(list(documents))
        if self._reload is not None:
            self._reload.cancel()
        self._reload = asyncio.create_task(self._load_again(), name="reload-cache")

    async def _load_again(self) -> None:
        while True:
            try:
                return await self.start()
            except ApiError as error:
                log.warning("objects cannot be loaded, trying again", told=error.message)
            await asyncio.sleep(_AGAIN_SECONDS)
