"""A scripted client: it creates calls as the SDK does, asks for their end, waits for it on one watch, and notes it all.

Each is a session of its own. Every request is repeated, at another API process, until it is answered: with the same
Idempotency-Key where it creates something. A watch that breaks goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
import uuid
from collections.abc import Sequence
from typing import Any

import httpx
import orjson

from tests.faults.cluster import Cluster
from tests.faults.history import ASKED, CREATED, ENDED, SEEN, History
from tests.faults.plans import KINDS
from tests.fixtures.wire import checked_client

ROOT = "/apis/nodus.dev/v1/namespaces/default"
TERMINAL = frozenset({"Succeeded", "Failed", "Cancelled"})
TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})
REQUEST_SECONDS = 10.0
"""An answer that does not come in this time is asked for again."""
GIVE_UP_SECONDS = 120.0
SILENCE_SECONDS = 15.0
"""A watch is opened anew after this much silence; the real clients are more patient."""

Json = dict[str, Any]


class Client:
    """One caller. Use it as a context manager; `function` must exist before its first call."""

    def __init__(self, name: str, function: str, cluster: Cluster, rng: random.Random) -> None:
        self.name = name
        self._function = function
        self._urls = list(cluster.urls)
        self._rng = rng
        self._history = History(cluster.history, by=name)
        self._marks = str(cluster.marks)
        self.gate = cluster.marks / f"gate of {function}"
        self._http = checked_client(headers={"Authorization": f"Bearer {cluster.key}"}, timeout=REQUEST_SECONDS)
        self._ends: dict[str, asyncio.Future[str]] = {}
        self._watching: asyncio.Task[None] | None = None
        self.selector = {"fieldSelector": f"spec.session={name}"}

    async def __aenter__(self) -> Client:
        # Nothing is missed that this client makes: the watch begins before its first call.
        listed = await self.request("GET", f"{ROOT}/functioncalls", params={**self.selector, "limit": "1"})
        position: str = listed.json()["metadata"]["resourceVersion"]
        self._watching = asyncio.create_task(self._watch_for_ever(position))
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._watching is not None:
            self._watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watching
        await self._http.aclose()
        self._history.close()

    # Requests.

    async def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer to a request, however often it has to be sent; AssertionError when none comes."""
        until = time.monotonic() + GIVE_UP_SECONDS
        told = ""
        while time.monotonic() < until:
            self._urls.append(self._urls.pop(0))
            try:
                answer = await self._http.request(method, f"{self._urls[0]}{path}", **options)
            except httpx.TransportError as error:
                told = repr(error)
            else:
                in_progress = answer.status_code == 409 and answer.json().get("reason") == "RequestInProgress"
                if answer.status_code not in TRY_LATER and not in_progress:
                    return answer
                told = answer.text
            await asyncio.sleep(self._rng.uniform(0.05, 0.5))
        raise AssertionError(f"{method} {path} was not answered in {GIVE_UP_SECONDS} s: {told}")

    async def create(self, path: str, body: Json) -> Json:
        """What came of a creation, which happens once, however often it has to be asked for."""
        answer = await self.request("POST", path, json=body, headers={"Idempotency-Key": uuid.uuid4().hex})
        assert answer.status_code == 201, answer.text
        created: Json = answer.json()
        return created

    async def call(self, kind: str, bound_seconds: float) -> str:
        """Create one call; its name."""
        created = await self.create(f"{ROOT}/functioncalls", self.document(kind))
        return self._created(created, kind, bound_seconds)

    async def map(self, kinds: Sequence[str], bound_seconds: float) -> list[str]:
        """Create calls of these kinds in one request; their names."""
        items = [self.document(kind) for kind in kinds]
        body = {"apiVersion": "nodus.dev/v1", "kind": "FunctionCallList", "items": items}
        created = await self.create(f"{ROOT}/functions/{self._function}/calls", body)
        made = zip(created["items"], kinds, strict=True)
        return [self._created(document, kind, bound_seconds) for document, kind in made]

    async def adopt(self, content: bytes, kind: str, bound_seconds: float) -> str:
        """Take over a call from the answer to its creation, and wait for its end."""
        return await self.end_of(self._created(orjson.loads(content), kind, bound_seconds), bound_seconds)

    async def ask(self, name: str, what: str) -> None:
        """Cancel or delete a call."""
        self._history.add(ASKED, call=name, what=what)
        path = f"{ROOT}/functioncalls/{name}"
        if what == "cancel":
            headers = {"Content-Type": "application/merge-patch+json"}
            await self.request("PATCH", path, content=b'{"spec":{"state":"Cancelled"}}', headers=headers)
        else:
            await self.request("DELETE", path)

    async def end_of(self, name: str, bound_seconds: float) -> str:
        """The phase in which a call ended; empty when nobody told within the bound."""
        began = time.monotonic()
        phase = ""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(bound_seconds):
                phase = await asyncio.shield(self._end(name))
        self._history.add(ENDED, call=name, phase=phase, seconds=time.monotonic() - began)
        return phase

    async def make_and_wait(self, kinds: Sequence[str], bound_seconds: float) -> list[str]:
        """A map of these kinds from its creation to the end of each call, with what their kinds ask for."""
        names = await self.map(kinds, bound_seconds)
        return await asyncio.gather(
            *(self._see_through(*made, bound_seconds) for made in zip(names, kinds, strict=True))
        )

    async def _see_through(self, name: str, kind: str, bound_seconds: float) -> str:
        waiting = asyncio.create_task(self.end_of(name, bound_seconds))
        if KINDS[kind].ask:
            await asyncio.sleep(self._rng.uniform(0, 2))
            await self.ask(name, KINDS[kind].ask)
        return await waiting

    def document(self, kind: str) -> Json:
        """A call of this kind, as the SDK writes it."""
        return {
            "apiVersion": "nodus.dev/v1",
            "kind": "FunctionCall",
            "metadata": {"generateName": f"{self._function}-"},
            "spec": {
                "function": self._function,
                "session": self.name,
                "input": KINDS[kind].input(self._marks, str(self.gate)),
                **KINDS[kind].spec,
            },
        }

    def _created(self, document: Json, kind: str, bound_seconds: float) -> str:
        name: str = document["metadata"]["name"]
        phases = sorted(KINDS[kind].phases)
        uid = document["metadata"]["uid"]
        self._history.add(CREATED, call=name, uid=uid, kind=kind, bound_seconds=bound_seconds, phases=phases)
        return name

    # The watch.

    def _end(self, name: str) -> asyncio.Future[str]:
        return self._ends.setdefault(name, asyncio.get_running_loop().create_future())

    async def _watch_for_ever(self, position: str) -> None:
        while True:
            self._urls.append(self._urls.pop(0))
            query = {**self.selector, "watch": "true", "resourceVersion": position, "allowWatchBookmarks": "true"}
            timeout = httpx.Timeout(REQUEST_SECONDS, read=SILENCE_SECONDS)
            try:
                url = f"{self._urls[0]}{ROOT}/functioncalls"
                async with self._http.stream("GET", url, params=query, timeout=timeout) as stream:
                    if stream.status_code == 200:
                        async for line in stream.aiter_lines():
                            position = self._saw(orjson.loads(line))
            except httpx.TransportError:
                pass  # opened again where it was
            await asyncio.sleep(0.1)

    def _saw(self, event: Json) -> str:
        """Note an event; the position from which to go on."""
        document = event["object"]
        assert event["type"] != "ERROR", f"a watch ended with {document}"
        position: str = document["metadata"]["resourceVersion"]
        if event["type"] == "BOOKMARK":
            return position
        name, status = document["metadata"]["name"], document["status"]
        phase: str = status["phase"]
        self._history.add(
            SEEN,
            call=name,
            uid=document["metadata"]["uid"],
            type=event["type"],
            rv=int(position),
            phase=phase,
            retries=status.get("retries", 0),
            recoveries=status.get("recoveries", 0),
        )
        end = self._end(name)
        if phase in TERMINAL and not end.done():
            end.set_result(phase)
        return position
