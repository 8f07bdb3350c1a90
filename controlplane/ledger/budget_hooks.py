"""What the generic verbs do to Budgets and capped Functions beside their objects: the rows of their limits follow.

How much a limit is of and whether it blocks is written here and nowhere else, in the transaction that stores the
object. Dispatches read it from the row (`reservations.py`), because what a process has in memory may be older.
"""

from __future__ import annotations

from controlplane.ledger.limits import Limit, budget_limit, limit_at
from controlplane.ledger.reservations import opening
from controlplane.store.contract import Document, Key, Tx
from controlplane.store.hooks import PlainHooks

_CLOSE = "DELETE FROM spending_limits WHERE id = $1"

_FOLLOW = "UPDATE spending_limits SET limit_micro_usd = $2, blocks = $3, refused_micro_usd = NULL WHERE id = $1"
"""What did not fit the limit as it was may fit it now, or need less."""


class BudgetHooks(PlainHooks):
    """A Budget's row is made with it; one of an older server when a dispatch or the keeper first asks for it."""

    def created(self, tx: Tx, key: Key, document: Document) -> None:
        tx.execute(*opening(budget_limit(key, document), tx.now))

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        """Another scope is another limit: its row begins again with what the ledger says of that."""
        before, after = budget_limit(key, old), budget_limit(key, new)
        if (before.project, before.terms) != (after.project, after.terms):
            _close(tx, after.id)
            tx.execute(*opening(after, tx.now))
        elif (before.limit_micro_usd, before.blocks) != (after.limit_micro_usd, after.blocks):
            follow(tx, after)
        return new

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        """Its reservations go with the row: nothing is held for a Budget that is gone."""
        _close(tx, document["metadata"]["uid"])


class CapHooks(PlainHooks):
    """The row of a Function's `maxCostUSD`; it goes when all that is kept of the Function does."""

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        limit = limit_at(key, new)
        if limit is not None and old["spec"] != new["spec"]:
            follow(tx, limit)
        elif limit is None and limit_at(key, old) is not None:
            _close(tx, new["metadata"]["uid"])
        return new


def follow(tx: Tx, limit: Limit) -> None:
    """Let the row of the limit, if it has one, be of what the limit is now."""
    tx.execute(_FOLLOW, (limit.id, limit.limit_micro_usd, limit.blocks))


def _close(tx: Tx, limit_id: str) -> None:
    tx.execute(_CLOSE, (limit_id,))
