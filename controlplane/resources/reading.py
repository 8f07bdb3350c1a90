"""Reads of objects as clients ask for them: one, or a list at a consistent snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

import orjson

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason, not_found
from controlplane.machinery.kind import Kind, SettlingJudge
from controlplane.machinery.selectors import FieldTerm
from controlplane.resources.continuation import ContinueTokens, expired
from controlplane.resources.listing import ListOptions, parse_rv, start
from controlplane.settings import Settings
from controlplane.store.changes import ChangeFeed
from controlplane.store.contract import ChangeType, Key, Selection
from controlplane.store.objects import Objects, not_yet
from controlplane.store.watch import Bookmark, Watches

CATCH_UP_SECONDS_MAX = 3.0
"""How long a read waits for a revision that has not happened yet before it says so (R-LIST-4)."""


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

    def __init__(
        self,
        *,
        objects: Objects,
        feed: ChangeFeed,
        watches: Watches,
        kinds: Mapping[str, Kind],
        settings: Settings,
        clock: Clock,
    ) -> None:
        self._objects = objects
        self._feed = feed
        self._watches = watches
        self._clock = clock
        self._kinds = kinds
        self._settings = settings
        self._tokens = ContinueTokens(settings.secret_key)

    async def get(self, key: Key, resource_version: str = "") -> bytes:
        """The serialised object, not older than `resource_version`. One that is settling is given a moment for it.

        Raises NotFound when there is none, Timeout for a revision that does not come.
        """
        await self._reach(parse_rv(resource_version))
        document = await self._objects.get(key)
        if document is None:
            raise self._absent(key)
        judge = self._kinds[key.kind].is_settling
        if judge is None:
            return document
        present = orjson.loads(document)
        if not judge(present, self._clock.now()):
            return document
        return await self._settled(key, document, int(present["metadata"]["resourceVersion"]), judge)

    def _absent(self, key: Key) -> ApiError:
        kind = self._kinds[key.kind]
        fix = kind.forgotten.format(days=self._settings.call_retention_days) or None
        return not_found(kind.plural, key.name, fix)

    async def _settled(self, key: Key, document: bytes, read_rv: int, judge: SettlingJudge) -> bytes:
        """The object once it has settled, or as it is when the time for that is over; NotFound when it is deleted."""
        named = Selection(key.kind, key.org, key.project, fields=(FieldTerm("metadata.name", True, key.name),))
        later = self._watches.follow(named, read_rv, None, self._settings.settling_seconds)
        async with aclosing(later) as batches:
            async for items in batches:
                for item in items:
                    if isinstance(item, Bookmark):
                        continue
                    if item.type is ChangeType.DELETED:
                        raise self._absent(key)
                    document = item.document
                if not judge(orjson.loads(document), self._clock.now()):
                    break
        return document

    async def list(self, selection: Selection, options: ListOptions) -> Page:
        """A page of the selection. Raises BadRequest and Invalid for options, Expired for a snapshot that is gone,
        Timeout for a revision that does not come."""
        begin = start(selection, options, self._settings.list_items_max, self._tokens)
        await self._reach(begin.at_rv or begin.not_before_rv)
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

    async def _reach(self, rv: int) -> None:
        """Wait for a revision that may still be on its way from another process."""
        if rv > self._feed.last_rv and not await self._feed.wait_until(rv, CATCH_UP_SECONDS_MAX):
            raise not_yet(rv, self._feed.last_rv)
