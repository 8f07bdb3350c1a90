"""`?watch=true`: a list that never ends.

`store/watch.py` finds what happened; here its items become lines in the form the client asked for. The rules on which
events come first (R-WATCH-2, R-WATCH-6) are in `Opening`: today's objects as ADDED, then changes; or only changes after
a revision; and for a WatchList a bookmark between the two that tells the client it has seen everything there was.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from api.deps import REQUEST_ID, Deps, credential
from api.errors import status_body
from api.negotiation import Accepted
from api.rendering import Renderer
from api.streams import StreamResponse
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.identity.scopes import require_object
from controlplane.machinery.kind import Kind, Verb
from controlplane.machinery.table import parse_include
from controlplane.resources import Page
from controlplane.resources.listing import (
    ListOptions,
    Match,
    forbidden_parameter,
    parse_count,
    parse_match,
    parse_rv,
)
from controlplane.store.contract import Selection
from controlplane.store.watch import Bookmark, WatchItem

INITIAL_EVENTS_END = {"k8s.io/initial-events-end": "true"}
END_SECONDS_MAX = 5.0
"""How long the last bookmark may take to leave before the stream is cut."""
_CHUNK_BYTES_MAX = 1 << 20
"""Lines that are written at once; more would hold memory for a client that may be slow."""
_TRUE = frozenset({"true", "1"})
_FALSE = frozenset({"false", "0"})


@dataclass(frozen=True, slots=True)
class Opening:
    """How a watch begins."""

    since_rv: int
    """Where to begin when `initial` is not asked, and the oldest state that may be shown when it is."""
    initial: bool
    """Whether today's objects come first, as ADDED."""
    initial_end: bool
    """Whether a bookmark tells where they end."""
    bookmarks: bool
    seconds_max: float


def is_watch(request: Request) -> bool:
    """Whether the list request is a watch; a HEAD asks about the list, since a watch has no end to wait for."""
    return request.method == "GET" and request.query_params.get("watch", "").lower() in _TRUE


def opening(query: QueryParams, seconds_max: int) -> Opening:
    """Judge the parameters of a watch; an unknown combination is refused, because ignoring it would hang a client."""
    rv_text = query.get("resourceVersion", "")
    rv = parse_rv(rv_text)
    bookmarks = query.get("allowWatchBookmarks", "").lower() in _TRUE
    asked = query.get("sendInitialEvents", "").lower()
    match_text = query.get("resourceVersionMatch", "")
    timeout_seconds = parse_count("timeoutSeconds", query.get("timeoutSeconds", ""))
    # Without jitter all clients of a restarted server would come back together, again and again.
    seconds = min(timeout_seconds, seconds_max) or random.uniform(seconds_max / 2, seconds_max)  # noqa: S311
    if not asked:
        if match_text:
            raise forbidden_parameter(
                "resourceVersionMatch", "is forbidden for watch unless `sendInitialEvents` is provided"
            )
        return Opening(rv, initial=rv == 0, initial_end=False, bookmarks=bookmarks, seconds_max=seconds)
    if asked not in _TRUE | _FALSE:
        raise ApiError(Reason.BAD_REQUEST, f'`sendInitialEvents` must be true or false, not "{asked[:40]}"')
    if parse_match(match_text, rv_text or "0") is not Match.NOT_OLDER_THAN:
        raise forbidden_parameter("sendInitialEvents", "requires setting `resourceVersionMatch` to NotOlderThan")
    initial = asked in _TRUE
    return Opening(rv, initial=initial, initial_end=initial and bookmarks, bookmarks=bookmarks, seconds_max=seconds)


def watch_response(
    request: Request,
    deps: Deps,
    kind: Kind,
    selection: Selection,
    accepted: Accepted,
    reword: Callable[[bytes], bytes] = lambda document: document,
) -> Response:
    """Begin to stream the watch that `request` asks for; `reword` makes what is stored what `kind` describes."""
    begin = opening(request.query_params, deps.settings.watch_seconds_max)
    include = parse_include(request.query_params.get("includeObject", ""))
    lines = _Lines(kind, Renderer(kind, accepted, deps.clock, include), reword, request, deps)
    return StreamResponse(
        _chunks(deps, selection, begin, lines),
        media_type="application/json",
        seconds_max=begin.seconds_max + END_SECONDS_MAX,
        streams=deps.streams,
        credential=credential(request),
        recheck=lambda caller: _check_again(caller, kind, selection),
        refused=lines.error,
    )


def _check_again(caller: Principal, kind: Kind, selection: Selection) -> None:
    """Raise the 401 or 403 that the watch would be refused with now.

    What belongs to the whole organisation has no field that names a project, and is shown to keys of any.
    """
    require_object(caller, kind, Verb.WATCH, selection.project or "", "")
    if selection.project or not selection.project_field or caller.all_projects:
        return
    shown = selection.projects
    if shown is None or not shown <= caller.projects:
        raise ApiError(
            Reason.FORBIDDEN, "this credential has lost a project that the watch covers", fix="List and watch again."
        )


async def _chunks(deps: Deps, selection: Selection, begin: Opening, lines: _Lines) -> AsyncGenerator[bytes, None]:
    """The whole stream as chunks of lines; what goes wrong after the headers becomes an ERROR line (R-WATCH-3)."""
    bookmark_seconds = deps.settings.bookmark_seconds if begin.bookmarks else None
    clock = asyncio.get_running_loop().time
    ends_at = clock() + begin.seconds_max
    try:
        since_rv = begin.since_rv
        if begin.initial:
            async for page in _initial(deps, selection, begin):
                since_rv = page.rv
                for chunk in lines.added(page.documents):
                    yield chunk
            if begin.initial_end:
                yield lines.bookmark(since_rv, INITIAL_EVENTS_END)
        elif since_rv == 0:
            since_rv = deps.feed.last_rv
        seconds_left = max(ends_at - clock(), 0.0)
        async with aclosing(deps.watches.follow(selection, since_rv, bookmark_seconds, seconds_left)) as batches:
            async for items in batches:
                for chunk in lines.events(items):
                    yield chunk
    except ApiError as error:
        yield lines.error(error)


async def _initial(deps: Deps, selection: Selection, begin: Opening) -> AsyncGenerator[Page, None]:
    """Today's objects, page by page at one revision."""
    options = ListOptions(
        resource_version=str(begin.since_rv) if begin.since_rv else "",
        resource_version_match=Match.NOT_OLDER_THAN.value if begin.since_rv else "",
    )
    while True:
        page = await deps.resources.reader.list(selection, options)
        yield page
        if not page.continue_token:
            return
        options = ListOptions(continue_token=page.continue_token)


class _Lines:
    """Turns items into lines of one form, and lines into chunks of bounded size."""

    def __init__(
        self, kind: Kind, renderer: Renderer, reword: Callable[[bytes], bytes], request: Request, deps: Deps
    ) -> None:
        self._kind = kind
        self._renderer = renderer
        self._reword = reword
        self._docs_prefix = deps.docs_prefix(request.scope)
        self._request_id: str = request.scope[REQUEST_ID]

    def added(self, documents: Iterable[bytes]) -> Iterable[bytes]:
        return _joined(self._line(b"ADDED", document) for document in documents)

    def events(self, items: Iterable[WatchItem]) -> Iterable[bytes]:
        return _joined(
            self.bookmark(item.rv)
            if isinstance(item, Bookmark)
            else self._line(item.type.value.encode(), item.document)
            for item in items
        )

    def bookmark(self, rv: int, annotations: dict[str, str] | None = None) -> bytes:
        """A line that only moves the client's revision on (R-WATCH-7)."""
        metadata: dict[str, Any] = {"resourceVersion": str(rv)}
        if annotations:
            metadata["annotations"] = annotations
        document = {"apiVersion": self._kind.api_version, "kind": self._kind.kind, "metadata": metadata}
        return b'{"type":"BOOKMARK","object":%s}\n' % self._renderer.bookmark(document)

    def error(self, error: ApiError) -> bytes:
        """A line that ends the stream; its object is a complete Status."""
        body = status_body(error, self._request_id, self._docs_prefix)
        return b'{"type":"ERROR","object":%s}\n' % orjson.dumps(body)

    def _line(self, event_type: bytes, document: bytes) -> bytes:
        return b'{"type":"%s","object":%s}\n' % (event_type, self._renderer.event(self._reword(document)))


def _joined(lines: Iterable[bytes]) -> Iterable[bytes]:
    """Lines that are ready together leave together, but never an unbounded buffer of them."""
    pending: list[bytes] = []
    size = 0
    for line in lines:
        pending.append(line)
        size += len(line)
        if size >= _CHUNK_BYTES_MAX:
            yield b"".join(pending)
            pending, size = [], 0
    if pending:
        yield b"".join(pending)
