"""Whose log it is: from an object to the workers and times its log consists of.

A subject looks at its object and says what to read now and whether more can come. The reader asks again after every
change of the object, so a call that is claimed, or an App that gets another Function, only changes the answer.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

import orjson

from controlplane.clock import parse_time
from controlplane.logs.sources import EVERYTHING, Window
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database
from controlplane.store.objects import Objects

LOGGED_KINDS = ("Function", "FunctionCall", "App", "Attempt", "Image")
"""The kinds whose objects have a log."""

APP_LABEL = "nodus.dev/app"

_CHOSEN = """
(SELECT uid FROM attempts WHERE function_uid = ANY($1::text[]) AND uid = $2)
UNION ALL
(SELECT uid FROM attempts WHERE function_uid = ANY($1::text[]) AND $3::bigint > 0
    ORDER BY created_at, uid OFFSET greatest($3::bigint - 1, 0) LIMIT 1)
"""
# The log of changes knows to the microsecond what the object tells in whole seconds, and knows of every dispatch, for
# as long as it is kept. Documents are taken apart here: SQL refuses to look into one with a NUL in it.
_TRANSITIONS = """
SELECT rv, time, fields->>'status.phase' AS phase, CASE WHEN fields->>'status.phase' = 'Running' THEN doc END AS doc
FROM changes WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4 AND rv > $5 AND uid = $6
    AND fields->>'status.phase' IS DISTINCT FROM prev_fields->>'status.phase'
ORDER BY rv
"""
_NUMBER = re.compile("[0-9]{1,9}")
_SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of a log: the lines of one worker in a window, or all lines of the workers of some Functions."""

    attempt: str | None = None
    function_uids: tuple[str, ...] = ()
    window: Window = EVERYTHING
    closed: bool = False
    """Nothing but lines that are still under way can come."""
    closed_at: datetime | None = None
    """With `closed`, when lines printed before then may still be under way."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a log consists of now, one part after the other."""

    topics: frozenset[Hashable]
    """What must wake a follower (`news.py`)."""
    parts: tuple[Part, ...]
    ended: bool
    """No further part can come."""


class Subject(Protocol):
    """One object's log."""

    async def look(self) -> Look | None:
        """What it consists of now; None when the object is gone."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where subjects look things up."""

    database: Database
    objects: Objects
    cache: ObjectCache


@dataclass(slots=True)
class PoolSubject:
    """All workers of a Function, or of all Functions of an App, until it is gone; with `attempt` one of them."""

    places: Places
    key: Key
    attempt: str
    _uid: str = ""
    _function_uids: tuple[str, ...] = ()

    async def look(self) -> Look | None:
        document = await self.places.cache.read(self.key)
        uid = document["metadata"]["uid"] if document is not None else ""
        if not self._uid:
            self._uid = uid
        if not self._uid:
            return None
        # A member that was deleted may have lines nobody has read yet.
        self._function_uids = tuple(dict.fromkeys((*self._function_uids, *self._members())))
        topics = frozenset({self.key, ("Function", self.key.org, self.key.project), *self._function_uids})
        # Its workers were gone before it was, and their nodes had sent everything by then.
        ended = uid != self._uid
        if not self.attempt:
            return Look(topics, (Part(function_uids=self._function_uids, closed=ended),), ended)
        chosen = await self._chosen()
        return Look(topics, (Part(attempt=chosen, closed=ended),) if chosen else (), ended)

    def _members(self) -> list[str]:
        if self.key.kind == "Function":
            return [self._uid]
        return sorted(
            document["metadata"]["uid"]
            for key, document in self.places.cache.of_kind("Function")
            if (key.org, key.project) == (self.key.org, self.key.project)
            and document["metadata"].get("labels", {}).get(APP_LABEL) == self.key.name
        )

    async def _chosen(self) -> str | None:
        """The worker that `attempt` means: the name of one of these, or its number in the order of their creation."""
        number = int(self.attempt) if _NUMBER.fullmatch(self.attempt) else 0
        rows = await self.places.database.fetch(_CHOSEN, list(self._function_uids), self.attempt, number)
        return rows[0]["uid"] if rows else None


@dataclass(slots=True)
class AttemptSubject:
    """One worker until it has ended; its node sends the last lines before it tells the end."""

    places: Places
    key: Key

    async def look(self) -> Look | None:
        document = await self.places.objects.get_document(self.key)
        if document is None:
            return None
        ended = document["status"]["phase"] in _OVER
        return Look(frozenset({self.key, self.key.name}), (Part(attempt=self.key.name, closed=ended),), ended)


@dataclass(slots=True)
class ImageSubject:
    """What the builds of an Image printed, until the last of them has ended."""

    places: Places
    key: Key

    async def look(self) -> Look | None:
        document = await self.places.cache.read(self.key)
        if document is None:
            return None
        uid = document["metadata"]["uid"]
        ended = document["status"].get("phase") in ("Ready", "Failed")
        # The node sends all lines before it tells the end.
        return Look(frozenset({self.key, uid}), (Part(function_uids=(uid,), closed=ended),), ended)


@dataclass(slots=True)
class CallSubject:
    """What the workers of a call printed while they ran it, one dispatch after the other."""

    places: Places
    key: Key
    _rv: int = 0
    _dispatches: list[Part] = field(default_factory=list)

    async def look(self) -> Look | None:
        document = await self.places.objects.get_document(self.key)
        if document is None:
            return None
        key = self.key
        for row in await self.places.database.fetch(
            _TRANSITIONS, key.kind, key.org, key.project, key.name, self._rv, document["metadata"]["uid"]
        ):
            self._rv = row["rv"]
            self._learn(row["phase"], row["time"], row["doc"])
        parts = tuple(self._dispatches) or _last_dispatch(document)
        topics = frozenset({key, *(part.attempt for part in parts)})
        return Look(topics, parts, document["status"]["phase"] in _OVER)

    def _learn(self, phase: str, time: datetime, doc: str | None) -> None:
        """Note what a change of phase says about dispatches; a call that is being cancelled still runs."""
        if doc is not None:
            attempt = orjson.loads(doc)["status"]["worker"]["attempt"]
            self._dispatches.append(Part(attempt=attempt, window=Window(nanoseconds(time))))
        elif self._dispatches and not self._dispatches[-1].closed and phase != "Cancelling":
            window = Window(self._dispatches[-1].window.first_ns, nanoseconds(time))
            self._dispatches[-1] = replace(self._dispatches[-1], window=window, closed=True, closed_at=time)


def _last_dispatch(document: Document) -> tuple[Part, ...]:
    """What the object itself tells, when its changes are not kept any more."""
    status = document["status"]
    if "startTime" not in status or "worker" not in status:
        return ()
    attempt, started = status["worker"]["attempt"], nanoseconds(parse_time(status["startTime"]))
    if "completionTime" not in status:
        return (Part(attempt=attempt, window=Window(started)),)
    ended_at = parse_time(status["completionTime"]) + _SECOND
    return (Part(attempt=attempt, window=Window(started, nanoseconds(ended_at)), closed=True, closed_at=ended_at),)


_OVER = frozenset({"Succeeded", "Failed", "Cancelled"})
"""The last phases of calls and attempts."""


def subject_of(places: Places, key: Key, attempt: str) -> Subject:
    """The log of an object of one of LOGGED_KINDS. `attempt`, a number or a name, chooses one of several workers."""
    if key.kind == "Attempt":
        return AttemptSubject(places, key)
    if key.kind == "FunctionCall":
        return CallSubject(places, key)
    if key.kind == "Image":
        return ImageSubject(places, key)
    return PoolSubject(places, key, attempt)


def nanoseconds(moment: datetime) -> int:
    """A time as lines are stamped: nanoseconds since 1970."""
    return int(moment.timestamp()) * 1_000_000_000 + moment.microsecond * 1_000
