"""Watchers: they list, watch, stall, break off and resume, and each of their connections is checked against the log.

The truth about a connection is known as soon as the auditor has read as far, so a watcher judges every segment when it
ends and forgets it: a run may be long, and a failure shows early. What it was told is also folded into a state of its
own, as an informer does, which must equal a list at the end.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

import httpx
import orjson

from tests.oracle.history import (
    Ending,
    Name,
    Operator,
    Seen,
    Segment,
    Selector,
    Term,
    canonical,
    problems_of_list,
    problems_of_segment,
    rv_of,
)
from tests.oracle.storm import PROJECTS, SILENCE_SECONDS_MAX, Storm
from tests.oracle.writers import CALLEE, COLORS, KINDS, NAMES

_EQUAL, _NOT = Operator.EQUAL, Operator.NOT_EQUAL
_LABELS: tuple[tuple[Term, ...], ...] = (
    (),
    (),
    *((Term("color", _EQUAL, color),) for color in COLORS),
    (Term("color", _NOT, "red"),),
    (Term("tier", Operator.EXISTS),),
    (Term("tier", Operator.NOT_EXISTS), Term("color", _EQUAL, "blue")),
    (Term("tier", _NOT, "a"),),
)
_FIELDS: dict[str, tuple[tuple[Term, ...], ...]] = {
    "apps": ((Term("status.phase", _EQUAL, "Terminating"),), (Term("status.phase", _NOT, "Terminating"),)),
    "functions": ((Term("status.phase", _EQUAL, "Terminating"),), (Term("status.phase", _NOT, "Terminating"),)),
    "secrets": ((Term("metadata.namespace", _EQUAL, PROJECTS[1]),), (Term("status.phase", _EQUAL, "Ready"),)),
    "functioncalls": (
        (Term("spec.mapId", _EQUAL, "m1"),),
        (Term("spec.mapId", _NOT, "m1"), Term("status.phase", _NOT, "Cancelled")),
        (Term("spec.function", _EQUAL, CALLEE),),
    ),
}
_LIST_LIMITS = ("", "3", "500")
_AWAY_SECONDS_MAX = 4.0
_STALL_SECONDS_MAX = 3.0
_FINAL_LISTS_MAX = 120
"""A server that was frozen or cut off until now may refuse; for a minute and more it has no reason to."""
_FINAL_LIST_PAUSE_SECONDS = 0.5
_GONE = httpx.codes.GONE


class Watcher:
    """One of them, with one selector for the whole run."""

    def __init__(self, storm: Storm, number: int) -> None:
        self._storm = storm
        self.name = f"watcher-{number}"
        self._chance = storm.chance(self.name)
        self._selector = _selector(self._chance)
        self._slow = number % 3 == 0
        self._rv = 0
        """Everything up to here was told, and nothing after it; 0 when a new beginning is needed."""
        self._state: dict[Name, bytes] = {}

    async def run(self) -> None:
        """Watch until the storm is over; then once more until everything has come, and compare with a list."""
        async with self._storm.client(slow=self._slow) as client:
            while not self._storm.calm.is_set():
                await self._follow(client, self._chance.uniform(0.2, 6.0))
                await self._storm.pause(self._chance.choice((0.0, 0.1, _AWAY_SECONDS_MAX * self._chance.random())))
            await self._catch_up(client)

    async def _follow(self, client: httpx.AsyncClient, seconds: float) -> None:
        """Begin anew or resume, and watch for about so long."""
        try:
            if self._rv == 0 and self._chance.random() < 0.6:
                await self._list(client)
            await self._watch(client, seconds, bookmarks=self._chance.random() < 0.7)
        except httpx.HTTPError:
            self._storm.counts["watches broken"] += 1

    async def _catch_up(self, client: httpx.AsyncClient) -> None:
        final_rv = await self._storm.auditor.read()
        # Once at least: somebody who has everything already must see that nothing more comes.
        await self._follow(client, SILENCE_SECONDS_MAX)
        while self._rv < final_rv and not self._storm.failures:
            await self._follow(client, SILENCE_SECONDS_MAX)
        if self._storm.failures:
            return
        state, rv = self._state, self._rv
        for _ in range(_FINAL_LISTS_MAX):
            with suppress(httpx.HTTPError):
                if await self._list(client, exact_rv=rv):
                    break
            await asyncio.sleep(_FINAL_LIST_PAUSE_SECONDS)
        else:
            self._storm.fail(self.name, [f"{self._selector}: no list at {rv} was answered, so nothing was compared"])
        if self._state != state:
            self._storm.fail(self.name, [f"{self._selector}: what was folded up to {rv} is not what a list shows"])

    async def _list(self, client: httpx.AsyncClient, exact_rv: int = 0) -> bool:
        """Learn the present, or the state at one revision, in one page or in many; False when it was refused."""
        query = {**self._selector.query, "limit": self._chance.choice(_LIST_LIMITS)}
        if exact_rv:
            query |= {"resourceVersion": str(exact_rv), "resourceVersionMatch": "Exact"}
        shown: dict[Name, bytes] = {}
        while True:
            answer = await client.get(self._url(), params=query)
            if not answer.is_success:
                self._refused(answer)
                return False
            page = answer.json()
            shown |= {_name(item): canonical(item) for item in page["items"]}
            rv, token = int(page["metadata"]["resourceVersion"]), page["metadata"].get("continue")
            if not token:
                break
            query = {**self._selector.query, "limit": query["limit"], "continue": token}
        await self._take(rv, shown)
        return True

    async def _take(self, rv: int, shown: dict[Name, bytes]) -> None:
        """Begin with what is shown, once it is known to be right."""
        self._storm.counts["lists"] += 1
        await self._storm.auditor.reach(rv)
        self._storm.fail(self.name, problems_of_list(self._storm.auditor.log, self._selector, rv, shown))
        self._state, self._rv = shown, rv

    async def _watch(self, client: httpx.AsyncClient, seconds: float, *, bookmarks: bool) -> None:
        query = {**self._selector.query, "watch": "true"}
        begins = self._rv == 0
        if begins:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        else:
            query |= {"resourceVersion": str(self._rv)}
        catching_up = self._storm.calm.is_set()
        if begins or bookmarks or catching_up:
            query |= {"allowWatchBookmarks": "true"}
        if self._chance.random() < 0.2:
            query |= {"timeoutSeconds": str(self._chance.randrange(1, 4))}
        awaits_bookmarks = "allowWatchBookmarks" in query
        timeout = httpx.Timeout(SILENCE_SECONDS_MAX if awaits_bookmarks else max(seconds, 1.0), connect=5.0)
        try:
            async with client.stream("GET", self._url(), params=query, timeout=timeout) as answer:
                await self._stream(answer, seconds, begins=begins)
        except httpx.ReadTimeout:
            if awaits_bookmarks:
                self._storm.fail(self.name, [f"silence for {SILENCE_SECONDS_MAX} s in a watch with bookmarks"])

    async def _stream(self, answer: httpx.Response, seconds: float, *, begins: bool) -> None:
        if not answer.is_success:
            await answer.aread()
            self._refused(answer)
            return
        self._storm.counts["watches"] += 1
        async with aclosing(_lines(answer)) as lines:
            if begins and not await self._begin(lines):
                return
            segment = Segment(self._rv)
            try:
                await self._read(lines, segment, seconds)
            finally:
                # However it broke off, what came before is judged, and is where to go on.
                await self._judge(segment)

    async def _begin(self, lines: AsyncIterator[dict[str, Any]]) -> bool:
        """Read what there is, up to the bookmark that says so; False when it broke off before."""
        shown: dict[Name, bytes] = {}
        async for line in lines:
            if line["type"] == "ERROR":
                self._erred(line["object"])
                return False
            if line["type"] == "BOOKMARK":
                await self._take(int(line["object"]["metadata"]["resourceVersion"]), shown)
                return True
            assert line["type"] == "ADDED", line
            shown[_name(line["object"])] = canonical(line["object"])
        return False

    async def _read(self, lines: AsyncIterator[dict[str, Any]], segment: Segment, seconds: float) -> None:
        """Read lines until time is up, the stream ends, or after the storm everything has come."""
        storm = self._storm
        catching_up = storm.calm.is_set()
        clock = asyncio.get_running_loop().time
        ends_at = clock() + seconds
        stalls_at = clock() + seconds * self._chance.random() if self._slow else ends_at
        async for line in lines:
            if line["type"] == "ERROR":
                if self._erred(line["object"]) == _GONE:
                    segment.ending = Ending.EXPIRED
                return
            segment.lines.append(_seen(line))
            if catching_up and segment.lines[-1].rv >= storm.auditor.log.last_rv:
                segment.ending, segment.upto_rv = Ending.CAUGHT_UP, storm.auditor.log.last_rv
                return
            if clock() >= stalls_at and not catching_up:
                storm.counts["stalls"] += 1
                stalls_at = ends_at
                await storm.pause(_STALL_SECONDS_MAX * self._chance.random())
            if clock() >= ends_at or (storm.calm.is_set() and not catching_up):
                return

    async def _judge(self, segment: Segment) -> None:
        auditor = self._storm.auditor
        last_rv = max((line.rv for line in segment.lines), default=segment.since_rv)
        await auditor.reach(last_rv)
        found = problems_of_segment(auditor.log, self._selector, segment)
        if segment.ending is Ending.EXPIRED and last_rv >= (compacted_rv := await auditor.compacted_rv()):
            found.append(f"{last_rv} is said to be too old, but the log reaches back to {compacted_rv}")
        self._storm.fail(f"{self.name}, {self._selector}, from {segment.since_rv}", found)
        self._storm.counts[f"segments {segment.ending.name.lower()}"] += 1
        self._storm.counts["events"] += len(segment.lines)
        self._fold(segment.lines)
        self._rv = 0 if segment.ending is Ending.EXPIRED else last_rv

    def _fold(self, lines: list[Seen]) -> None:
        for line in lines:
            if line.type == "DELETED":
                self._state.pop(line.name, None)
            elif line.type != "BOOKMARK":
                self._state[line.name] = line.document

    def _refused(self, answer: httpx.Response) -> None:
        """A server that is behind or cut off may refuse; one that errs may not."""
        self._storm.counts[f"reads refused with {answer.status_code}"] += 1
        if answer.status_code == _GONE:
            self._rv = 0
        elif answer.status_code not in (503, 504):
            self._storm.fail(self.name, [f"{answer.request.url}: {answer.text[:1000]}"])

    def _erred(self, status: dict[str, Any]) -> int:
        code: int = status["code"]
        self._storm.counts[f"watches ended with {code}"] += 1
        if code not in (_GONE, 503, 504):
            self._storm.fail(self.name, [f"a watch ended with {status}"])
        return code

    def _url(self) -> str:
        return self._storm.url(self._chance, self._selector.kind, self._selector.project)


def _selector(chance: random.Random) -> Selector:
    kind = chance.choice((*KINDS, "functioncalls"))
    project = chance.choice((None, *PROJECTS))
    labels = chance.choice(_LABELS)
    fields: tuple[Term, ...] = chance.choice((*_FIELDS[kind], (), ()))
    if kind in KINDS and chance.random() < 0.2:
        fields = (Term("metadata.name", _EQUAL, f"{kind[:-1]}-{chance.randrange(NAMES)}"),)
    return Selector(kind, project, labels, fields)


async def _lines(answer: httpx.Response) -> AsyncGenerator[dict[str, Any], None]:
    async for line in answer.aiter_lines():
        parsed: dict[str, Any] = orjson.loads(line)
        yield parsed


def _seen(line: dict[str, Any]) -> Seen:
    document = canonical(line["object"])
    rv = rv_of(document)
    if line["type"] == "BOOKMARK":
        return Seen("BOOKMARK", rv, ("", ""), b"")
    return Seen(line["type"], rv, _name(line["object"]), document)


def _name(document: dict[str, Any]) -> Name:
    return document["metadata"].get("namespace", ""), document["metadata"]["name"]
