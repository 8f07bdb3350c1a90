"""One batch of the writer: the rows it loaded, and everything its mutations want written.

Mutations run one after the other over the same rows. Each one's effects are marked at its start and taken back when
it raises, so a refused request leaves no trace and consumes no revision. `writer.py` loads and writes; this module
only decides what a write means: which revision it gets, what the change log will say, and that writing an equal
document changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import orjson

from controlplane.machinery.kind import Kind
from controlplane.machinery.meta import select_fields
from controlplane.store.contract import Change, ChangeType, Document, Key, Loader

JSON_OPTIONS = orjson.OPT_NON_STR_KEYS


@dataclass(slots=True)
class Live:
    """The latest state of one object in this batch."""

    document: Document
    rv: int
    create_rv: int
    uid: str
    labels: dict[str, str]
    fields: dict[str, str]


@dataclass(slots=True)
class Logged:
    """A change and the revision it follows, as the change log stores it."""

    change: Change
    previous_rv: int | None
    create_rv: int
    owners: list[str]
    deleting: bool


@dataclass
class Batch:
    """The transaction as mutations see it (`contract.Tx`)."""

    now: datetime
    rv: int
    kinds: Mapping[str, Kind]
    loader: Callable[[Sequence[Key]], Awaitable[None]]
    live: dict[Key, Live | None] = field(default_factory=dict)
    loaded_rows: dict[tuple[str, Hashable], list[Mapping[str, Any]]] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    statements: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    _scratch: dict[str, dict[Any, Any]] = field(default_factory=dict)
    _undo: list[tuple[Key, Live | None]] = field(default_factory=list)

    # What mutations use.

    def get(self, key: Key) -> Document | None:
        """See `contract.Tx.get`."""
        live = self._live(key)
        return live.document if live else None

    def put(self, key: Key, document: Document) -> Document:
        """See `contract.Tx.put`."""
        previous = self._live(key)
        if previous is not None and _same(previous.document, document):
            return previous.document
        self.rv += 1
        stamped = {**document, "metadata": {**document["metadata"], "resourceVersion": str(self.rv)}}
        metadata = stamped["metadata"]
        live = Live(
            document=stamped,
            rv=self.rv,
            create_rv=previous.create_rv if previous else self.rv,
            uid=metadata["uid"],
            labels=metadata.get("labels") or {},
            fields=select_fields(self.kinds[key.kind], stamped),
        )
        self._record(ChangeType.MODIFIED if previous else ChangeType.ADDED, key, live, previous)
        self._set(key, live)
        return stamped

    def remove(self, key: Key) -> Document:
        """See `contract.Tx.remove`."""
        previous = self._live(key)
        if previous is None:
            raise KeyError(key)
        self.rv += 1
        metadata = {**previous.document["metadata"], "resourceVersion": str(self.rv)}
        last = Live(
            document={**previous.document, "metadata": metadata},
            rv=self.rv,
            create_rv=previous.create_rv,
            uid=previous.uid,
            labels=previous.labels,
            fields=previous.fields,
        )
        self._record(ChangeType.DELETED, key, last, previous)
        self._set(key, None)
        return last.document

    def rows(self, loader: Loader, argument: Hashable) -> list[Mapping[str, Any]]:
        """See `contract.Tx.rows`."""
        return self.loaded_rows[(loader.name, argument)]

    def execute(self, sql: str, arguments: Sequence[Any]) -> None:
        """See `contract.Tx.execute`."""
        self.statements.append((sql, arguments))

    def scratch(self, name: str) -> dict[Any, Any]:
        """See `contract.Tx.scratch`."""
        return self._scratch.setdefault(name, {})

    async def load(self, keys: Sequence[Key]) -> None:
        """Load more objects, for hooks; keys already known are kept as this batch left them."""
        await self.loader([key for key in keys if key not in self.live])

    # What the writer uses.

    def mark(self) -> tuple[int, int, int]:
        """The state to return to if the next mutation raises."""
        self._undo.clear()
        return self.rv, len(self.log), len(self.statements)

    def undo(self, mark: tuple[int, int, int]) -> None:
        """Take back everything since `mark`."""
        self.rv = mark[0]
        del self.log[mark[1] :]
        del self.statements[mark[2] :]
        for key, live in reversed(self._undo):
            self.live[key] = live
        self._undo.clear()

    def take_log(self) -> list[Logged]:
        """The changes not yet written, which the caller now writes."""
        taken, self.log = self.log, []
        return taken

    def take_statements(self) -> dict[str, list[Sequence[Any]]]:
        """The statements not yet run, grouped by text in the order the texts were first used."""
        grouped: dict[str, list[Sequence[Any]]] = {}
        for sql, arguments in self.statements:
            grouped.setdefault(sql, []).append(arguments)
        self.statements = []
        return grouped

    def _live(self, key: Key) -> Live | None:
        try:
            return self.live[key]
        except KeyError:
            raise LookupError(f"{key} was not among the reads of this batch") from None

    def _set(self, key: Key, live: Live | None) -> None:
        self._undo.append((key, self.live.get(key)))
        self.live[key] = live

    def _record(self, kind: ChangeType, key: Key, live: Live, previous: Live | None) -> None:
        change = Change(
            rv=live.rv,
            type=kind,
            key=key,
            uid=live.uid,
            document=orjson.dumps(live.document, option=JSON_OPTIONS),
            labels=live.labels,
            fields=live.fields,
            previous_labels=previous.labels if previous else None,
            previous_fields=previous.fields if previous else None,
        )
        metadata = live.document["metadata"]
        self.log.append(
            Logged(
                change=change,
                previous_rv=previous.rv if previous else None,
                create_rv=live.create_rv,
                owners=[owner["uid"] for owner in metadata.get("ownerReferences") or ()],
                deleting="deletionTimestamp" in metadata,
            )
        )


def _same(stored: Document, offered: Document) -> bool:
    """Whether two documents differ in nothing but their revision."""
    if stored.keys() != offered.keys():
        return False
    for name, value in stored.items():
        other = offered[name]
        if name == "metadata":
            value = {k: v for k, v in value.items() if k != "resourceVersion"}
            other = {k: v for k, v in other.items() if k != "resourceVersion"}
        if value != other:
            return False
    return True
