"""Dry-runs: a mutation that runs in full, in a transaction that keeps nothing.

A dry-run promises the answer of the real thing, so it runs the same code over the same loaded state, kinds' hooks
included; only what it wants written stays here. It takes no revision, leaves no row and no trace in the batch it
shares. `controlplane/resources` wraps a mutation in `Rehearsal` when the client asks for `dryRun=All`.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from datetime import datetime
from typing import Any, Generic, TypeVar

from controlplane.store.contract import Document, Key, Loader, Mutation, Reads, Tx

UNWRITTEN_REVISION = "0"
"""The resourceVersion that a rehearsed create shows to hooks; no stored object has it."""

Result = TypeVar("Result")


class Rehearsal(Generic[Result]):
    """Runs `mutation` and answers what it would answer."""

    def __init__(self, mutation: Mutation[Result]) -> None:
        self._mutation = mutation

    def reads(self) -> Reads:
        return self._mutation.reads()

    def apply(self, tx: Tx) -> Result:
        return self._mutation.apply(_KeepsNothing(tx))


class _KeepsNothing:
    """A `Tx` over another one: reads come from there, writes end here."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self._written: dict[Key, Document | None] = {}
        # Not the batch's: hooks of the batch act on what they find there.
        self._scratch: dict[str, dict[Any, Any]] = {}

    @property
    def now(self) -> datetime:
        return self._tx.now

    def get(self, key: Key) -> Document | None:
        return self._written[key] if key in self._written else self._tx.get(key)

    def put(self, key: Key, document: Document) -> Document:
        """The document with the revision of the one it would replace: a rehearsal takes none of its own."""
        previous = self.get(key)
        revision = previous["metadata"]["resourceVersion"] if previous is not None else UNWRITTEN_REVISION
        stamped = {**document, "metadata": {**document["metadata"], "resourceVersion": revision}}
        self._written[key] = stamped
        return stamped

    def remove(self, key: Key) -> Document:
        previous = self.get(key)
        assert previous is not None, f"{key} cannot be removed: it does not exist"
        self._written[key] = None
        return previous

    def rows(self, loader: Loader, argument: Hashable) -> list[Mapping[str, Any]]:
        return self._tx.rows(loader, argument)

    async def load(self, keys: Sequence[Key]) -> None:
        await self._tx.load(keys)

    def join(self, part: str, row: Mapping[str, Any]) -> None:
        return None

    def remember(self, key: Key, record: Mapping[str, Any], prefix: str) -> None:
        self._tx.remember(key, record, prefix)

    def execute(self, sql: str, arguments: Sequence[Any]) -> None:
        return None

    def scratch(self, name: str) -> dict[Any, Any]:
        return self._scratch.setdefault(name, {})
