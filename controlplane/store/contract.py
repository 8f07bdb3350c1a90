"""The words of the store: keys, changes, and what a write may do inside its transaction.

Every write of every process goes through its `Writer` (`store/writer.py`), which commits many at a time: it takes the
lock that all writers share, loads what the batch needs in a few queries, lets each `Mutation` decide in plain Python
over the loaded rows, writes everything in bulk and commits. Mutations of one batch run one after the other and see each
other's writes; one that raises ApiError leaves no trace and does not disturb the rest. Because the lock comes first,
all writes of all replicas are serialised, so a mutation never races another: what `Tx.get` returns is the truth at its
commit, and revisions are numbered without gaps in commit order.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from controlplane.machinery.selectors import FieldTerm as FieldTerm
from controlplane.machinery.selectors import LabelOperator as LabelOperator
from controlplane.machinery.selectors import LabelTerm as LabelTerm

if TYPE_CHECKING:
    import asyncpg

    Connection = asyncpg.Connection[asyncpg.Record]

Document = dict[str, Any]
Result = TypeVar("Result", covariant=True)


@dataclass(frozen=True, slots=True, order=True)
class Key:
    """The address of one object. `project` is "" for kinds of the organisation."""

    kind: str
    org: str
    project: str
    name: str


class ChangeType(Enum):
    """What happened to an object; the words of watch events."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


@dataclass(frozen=True, slots=True)
class Change:
    """One committed write: a row of the change log, ready to be sent to watchers.

    `document` is the serialised object after the write (before it, with the delete's revision, for DELETED). `labels`
    and `fields` are those of `document`; `previous_*` those before the write, or None for ADDED, so a watcher can
    tell an object that enters its selector from one that leaves it (R-WATCH-4). `previous_rv` is the revision that the
    write replaced: the change with that number holds the object as it was.
    """

    rv: int
    type: ChangeType
    key: Key
    uid: str
    document: bytes
    labels: Mapping[str, str]
    fields: Mapping[str, str]
    previous_labels: Mapping[str, str] | None
    previous_fields: Mapping[str, str] | None
    previous_rv: int | None = None


@dataclass(frozen=True)
class Loader:
    """Rows outside the objects table that a mutation reads: one query for all arguments of a batch.

    `sql` takes one array parameter (`$1`) holding every distinct argument asked for in the batch and returns rows
    with a column `key` equal to the argument each belongs to. Loaders are module constants, so a batch runs each at
    most once.

    With `as_json` the query runs inside the one that loads the objects, which saves the hot path a round trip, and the
    rows arrive as JSON values: times as text, bytes as `\\x` and hexadecimal digits.
    """

    name: str
    sql: str
    as_json: bool = False


@dataclass(frozen=True, slots=True)
class Reads:
    """What a mutation needs loaded before it can decide."""

    keys: Sequence[Key] = ()
    loads: Sequence[tuple[Loader, Hashable]] = ()


class Tx(Protocol):
    """What a mutation sees and may do. All effects are buffered until the whole batch is written."""

    @property
    def now(self) -> datetime:
        """The time of this batch, from the server's clock."""

    def get(self, key: Key) -> Document | None:
        """The object as of this point of the batch; None if there is none. LookupError when `key` is not among the
        mutation's own reads. The document is shared and must not be changed in place: copy what changes and `put`."""

    def put(self, key: Key, document: Document) -> Document:
        """Create or replace the object; stamps `metadata.resourceVersion` on a copy and returns the copy. Writing
        a document equal to the stored one changes nothing and returns the stored one (R-OBJ-3). `key` must be among
        the mutation's reads; name and uid of an object never change (to recreate it, `remove` it first)."""

    def remove(self, key: Key) -> Document:
        """Delete the object, which must exist; the DELETED change carries the last state with the revision of the
        delete, and so does what is returned (R-WATCH-5)."""

    def rows(self, loader: Loader, argument: Hashable) -> list[Mapping[str, Any]]:
        """The rows a loader found for the argument when the batch began; they do not reflect writes of the batch.
        State that several mutations of a batch may touch is kept in `scratch`, seeded from here. JSON columns arrive
        as text."""

    async def load(self, keys: Sequence[Key]) -> None:
        """Load more objects so that `get`, `put` and `remove` accept them; only hooks can await it."""

    def join(self, part: str, row: Mapping[str, Any]) -> None:
        """Add a row to a data-modifying query that is part of the statement that writes the objects: no round trip.
        In `part`, `$rows` is a JSON array of all rows that were joined under the same text. The parts of a batch run
        side by side, so no two may touch the same row of a table."""

    def execute(self, sql: str, arguments: Sequence[Any]) -> None:
        """Run a statement once per call with these arguments after the objects and parts are written. Calls with the
        same text are sent as one `executemany`, texts in the order they were first used."""

    def remember(self, key: Key, record: Mapping[str, Any], prefix: str) -> None:
        """Take an object that a hook read in a query of its own, as if `load` had read it: `record` has the columns of
        `store/sql.py`'s `load` with names that begin with `prefix`. Kept as this batch left it if it was known."""

    def scratch(self, name: str) -> dict[Any, Any]:
        """A dictionary shared by all mutations and hooks of this batch, by name (`"calls"`, `"queued"`), empty when the
        batch begins and when it begins again after a fault. A failed mutation's changes to it are not undone: change it
        only after everything that can raise."""


class Mutation(Protocol[Result]):
    """One unit of change. `reads` is asked once, when the mutation is queued. `apply` must be synchronous, quick and
    free of I/O; it may run again if the batch is retried, so it must not keep anything outside the `tx`.

    An ApiError from `apply` is the caller's answer; any other exception answers InternalError and is logged. In both
    cases what it had buffered is dropped."""

    def reads(self) -> Reads: ...

    def apply(self, tx: Tx) -> Result: ...


class BatchHook(Protocol):
    """Work that joins a batch after its mutations ran and before they are written (the dispatcher of calls).

    For each batch `before_commit` runs once, then exactly one of `committed` and `rolled_back`, unless an earlier hook
    failed, in which case nothing of this one is called. A batch whose mutations were all refused still runs the hooks.
    An exception from `before_commit` fails the batch: its mutations are then tried one by one, each with the hooks."""

    async def before_commit(self, tx: Tx, connection: Connection) -> None:
        """May load more objects and use `tx`, where it finds what the mutations and earlier hooks did, and may query
        and write on `connection` (asyncpg, inside the transaction). Nothing of the batch is written yet, so a query
        sees what was committed before; everything is written once, after the last hook."""

    def committed(self) -> None:
        """The batch is durable: wake whoever was served. Called before the answers of the mutations go out."""

    def rolled_back(self) -> None:
        """Nothing of the batch was stored (or, after a crash of the database, nobody knows): undo what
        `before_commit` promised in memory."""


@dataclass(frozen=True, slots=True)
class ListPage:
    """A page of a list: serialised objects in key order, exact at `rv`. `next_key` is the page's last key when more
    follow; `remaining` counts them when that is cheap (no selector, the present state, not very many)."""

    documents: list[bytes]
    rv: int
    next_key: Key | None = None
    remaining: int | None = None


@dataclass(frozen=True, slots=True)
class Selection:
    """What a list or watch covers: a kind, an org, a project (None: all), and selector terms that must all hold."""

    kind: str
    org: str
    project: str | None
    labels: tuple[LabelTerm, ...] = ()
    fields: tuple[FieldTerm, ...] = ()
    projects: frozenset[str] | None = None
    """The projects the caller may see, or None for every project of the organisation."""
    project_field: str = "metadata.namespace"
    """The field that `projects` is about; objects without it are seen by callers of every project."""
