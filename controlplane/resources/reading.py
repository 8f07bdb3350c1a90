"""Reads of objects as clients ask for them: one, or a list at a consistent snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controlplane.errors import ApiError, Reason, not_found
from controlplane.machinery.kind import Kind
from controlplane.resources.continuation import ContinueTokens, expired
from controlplane.resources.listing import ListOptions, start
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import Key, Selection
from controlplane.store.objects import Objects, not_yet

CATCH_UP_SECONDS_MAX = 3.0
"""How long a list waits for a revision that has not happened yet before it says so (R-LIST-4)."""


@dataclass(frozen=True, slots=True)
class Page:
    """Part of a list: serialised objects, the revision at which it is exact, and the token of the next part."""

    documents: list[bytes]
    rv: int
    continue_token: str = ""
    remaining: int | None = None

    @property
    def metadata(self) -> dict[str, object]:
        """The ListMeta that clients read."""
        metadata: dict[str, object] = {"resourceVersion": str(self.rv)}
        if self.continue_token:
            metadata["continue"] = self.continue_token
        if self.remaining is not None:
            metadata["remainingItemCount"] = self.remaining
        return metadata


class Reader:
    """The read verbs."""

    def __init__(self, *, objects: Objects, feed: ChangeFeed, kinds: Mapping[str, Kind], settings: Settings) -> None:
        self._objects = objects
        self._feed = feed
        self._kinds = kinds
        self._settings = settings
        self._tokens = ContinueTokens(settings.secret_key)

    async def get(self, key: Key) -> bytes:
        """The serialised object; NotFound when there is none."""
        document = await self._objects.get(key)
        if document is None:
            raise not_found(self._kinds[key.kind].plural, key.name)
        return document

    async def list(self, selection: Selection, options: ListOptions) -> Page:
        """A page of the selection. Raises BadRequest and Invalid for options, Expired for a snapshot that is gone,
        Timeout for a revision that does not come."""
        begin = start(selection, options, self._settings.list_items_max, self._tokens)
        awaited = begin.at_rv or begin.not_before_rv
        if awaited > self._feed.last_rv and not await self._feed.wait_until(awaited, CATCH_UP_SECONDS_MAX):
            raise not_yet(awaited, self._feed.last_rv)
        try:
            found = await self._objects.list_page(
                selection,
                limit=begin.limit,
                bytes_max=self._settings.list_bytes_max,
                after=begin.after,
                at_rv=begin.at_rv,
            )
        except ApiError as error:
            if error.reason is Reason.EXPIRED and begin.after is not None:
                raise expired(self._tokens.encode(selection, None, begin.after)) from error
            raise
        token = self._tokens.encode(selection, found.rv, found.next_key) if found.next_key is not None else ""
        return Page(found.documents, found.rv, token, found.remaining)
