"""Deletes of whatever a selection finds (R-DEL-4).

Pages are read as a list reads them (`reading.py`), with its options: an object is chosen for what it is in that
snapshot. Its delete looks once more in its transaction, and leaves alone a namesake that came since, and what does not
match any longer: whoever relabels an object to save it has saved it. If the process dies in between, what was deleted
stays deleted, cascades are finished by the sweeper, and the client's repetition finds the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import orjson

from controlplane.machinery.kind import GROUP, Kind
from controlplane.machinery.meta import select_fields
from controlplane.resources.answers import Answer, DeleteOptions
from controlplane.resources.deletion import SUCCESS, Deleter
from controlplane.resources.listing import ListOptions, parse_count
from controlplane.resources.mutations import HTTP_OK, Due
from controlplane.resources.reading import Page, Reader
from controlplane.store.contract import Document, Key, Selection
from controlplane.store.selection import matches


class CollectionDeleter:
    """The verb `deletecollection`."""

    def __init__(self, *, reader: Reader, deleter: Deleter, kinds: Mapping[str, Kind]) -> None:
        self._reader = reader
        self._deleter = deleter
        self._kinds = kinds

    async def delete(self, selection: Selection, listed: ListOptions, options: DeleteOptions) -> Answer:
        """Delete the objects of the selection, page by page; answers a Status with how many they were.

        With a `limit`, as in Kubernetes, it is one page, and the Status has the token of the next. Without one they are
        all objects of the snapshot; what is created meanwhile is not among them.
        """
        is_page = parse_count("limit", listed.limit) > 0
        count = 0
        while True:
            page = await self._reader.list(selection, listed)
            count += await self._deleter.delete_found(self._found(selection, page), options)
            if is_page or not page.continue_token:
                told = {"metadata": page.metadata, "details": {"group": GROUP, "count": count}}
                return Answer(HTTP_OK, orjson.dumps({**SUCCESS, **told}))
            listed = ListOptions(continue_token=page.continue_token)

    def _found(self, selection: Selection, page: Page) -> dict[Key, Due]:
        found: dict[Key, Due] = {}
        for content in page.documents:
            metadata = orjson.loads(content)["metadata"]
            key = Key(selection.kind, selection.org, metadata.get("namespace", ""), metadata["name"])
            found[key] = partial(self._is_due, selection, key, metadata["uid"])
        return found

    def _is_due(self, selection: Selection, key: Key, uid: str, current: Document) -> bool:
        """Whether this is the object that was found, and still what was asked for."""
        metadata = current["metadata"]
        fields = select_fields(self._kinds[key.kind], current)
        return metadata["uid"] == uid and matches(selection, key, metadata.get("labels", {}), fields)
