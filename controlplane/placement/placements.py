"""Where workers run by the prices in force, for whoever starts, quotes or limits them.

One object a process. The choice itself is `capacity.py`; it is remembered, because each look at a pool asks and a book
may have a thousand classes. A book that takes effect is another question, so nothing has to be forgotten in time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from controlplane.clock import Clock
from controlplane.ledger.pricebook import PriceBook, book_at
from controlplane.ledger.pricing import flat_price
from controlplane.machinery.quantities import parse_money
from controlplane.placement.candidates import Offered
from controlplane.placement.capacity import Capacity, capacity_for
from controlplane.settings import Settings

REMEMBERED_MAX = 1_024
"""Answers; as many Functions as are looked at in turn, of which many ask the same."""


class Placements:
    """The price books of this server and its flat rate."""

    def __init__(self, books: Sequence[PriceBook], settings: Settings, clock: Clock) -> None:
        self.books = books
        """All that are known, by the time from which they are in force."""
        self._offered = {book.version: Offered.of(book) for book in books}
        self._clock = clock
        self._flat = flat_price(settings.worker_rate_usd_per_hour)
        self._region_class = settings.host_region_class
        self._remembered = lru_cache(maxsize=REMEMBERED_MAX)(self._place)
        rates = (each.rate_usd_per_hour for book in books for each in book.offerings)
        self.is_priced = self._flat.rate_micro_usd_per_hour > 0 or any(parse_money(rate) for rate in rates)
        """Whether a worker has ever cost something by these prices, or will; each look at a pool asks."""

    @property
    def book(self) -> PriceBook | None:
        """The price book in force, None without one."""
        return book_at(self.books, self._clock.now())

    def next_book_at(self, now: datetime) -> datetime | None:
        """When the next price book takes effect; None when no other is known."""
        return next((book.valid_from for book in self.books if book.valid_from > now), None)

    def of(self, spec: Mapping[str, Any]) -> Capacity:
        """Where workers of a Function with this canonical spec would be started now."""
        book = self.book
        asked = {name: spec[name] for name in ("resources", "placement", "timeout")}
        return self._remembered(
            book.version if book is not None else None, orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
        )

    def _place(self, version: str | None, asked: bytes) -> Capacity:
        offered = self._offered[version] if version is not None else Offered()
        return capacity_for(orjson.loads(asked), offered, self._flat, self._region_class)
