"""A kind, its mutations and an open store, for the tests of the store."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from controlplane.clock import SystemClock
from controlplane.machinery.kind import ALL_VERBS, Kind, Scope
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Change, Document, Key, Reads, Selection, Tx
from controlplane.store.database import Database
from controlplane.store.objects import Objects
from controlplane.store.watch import Watches
from controlplane.store.writer import Writer


def _kind(name: str) -> Kind:
    return Kind(
        kind=name,
        plural=f"{name.lower()}s",
        uid_prefix=name[:3].lower(),
        scope=Scope.PROJECT,
        verbs=ALL_VERBS,
        description="An object of the tests.",
        spec=None,
        status=None,
        columns=(),
        selectable_fields=("spec.color", "status.phase"),
    )


KINDS = {"Thing": _kind("Thing"), "Other": _kind("Other")}
EVERYTHING = Selection("Thing", "acme", None)


def key(name: str, project: str = "default", kind: str = "Thing") -> Key:
    return Key(kind, "acme", project, name)


def thing(name: str, *, labels: dict[str, str] | None = None, uid: str | None = None, **spec: Any) -> Document:
    metadata = {"name": name, "uid": uid or f"thg_{name}", "labels": labels or {}}
    return {"kind": "Thing", "metadata": metadata, "spec": spec}


@dataclass
class Put:
    """Store a thing."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    uid: str | None = None
    project: str = "default"
    kind: str = "Thing"

    @property
    def key(self) -> Key:
        return key(self.name, self.project, self.kind)

    def reads(self) -> Reads:
        return Reads(keys=[self.key])

    def apply(self, tx: Tx) -> Document:
        uid = self.uid or f"thg_{self.kind}_{self.project}_{self.name}"
        return tx.put(self.key, thing(self.name, labels=self.labels, uid=uid, **self.spec))


@dataclass
class PutDocument:
    """Store a thing as it is."""

    document: Document

    def reads(self) -> Reads:
        return Reads(keys=[key(self.document["metadata"]["name"])])

    def apply(self, tx: Tx) -> Document:
        return tx.put(key(self.document["metadata"]["name"]), self.document)


@dataclass
class Remove:
    """Remove a thing if it is there."""

    name: str
    project: str = "default"

    def reads(self) -> Reads:
        return Reads(keys=[key(self.name, self.project)])

    def apply(self, tx: Tx) -> Document | None:
        there = tx.get(key(self.name, self.project))
        return None if there is None else tx.remove(key(self.name, self.project))


@dataclass
class Do:
    """Anything: `action` gets the transaction, `names` are what it reads."""

    action: Callable[[Tx], Any]
    names: tuple[str, ...] = ()
    reading: Reads | None = None

    def reads(self) -> Reads:
        return self.reading or Reads(keys=[key(name) for name in self.names])

    def apply(self, tx: Tx) -> Any:
        return self.action(tx)


@dataclass
class Store:
    """One process's worth of the store."""

    settings: Settings
    database: Database
    feed: ChangeFeed
    writer: Writer
    objects: Objects
    watches: Watches
    seen: list[Change]

    async def write(self, mutation: Any) -> Any:
        return await self.writer.write(mutation)

    async def put(self, name: str, **spec: Any) -> Document:
        written: Document = await self.writer.write(Put(name, spec=spec))
        return written


async def open_store(url: str, **settings: Any) -> Store:
    chosen = Settings(**{"change_poll_seconds": 0.2, **settings})
    database = Database(url, pool_size=4)
    await database.open()
    feed = ChangeFeed(database, chosen)
    writer = Writer(database=database, clock=SystemClock(), kinds=KINDS, feed=feed, settings=chosen)
    await feed.start()
    await writer.start()
    seen: list[Change] = []
    feed.add_listener(seen.extend)
    watches = Watches(database, feed, chosen)
    return Store(chosen, database, feed, writer, Objects(database), watches, seen)


async def close_store(store: Store) -> None:
    await store.writer.stop()
    await store.feed.stop()
    await store.database.close()
