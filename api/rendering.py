"""Objects and lists in the form a client accepts.

Stored bytes go out as they are when plain JSON is wanted, which is the hot path; only tables, metadata lists and
`?pretty` need them parsed. What the forms look like is in `controlplane/machinery/table.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from api.negotiation import Accepted, Form
from controlplane.clock import Clock
from controlplane.machinery.kind import Document, Kind
from controlplane.machinery.table import Include, partial_metadata, partial_metadata_list, table
from controlplane.resources import Page
from controlplane.resources.mutations import list_body

WARNING_LENGTH_MAX = 256
"""Characters of one Warning header; clients refuse answers with very large headers."""


class Renderer:
    """Renders what one request is answered with; a watch uses one for all its events."""

    def __init__(self, kind: Kind, accepted: Accepted, clock: Clock, include: Include) -> None:
        self._kind = kind
        self._form = accepted.form
        self._version = accepted.version
        self._clock = clock
        self._include = include
        self._definitions = True

    def one(self, document: bytes) -> bytes:
        """A single object."""
        match self._form:
            case Form.OBJECT:
                return document
            case Form.TABLE:
                parsed = orjson.loads(document)
                return self._table([parsed], {"resourceVersion": parsed["metadata"].get("resourceVersion", "")})
            case Form.METADATA:
                return orjson.dumps(partial_metadata(orjson.loads(document), self._version))

    def page(self, page: Page) -> bytes:
        """A list, or the part of it that was read."""
        match self._form:
            case Form.OBJECT:
                return list_body(self._kind, page.documents, page.metadata)
            case Form.TABLE:
                return self._table([orjson.loads(document) for document in page.documents], page.metadata)
            case Form.METADATA:
                parsed = [orjson.loads(document) for document in page.documents]
                return orjson.dumps(partial_metadata_list(parsed, metadata=page.metadata, version=self._version))

    def event(self, document: bytes) -> bytes:
        """The object of a watch event: as a single object, but column definitions are sent only once."""
        rendered = self.one(document)
        self._definitions = False
        return rendered

    def bookmark(self, document: Document) -> bytes:
        """The object of a bookmark, which has nothing but a resourceVersion (and annotations)."""
        match self._form:
            case Form.OBJECT:
                return orjson.dumps(document)
            case Form.TABLE:
                return self._table([], document["metadata"])
            case Form.METADATA:
                return orjson.dumps(partial_metadata(document, self._version))

    def _table(self, documents: Sequence[Document], metadata: dict[str, object]) -> bytes:
        return orjson.dumps(
            table(
                self._kind,
                documents,
                now=self._clock.now(),
                metadata=metadata,
                include=self._include,
                version=self._version,
                definitions=self._definitions,
            )
        )


def pretty(body: bytes) -> bytes:
    """The JSON text indented for people."""
    return orjson.dumps(orjson.loads(body), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def warning_header(text: str) -> str:
    """A value of the Warning header that tells `text`, which may be part of a body and so hold anything."""
    printable = "".join(character if " " <= character <= "~" else "?" for character in text[:WARNING_LENGTH_MAX])
    escaped = printable.replace("\\", "\\\\").replace('"', '\\"')
    return f'299 - "{escaped}"'
