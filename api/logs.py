"""`GET …/{plural}/{name}/log`: what workers printed, as plain text, and with `follow` what they print now.

The query is that of the public command line and SDK: `follow`, `tailLines`, `sinceSeconds`, `timestamps`, `attempt`;
other parameters are ignored. Neither client opens a log stream again that ended early, so a followed log lives until
its object has nothing more to say.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from api.deps import SubresourceHandler, Target, credential
from api.streams import StreamResponse, Streams
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.identity.scopes import require
from controlplane.kinds.registry import KINDS
from controlplane.logs.reader import LogOptions, LogReader
from controlplane.logs.subjects import LOGGED_KINDS
from controlplane.machinery.kind import Verb
from controlplane.settings import Settings
from controlplane.store.contract import Key

_TRUE = frozenset({"true", "1", "t", "True", "TRUE", "T"})
_FALSE = frozenset({"false", "0", "f", "False", "FALSE", "F", ""})
_NUMBER_MAX = 1 << 40
"""Far beyond any number of lines or seconds, and within what PostgreSQL takes."""
_ATTEMPT_LENGTH_MAX = 63
"""Longest name of an Attempt."""


class LogRoutes:
    """The handlers of logs."""

    def __init__(self, reader: LogReader, streams: Streams, settings: Settings) -> None:
        self._reader = reader
        self._streams = streams
        self._seconds_max = settings.log_follow_seconds_max

    def subresources(self) -> Mapping[tuple[str, str, str], SubresourceHandler]:
        """`log` of every kind that has one."""
        return {(KINDS[kind].plural, "log", "GET"): self.log for kind in LOGGED_KINDS}

    async def log(self, request: Request, caller: Principal, target: Target) -> Response:
        """The log of one object."""
        options = log_options(request.query_params)
        chunks = await self._reader.read(Key(target.kind.kind, caller.org, target.project, target.name), options)
        return StreamResponse(
            chunks,
            media_type="text/plain; charset=utf-8",
            seconds_max=self._seconds_max,
            streams=self._streams,
            credential=credential(request),
            recheck=lambda now: require(now, target.kind.scope_resource, Verb.GET, target.project),
            refused=lambda _refusal: b"",  # a log is plain text, and its reader takes every line for one of it
        )


def log_options(query: QueryParams) -> LogOptions:
    """How the query asks for a log; BadRequest for a value that cannot be read."""
    attempt = query.get("attempt", "")
    if len(attempt) > _ATTEMPT_LENGTH_MAX or "\0" in attempt:
        raise ApiError(Reason.BAD_REQUEST, "`attempt` must be the number or the name of an attempt")
    return LogOptions(
        follow=_flag(query, "follow"),
        tail_lines=_number(query, "tailLines"),
        since_seconds=_number(query, "sinceSeconds"),
        timestamps=_flag(query, "timestamps"),
        attempt=attempt,
    )


def _flag(query: QueryParams, name: str) -> bool:
    value = query.get(name, "")
    if value not in _TRUE | _FALSE:
        raise ApiError(Reason.BAD_REQUEST, f'`{name}` must be "true" or "false", not "{value}"')
    return value in _TRUE


def _number(query: QueryParams, name: str) -> int | None:
    value = query.get(name, "")
    if not value:
        return None
    if not (value.isascii() and value.isdigit()):
        raise ApiError(Reason.BAD_REQUEST, f'`{name}` must be a whole number that is not negative, not "{value}"')
    return min(int(value[:20]), _NUMBER_MAX)
