"""What a kind does inside the transaction of a generic verb.

`controlplane/resources` knows no kind. Where a write of one kind must move other rows in the same commit (a call enters
its queue, a Secret's values are sealed, a Function starts to drain), that kind's owner implements `KindHooks` and the
composition root passes it to `Resources` by kind name. Everything here runs inside `Mutation.apply`: no I/O, quick, and
it may run again when a batch is retried. Dry-runs call the same (`store/rehearsal.py`) and what they write is dropped.
"""

from __future__ import annotations

from typing import Protocol

from controlplane.store.contract import Document, Key, Reads, Tx

NO_READS = Reads()


class KindHooks(Protocol):
    """The transaction's side of one kind. Documents passed in must not be changed in place: copy, change, return."""

    def reads_create(self, key: Key, document: Document) -> Reads:
        """What `admit_create`, `differences` and `created` need loaded, beyond the object itself."""

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        """The document to store. May raise ApiError; must change nothing shared, because a later object of the same
        request may still be refused."""

    def created(self, tx: Tx, key: Key, document: Document) -> None:
        """The object was put as `document` (with its resourceVersion). Must not raise."""

    def answered(self, tx: Tx, key: Key, document: Document) -> Document:
        """What the answer to a create says of the object, and is kept of it under its Idempotency-Key."""

    def revealed(self, body: bytes) -> bytes:
        """An answer to a create, first or repeated, as its caller gets it; what is kept may be sealed."""

    def differences(self, tx: Tx, key: Key, stored: Document, proposed: Document) -> list[str]:
        """The paths under `spec` in which a named create differs from the stored object; empty returns that object."""

    def editable(self, document: Document) -> Document:
        """The stored object as a patch sees it; a kind whose objects do not show all they hold adds, on a copy, what
        stands for the rest."""

    def reads_update(self, key: Key, document: Document) -> Reads:
        """What `comparable` and `updated` need loaded; `document` is the new one."""

    def comparable(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        """`new` as it compares with `editable(old)`: a copy in which whatever is the same looks the same."""

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        """The document to store in place of `old`; may raise ApiError before it touches anything shared."""

    def reads_delete(self, key: Key) -> Reads:
        """What `deleting` and `removed` need loaded."""

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        """A delete was asked for the first time: `document` carries the deletionTimestamp. Adding a finalizer keeps the
        object until a controller takes it off with `finalizers.settle`."""

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        """The object is gone from the store; drop the rows that belong to it. Must not raise."""


class PlainHooks:
    """The hooks of kinds that are nothing but an object; also the defaults of those that need only some."""

    def reads_create(self, key: Key, document: Document) -> Reads:
        return NO_READS

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        return document

    def created(self, tx: Tx, key: Key, document: Document) -> None:
        return None

    def answered(self, tx: Tx, key: Key, document: Document) -> Document:
        return document

    def revealed(self, body: bytes) -> bytes:
        return body

    def differences(self, tx: Tx, key: Key, stored: Document, proposed: Document) -> list[str]:
        return differing_paths(stored.get("spec"), proposed.get("spec"), "spec")

    def editable(self, document: Document) -> Document:
        return document

    def reads_update(self, key: Key, document: Document) -> Reads:
        return NO_READS

    def comparable(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        return new

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        return new

    def reads_delete(self, key: Key) -> Reads:
        return NO_READS

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        return document

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        return None


def differing_paths(stored: object, proposed: object, path: str) -> list[str]:
    """Dotted paths at which two JSON values differ; a list counts as one value, since its items have no names.

    A list or object without anything in it means the same as its absence: clients write either.
    """
    if isinstance(stored, dict) and isinstance(proposed, dict):
        found: list[str] = []
        for name in sorted(stored.keys() | proposed.keys()):
            found += differing_paths(stored.get(name), proposed.get(name), f"{path}.{name}")
        return found
    return [] if _meaning(stored) == _meaning(proposed) else [path]


def _meaning(value: object) -> object:
    """The value without the fields that say nothing, None for one that is nothing itself."""
    if isinstance(value, dict):
        said = {name: meant for name, each in value.items() if (meant := _meaning(each)) is not None}
        return said or None
    if isinstance(value, list):
        return [_meaning(each) for each in value] or None
    return value
