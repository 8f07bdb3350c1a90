"""Writers: each does one random thing after the other to objects that all of them share."""

from __future__ import annotations

import base64
from typing import Any

import httpx

from tests.oracle.history import canonical, problems_of_answer
from tests.oracle.storm import PROJECTS, Storm

CALLEE = "callee"
"""The Function of all calls; nobody deletes it."""
COLORS = ("red", "green", "blue")
TIERS = ("a", "b", None)
HOLD = "example.org/hold"
KINDS = ("apps", "functions", "secrets")
NAMES = 6
"""Names of each kind in each project: few, so that writers meet."""
PAUSE_SECONDS_MAX = 0.05
MERGE = {"Content-Type": "application/merge-patch+json"}
FUNCTION = {"code": {"module": "app", "qualname": "f"}, "python": "3.11", "image": "nodus/python:3.11"}
_PICKLE = base64.b64encode(b"\x80\x04K\x07.").decode()
_REFUSALS = frozenset({400, 404, 409, 410, 422, 429, 503, 504})
"""What may be answered to somebody who races others, or asks while something is broken."""


class Writer:
    """One of them."""

    def __init__(self, storm: Storm, number: int) -> None:
        self._storm = storm
        self.name = f"writer-{number}"
        self._chance = storm.chance(self.name)
        self._calls: list[tuple[str, str]] = []

    async def run(self) -> None:
        """Write until the storm is over."""
        actions = (
            (self._create, 5),
            (self._relabel, 6),
            (self._change, 4),
            (self._hold, 3),
            (self._delete, 3),
            (self._call, 3),
            (self._call_many, 1),
            (self._relabel_call, 3),
            (self._delete_call, 3),
        )
        acts, weights = zip(*actions, strict=True)
        async with self._storm.client() as client:
            while not self._storm.over.is_set():
                [act] = self._chance.choices(acts, weights)
                try:
                    await act(client)
                except httpx.HTTPError:
                    self._storm.counts["writes without an answer"] += 1
                await self._storm.pause(self._chance.uniform(0, PAUSE_SECONDS_MAX))

    async def _create(self, client: httpx.AsyncClient) -> None:
        plural, project, name = self._address()
        specs: dict[str, dict[str, Any]] = {
            "apps": {"ephemeral": False},
            "functions": FUNCTION,
            "secrets": {"stringData": {"K": str(self._chance.random())}},
        }
        finalizers = {"finalizers": [HOLD]} if self._chance.random() < 0.3 else {}
        body = {"metadata": {"name": name, "labels": self._labels(), **finalizers}, "spec": specs[plural]}
        await self._request(client, "POST", plural, project, "", body)

    async def _relabel(self, client: httpx.AsyncClient) -> None:
        plural, project, name = self._address()
        await self._patch(client, plural, project, name, {"metadata": {"labels": self._label_patch()}})

    async def _change(self, client: httpx.AsyncClient) -> None:
        plural, project, name = self._address()
        word = str(self._chance.randrange(1_000))
        specs: dict[str, dict[str, Any]] = {
            "apps": {"description": word},
            "functions": {"env": [{"name": "WORD", "value": word}]},
            "secrets": {"stringData": {"K": word}},
        }
        await self._patch(client, plural, project, name, {"spec": specs[plural]})

    async def _hold(self, client: httpx.AsyncClient) -> None:
        """Add a finalizer or take all of them off, which lets a deleted object go."""
        plural, project, name = self._address()
        finalizers = self._chance.choice(([HOLD], [], []))
        await self._patch(client, plural, project, name, {"metadata": {"finalizers": finalizers}})

    async def _delete(self, client: httpx.AsyncClient) -> None:
        plural, project, name = self._address()
        if self._chance.random() < 0.1:
            parameters = {"labelSelector": f"color={self._chance.choice(COLORS)}"}
            await self._request(client, "DELETE", plural, project, "", parameters=parameters)
        else:
            await self._request(client, "DELETE", plural, project, name)

    async def _call(self, client: httpx.AsyncClient) -> None:
        project = self._chance.choice(PROJECTS)
        answer = await self._request(client, "POST", "functioncalls", project, "", self._call_body())
        self._remember(project, [answer])

    async def _call_many(self, client: httpx.AsyncClient) -> None:
        project = self._chance.choice(PROJECTS)
        items = [self._call_body() for _ in range(self._chance.randrange(2, 30))]
        body = {"kind": "FunctionCallList", "items": items}
        url = f"{self._storm.url(self._chance, 'functions', project)}/{CALLEE}/calls"
        answer = await client.post(url, json=body)
        self._judge(answer)
        if answer.is_success:
            self._remember(project, answer.json().get("items", []))

    async def _relabel_call(self, client: httpx.AsyncClient) -> None:
        if self._calls:
            project, name = self._chance.choice(self._calls)
            await self._patch(client, "functioncalls", project, name, {"metadata": {"labels": self._label_patch()}})

    async def _delete_call(self, client: httpx.AsyncClient) -> None:
        for _ in range(min(len(self._calls), 4)):
            project, name = self._calls.pop(self._chance.randrange(len(self._calls)))
            await self._request(client, "DELETE", "functioncalls", project, name)

    async def _patch(self, client: httpx.AsyncClient, plural: str, project: str, name: str, body: Any) -> None:
        await self._request(client, "PATCH", plural, project, name, body)

    async def _request(
        self,
        client: httpx.AsyncClient,
        method: str,
        plural: str,
        project: str,
        name: str,
        body: Any = None,
        parameters: dict[str, str] | None = None,
    ) -> dict[str, Any]:
        """The object that was written, which the log must have; empty when there is none."""
        url = self._storm.url(self._chance, plural, project) + (f"/{name}" if name else "")
        headers = MERGE if method == "PATCH" else {}
        answer = await client.request(method, url, json=body, headers=headers, params=parameters)
        self._judge(answer)
        if not answer.is_success:
            return {}
        document: dict[str, Any] = answer.json()
        if "uid" not in document.get("metadata", {}):
            return {}  # a Status, or the list of what a collection lost
        rv = int(document["metadata"]["resourceVersion"])
        await self._storm.auditor.reach(rv)
        address = project, document["metadata"]["name"]
        self._storm.fail(self.name, problems_of_answer(self._storm.auditor.log, plural, address, canonical(document)))
        return document

    def _judge(self, answer: httpx.Response) -> None:
        self._storm.counts[f"writes {'stored' if answer.is_success else answer.status_code}"] += 1
        if not answer.is_success and answer.status_code not in _REFUSALS:
            self._storm.fail(self.name, [f"{answer.request.method} {answer.request.url}: {answer.text[:1000]}"])

    def _remember(self, project: str, documents: list[dict[str, Any]]) -> None:
        self._calls += [(project, document["metadata"]["name"]) for document in documents if "metadata" in document]

    def _address(self) -> tuple[str, str, str]:
        plural, project = self._chance.choice(KINDS), self._chance.choice(PROJECTS)
        return plural, project, f"{plural[:-1]}-{self._chance.randrange(NAMES)}"

    def _labels(self) -> dict[str, str]:
        return {key: value for key, value in self._label_patch().items() if value is not None}

    def _label_patch(self) -> dict[str, str | None]:
        return {"color": self._chance.choice(COLORS), "tier": self._chance.choice(TIERS)}

    def _call_body(self) -> dict[str, Any]:
        spec = {
            "function": CALLEE,
            "input": {"encoding": "Pickle", "inline": _PICKLE},
            "mapId": self._chance.choice(("m1", "m2")),
        }
        return {"metadata": {"generateName": "call-", "labels": self._labels()}, "spec": spec}


async def prepare(storm: Storm) -> None:
    """The second project, and the Function that is called."""
    async with storm.client() as client:
        root = f"{storm.replicas[0].url}/apis/nodus.dev/v1"
        answer = await client.post(f"{root}/projects", json={"metadata": {"name": PROJECTS[1]}})
        assert answer.is_success, answer.text
        for project in PROJECTS:
            body = {"metadata": {"name": CALLEE}, "spec": FUNCTION}
            answer = await client.post(f"{root}/namespaces/{project}/functions", json=body)
            assert answer.is_success, answer.text
