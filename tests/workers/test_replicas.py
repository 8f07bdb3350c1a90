"""Several API processes on one database: what one of them learns, the others know soon."""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import AsyncExitStack
from pathlib import Path

from controlplane.clock import SystemClock
from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from controlplane.store.database import Database
from tests.fixtures.app import FUNCTION, PROJECT, api_settings
from tests.fixtures.replicas import replicas
from tests.fixtures.wire import checked_client

REVOKED_SECONDS_MAX = 15.0
"""The server promises one second; a busy machine may add to it, but not what four re-checks of their own every half a
minute would."""


async def test_a_revoked_key_ends_its_watches_and_logs_on_every_replica(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    settings = api_settings(database_url, tmp_path)
    token = new_api_key()
    hashed = TokenHasher(settings.secret_key).hash(token)
    async with replicas(tmp_path, settings, [database_url, database_url]) as (admin, made), AsyncExitStack() as opened:
        async with checked_client(headers={"Authorization": f"Bearer {admin}"}) as client:
            body = {"metadata": {"name": "f"}, "spec": FUNCTION}
            (await client.post(f"{made[0].url}{PROJECT}/functions", json=body)).raise_for_status()
        await database.execute(
            INSERT_API_KEY, hashed, "default", str(uuid.uuid4()), "reader", ["functions:read"], ["*"],
            SystemClock().now(), None, "Owner", None,
        )  # fmt: skip
        reader = await opened.enter_async_context(
            checked_client(headers={"Authorization": f"Bearer {token}"}, timeout=60)
        )
        streams = [
            await opened.enter_async_context(reader.stream("GET", f"{replica.url}{PROJECT}/functions{path}"))
            for replica in made
            for path in ("?watch=true", "/f/log?follow=true")
        ]
        assert [stream.status_code for stream in streams] == [200] * 4
        await database.execute("UPDATE tokens SET revoked_at = now() WHERE hash = $1", hashed)
        began = time.monotonic()
        ends = await asyncio.gather(*(stream.aread() for stream in streams))
        assert time.monotonic() - began < REVOKED_SECONDS_MAX
        for watched in ends[::2]:
            assert b'"type":"ERROR"' in watched
            assert b'"code":401' in watched
        assert ends[1::2] == [b"", b""]
