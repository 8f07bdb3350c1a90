"""What the generic verbs do to Budgets beside their objects: the rows go with a Budget that is deleted."""

from __future__ import annotations

from controlplane.store.contract import Document, Key, Tx
from controlplane.store.hooks import PlainHooks


class BudgetHooks(PlainHooks):
    """A Budget's row is made when a dispatch or the keeper first asks for it (`reservations.py`)."""

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        """Its reservations go with the row: nothing is held for a Budget that is gone."""
        tx.execute("DELETE FROM spending_limits WHERE id = $1", (document["metadata"]["uid"],))
