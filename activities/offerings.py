"""Keeps the Offering objects as the price book in force has them: part of the sweeper.

Looks at what there is and writes what differs, so a new book, a book whose time has come, and an object that somebody
else's bug removed are all the same to it. Prices that a book no longer has go with their objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from activities.chores import Chore
from controlplane.clock import Clock, format_time
from controlplane.identity.organizations import organizations
from controlplane.ids import new_uid
from controlplane.kinds.offering import OFFERING
from controlplane.ledger.pricebook import OFFERINGS_MAX, PriceBook, PricedOffering, book_at, offering_parts
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

BOOK_ANNOTATION = "nodus.dev/pricebook-version"
_NAMES = "SELECT name FROM objects WHERE kind = 'Offering' AND org = $1 AND project = '' LIMIT $2"


class OfferingKeeper:
    """The chore, for all organisations of this server."""

    def __init__(self, database: Database, writer: Writer, clock: Clock, books: Sequence[PriceBook]) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self._books = books
        self.chores = (Chore("publish offerings", 30.0, self.publish),)

    async def publish(self) -> None:
        """Bring the objects to what the book in force says; nothing is written when they say so already."""
        book = book_at(self._books, self._clock.now())
        for org in await organizations(self._database):
            stored = [row["name"] for row in await self._database.fetch(_NAMES, org, 2 * OFFERINGS_MAX)]
            if book is None and not stored:
                continue
            changed = await self._writer.write(PublishOfferings(org, book, stored))
            if changed:
                log.info("offerings published", org=org, pricebook=book.version if book else None, changed=changed)


class PublishOfferings:
    """Writes the Offerings of the book and removes the others of `stored`; the result is how many changed."""

    def __init__(self, org: str, book: PriceBook | None, stored: Sequence[str]) -> None:
        self._org = org
        self._book = book
        self._offerings = {offering.name: offering for offering in book.offerings} if book else {}
        self._names = sorted({*self._offerings, *stored})

    def reads(self) -> Reads:
        return Reads(keys=[self._key(name) for name in self._names])

    def apply(self, tx: Tx) -> int:
        changed = 0
        for name in self._names:
            key, offering = self._key(name), self._offerings.get(name)
            stored = tx.get(key)
            if offering is not None and self._book is not None:
                changed += tx.put(key, _document(self._book, offering, tx, stored)) is not stored
            elif stored is not None:
                tx.remove(key)
                changed += 1
        return changed

    def _key(self, name: str) -> Key:
        return Key(OFFERING.kind, self._org, "", name)


def _document(book: PriceBook, offering: PricedOffering, tx: Tx, stored: Document | None) -> Document:
    parts = offering_parts(book, offering, tx.now, stored["status"] if stored else None)
    annotations = {BOOK_ANNOTATION: book.version}
    if stored is not None:
        generation = stored["metadata"]["generation"] + (stored["spec"] != parts["spec"])
        kept = {**stored["metadata"], "generation": generation, "annotations": annotations}
        return {**stored, **parts, "metadata": kept}
    metadata = {
        "name": offering.name,
        "uid": new_uid(OFFERING.uid_prefix),
        "generation": 1,
        "creationTimestamp": format_time(tx.now),
        "annotations": annotations,
    }
    return {"apiVersion": API_VERSION, "kind": OFFERING.kind, "metadata": metadata, **parts}
