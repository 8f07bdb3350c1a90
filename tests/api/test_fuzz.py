"""Every route with malformed methods, paths, queries, headers, documents and bytes: no fault of ours, no leak.

For a minute; `make fuzz` takes SECONDS and SEED. The seed is printed, and makes the same requests again.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import orjson
import psutil
import pytest
from starlette.routing import BaseRoute

from api.app import routes_of
from tests.fixtures.app import FUNCTION, ROOT, ServedApi, api_settings, serve
from tests.fixtures.eventually import eventually
from tests.fixtures.fuzzing import Fuzzer, FuzzRequest, Subject, exchange
from tests.fixtures.http_worker import start_worker
from tests.fixtures.replicas import Replica, replicas
from tests.fixtures.wire import Exchange, check

SECONDS = 60.0
CLIENTS = 6
REQUESTS_OF_SUBJECT = 400
"""Then another project is taken, because much of the first is gone by then."""
GROWTH_BYTES_MAX = 48 << 20
"""A leak of a few KB a request is more than that; so much the caches of a process may still take."""
DESCRIPTORS_MAX = 16
"""Connections to the database that may have been opened meanwhile."""
FAULTS_SHOWN = 5
FAULT_LEVELS = frozenset({"error", "critical"})


@dataclass
class Fuzzing:
    """Sends requests to one process; a server in this one, over the same database, prepares what they are about."""

    replica: Replica
    api: ServedApi
    routes: list[BaseRoute]
    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    async def subject(self) -> Subject:
        """A fresh project with a Function, and a worker of it."""
        api, name = self.api, f"fuzz-{secrets.token_hex(4)}"
        await self._create(f"{ROOT}/projects", {"metadata": {"name": name}})
        path = f"{ROOT}/namespaces/{name}"
        await self._create(f"{path}/functions", {"metadata": {"name": "f"}, "spec": FUNCTION})
        api = ServedApi(**{**vars(api), "project_name": name})
        worker = await start_worker(api)
        return Subject(
            project=name,
            attempt=worker.attempt,
            admin_token=api.key,
            node_token=api.core.settings.node_token.get_secret_value(),
            attempt_token=worker.token,
        )

    async def _create(self, path: str, body: dict[str, object]) -> None:
        (await self.api.client.post(path, json=body)).raise_for_status()

    async def run(self, fuzzer: Fuzzer, seconds: float) -> None:
        """Several clients at once, until the time is up."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            fuzzer.subject = await self.subject()
            requests = iter([fuzzer.request() for _ in range(REQUESTS_OF_SUBJECT)])

            async def client(requests: Iterator[FuzzRequest] = requests) -> None:
                for request in requests:
                    await self._send(request)
                    if time.monotonic() > until:
                        return

            await asyncio.gather(*(client() for _ in range(CLIENTS)))

    async def _send(self, request: FuzzRequest) -> None:
        try:
            answered = await exchange(self.replica.port, request)
            if answered is None:
                return
            self.statuses[answered.status] += 1
            assert answered.status < 500 or is_by_contract(answered, request)
            if request.method != "HEAD":
                check(answered)
        except Exception as fault:  # whatever it is, it is told with the request
            self.faults.append(f"{fault!r}\n    of {request.content[:2_000]!r}")

    def logged_faults(self) -> list[str]:
        """What the process logged as a fault of its own."""
        lines = [line for line in self.replica.log.read_text().splitlines() if line.strip()]
        return [
            line[:4_000] for line in lines if not line.startswith("{") or orjson.loads(line)["level"] in FAULT_LEVELS
        ]


def is_by_contract(answered: Exchange, request: FuzzRequest) -> bool:
    """Whether the answer is a 5xx that is no fault: what needs a card, and a wait for a state that is yet to come."""
    if answered.status == 503:
        return b'"reason":"PaymentsNotConfigured"' in (answered.body or b"")
    return answered.status == 504 and "resourceVersion" in request.query


@pytest.fixture
async def fuzzing(database_url: str, tmp_path: Path) -> AsyncIterator[Fuzzing]:
    # Buffers that fill within the first seconds: what grows further is a leak.
    settings = api_settings(
        database_url, tmp_path, ring_events_max=500, token_cache_entries_max=100, login_attempts_burst_max=100_000
    )
    async with replicas(tmp_path, settings, [database_url]) as (key, [replica]), serve(settings, key) as api:
        yield Fuzzing(replica=replica, api=api, routes=routes_of(api.deps))


async def test_no_request_finds_a_fault_of_ours(fuzzing: Fuzzing) -> None:
    seed = int(os.environ.get("SEED") or secrets.randbelow(1 << 32))
    seconds = float(os.environ.get("SECONDS_OF_FUZZING") or SECONDS)
    fuzzer = Fuzzer(seed, fuzzing.routes, await fuzzing.subject())
    process = psutil.Process(fuzzing.replica.pid)
    descriptors = process.num_fds()
    await fuzzing.run(fuzzer, seconds / 2)
    memory_bytes = process.memory_info().rss
    await fuzzing.run(fuzzer, seconds / 2)
    grown_bytes = process.memory_info().rss - memory_bytes
    told = f"SEED={seed}: {dict(sorted(fuzzing.statuses.items()))}, grown by {grown_bytes >> 20} MiB"
    print(told)  # noqa: T201 - with it, the same can be sent again
    faults = fuzzing.faults + fuzzing.logged_faults()
    if faults:
        pytest.fail("\n".join((told, f"{len(faults)} faults", *faults[:FAULTS_SHOWN])), pytrace=False)
    assert grown_bytes < GROWTH_BYTES_MAX, told
    await eventually(lambda: process.num_fds() <= descriptors + DESCRIPTORS_MAX)
