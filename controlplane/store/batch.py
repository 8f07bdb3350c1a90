"""One batch of the writer: the rows it loaded, and everything its mutations want written.

Mutations run one after the other over the same rows. Each one's effects are marked at its start and taken back when it
raises, so a refused request leaves no trace and consumes no revision. `commit.py` loads and writes; this module only
decides what a write means: which revision it gets, what the change log will say, and that writing an equal document
changes nothing.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeVar

import orjson

from controlplane.machinery.kind import Kind
from controlplane.machinery.meta import select_fields
from controlplane.store.contract import Change, ChangeType, Document, Key, Loader, Reads

Item = TypeVar("Item")


class Live:
    """The latest state of one object in this batch; its document is decoded when somebody looks."""

    __slots__ = ("_document", "create_rv", "fields", "labels", "raw", "rv", "uid")

    def __init__(
        self,
        *,
        raw: bytes | str,
        document: Document | None = None,
        rv: int,
        create_rv: int,
        uid: str,
        labels: dict[str, str],
        fields: dict[str, str],
    ) -> None:
        self.raw = raw
        self.rv = rv
        self.create_rv = create_rv
        self.uid = uid
        self.labels = labels
        self.fields = fields
        self._document = document

    @property
    def document(self) -> Document:
        """The decoded object, shared by everybody in the batch."""
        if self._document is None:
            self._document = orjson.loads(self.raw)
        return self._document

    def equals(self, offered: Document) -> bool:
        """Whether `offered` differs from this state in nothing but its revision."""
        stored = self.document
        if offered is not stored and not _same(stored, offered):
            return False
        # Python holds 1, 1.0 and true for equal; JSON does not, and there they differ in length.
        metadata = {**offered["metadata"], "resourceVersion": str(self.rv)}
        size = len(orjson.dumps({**offered, "metadata": metadata}))
        unchanged = size == (len(self.raw) if isinstance(self.raw, bytes) else len(self.raw.encode()))
        assert unchanged or offered is not stored, "the document that `get` returned was changed in place: copy it"
        return unchanged


@dataclass(slots=True)
class Logged:
    """A change, and what the tables hold of it beyond what watchers see."""

    change: Change
    create_rv: int
    owners: list[str]
    deleting: bool


@dataclass(slots=True)
class Mark:
    """Where the batch stood before a mutation."""

    rv: int
    changes: int
    parts: int
    statements: int


@dataclass
class Batch:
    """The transaction as mutations see it (`contract.Tx`)."""

    now: datetime
    kinds: Mapping[str, Kind]
    loader: Callable[[Sequence[Key]], Awaitable[None]]
    rv: int = 0
    live: dict[Key, Live | None] = field(default_factory=dict)
    loaded_rows: dict[tuple[str, Hashable], list[Mapping[str, Any]]] = field(default_factory=dict)
    log: list[Logged] = field(default_factory=list)
    parts: list[tuple[str, Mapping[str, Any]]] = field(default_factory=list)
    statements: list[tuple[str, Sequence[Any]]] = field(default_factory=list)
    _scratch: dict[str, dict[Any, Any]] = field(default_factory=dict)
    _undo: list[tuple[Key, Live | None]] = field(default_factory=list)
    _allowed: frozenset[Key] | None = None

    # What mutations use.

    def get(self, key: Key) -> Document | None:
        """See `contract.Tx.get`."""
        live = self._live(key)
        return live.document if live else None

    def put(self, key: Key, document: Document) -> Document:
        """See `contract.Tx.put`."""
        previous = self._live(key)
        metadata = document["metadata"]
        assert metadata["name"] == key.name, f"{metadata['name']} cannot be stored as {key}"
        if previous is not None:
            assert metadata["uid"] == previous.uid, f"{key} is {previous.uid}, not {metadata['uid']}: remove it first"
            if previous.equals(document):
                return previous.document
        rv = self.rv + 1
        stamped = {**document, "metadata": {**metadata, "resourceVersion": str(rv)}}
        live = Live(
            raw=orjson.dumps(stamped),
            document=stamped,
            rv=rv,
            create_rv=previous.create_rv if previous else rv,
            uid=metadata["uid"],
            labels=metadata.get("labels") or {},
            fields=_storable(select_fields(self.kinds[key.kind], stamped)),
        )
        self._record(ChangeType.MODIFIED if previous else ChangeType.ADDED, key, live, previous)
        self._set(key, live)
        return stamped

    def remove(self, key: Key) -> Document:
        """See `contract.Tx.remove`."""
        previous = self._live(key)
        assert previous is not None, f"{key} cannot be removed: it does not exist"
        rv = self.rv + 1
        metadata = {**previous.document["metadata"], "resourceVersion": str(rv)}
        stamped = {**previous.document, "metadata": metadata}
        last = Live(
            raw=orjson.dumps(stamped),
            document=stamped,
            rv=rv,
            create_rv=previous.create_rv,
            uid=previous.uid,
            labels=previous.labels,
            fields=previous.fields,
        )
        self._record(ChangeType.DELETED, key, last, previous)
        self._set(key, None)
        return stamped

    def rows(self, loader: Loader, argument: Hashable) -> list[Mapping[str, Any]]:
        """See `contract.Tx.rows`."""
        return self.loaded_rows[(loader.name, argument)]

    def join(self, part: str, row: Mapping[str, Any]) -> None:
        """See `contract.Tx.join`."""
        self.parts.append((part, row))

    def execute(self, sql: str, arguments: Sequence[Any]) -> None:
        """See `contract.Tx.execute`."""
        self.statements.append((sql, arguments))

    def scratch(self, name: str) -> dict[Any, Any]:
        """See `contract.Tx.scratch`."""
        return self._scratch.setdefault(name, {})

    async def load(self, keys: Sequence[Key]) -> None:
        """See `contract.Tx.load`; keys already known are kept as this batch left them."""
        missing = [key for key in dict.fromkeys(keys) if key not in self.live]
        if missing:
            await self.loader(missing)

    def remember(self, key: Key, record: Mapping[str, Any], prefix: str = "") -> None:
        """See `contract.Tx.remember`."""
        if key not in self.live:
            self.live[key] = Live(
                raw=record[prefix + "doc"],
                rv=record[prefix + "rv"],
                create_rv=record[prefix + "create_rv"],
                uid=record[prefix + "uid"],
                labels=orjson.loads(record[prefix + "labels"]),
                fields=orjson.loads(record[prefix + "fields"]),
            )

    # What the committer uses.

    def begin(self, reads: Reads) -> Mark:
        """The state to return to if the next mutation raises; it may use only what it said it reads."""
        self._undo.clear()
        self._allowed = frozenset(reads.keys)
        return Mark(self.rv, len(self.log), len(self.parts), len(self.statements))

    def open_to_hooks(self) -> None:
        """From now on everything that was loaded may be used."""
        self._undo.clear()
        self._allowed = None

    def undo(self, mark: Mark) -> None:
        """Take back everything since `mark`."""
        self.rv = mark.rv
        del self.log[mark.changes :]
        del self.parts[mark.parts :]
        del self.statements[mark.statements :]
        for key, live in reversed(self._undo):
            self.live[key] = live
        self._undo.clear()

    @property
    def grouped_parts(self) -> dict[str, list[Mapping[str, Any]]]:
        """The rows of the parts, by text."""
        return _grouped(self.parts)

    @property
    def grouped_statements(self) -> dict[str, list[Sequence[Any]]]:
        """The arguments of the statements, by text in the order the texts were first used."""
        return _grouped(self.statements)

    def _live(self, key: Key) -> Live | None:
        # Checked for each mutation, although another may have loaded the key: what works only in company is a bug
        # that tests would miss.
        if (self._allowed is not None and key not in self._allowed) or key not in self.live:
            raise LookupError(f"{key} is not among what this mutation reads")
        return self.live[key]

    def _set(self, key: Key, live: Live | None) -> None:
        self._undo.append((key, self.live[key]))
        self.live[key] = live

    def _record(self, kind: ChangeType, key: Key, live: Live, previous: Live | None) -> None:
        assert isinstance(live.raw, bytes)
        metadata = live.document["metadata"]
        owners = owner_uids(metadata)
        change = Change(
            rv=live.rv,
            type=kind,
            key=key,
            uid=live.uid,
            document=live.raw,
            labels=live.labels,
            fields=live.fields,
            previous_labels=previous.labels if previous else None,
            previous_fields=previous.fields if previous else None,
            previous_rv=previous.rv if previous else None,
        )
        self.log.append(Logged(change, live.create_rv, owners, "deletionTimestamp" in metadata))
        self.rv = live.rv


def _grouped(pairs: Sequence[tuple[str, Item]]) -> dict[str, list[Item]]:
    grouped: dict[str, list[Item]] = {}
    for text, item in pairs:
        grouped.setdefault(text, []).append(item)
    return grouped


def _same(stored: Document, offered: Document) -> bool:
    """Whether two documents are equal to Python, their revisions aside."""
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


def _storable(fields: dict[str, str]) -> dict[str, str]:
    if not any("\0" in value for value in fields.values()):
        return fields
    return {path: _storable_text(value) for path, value in fields.items()}


def owner_uids(metadata: Document) -> list[str]:
    """The uids of an object's owners, each once, as the column `owners` has them."""
    return list(dict.fromkeys(_storable_text(owner["uid"]) for owner in metadata.get("ownerReferences") or ()))


def _storable_text(value: str) -> str:
    """The text without NUL characters, which PostgreSQL takes only in `json`; no selector can ask for one either."""
    return value.replace("\0", "\ufffd")
