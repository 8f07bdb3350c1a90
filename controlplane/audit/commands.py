"""Events of operators' commands that go around the verbs of objects.

A command that changes objects leaves its events as requests do (`requests.py`). What it writes in SQL of its own (a
switch, a quota, a key) goes through `execute`, and what it is refused through `tell_refusal`.
"""

from __future__ import annotations

from dataclasses import replace

import orjson

from controlplane.audit.entries import PART, RecordEntries
from controlplane.audit.requests import AUDITED, audited
from controlplane.clock import Clock
from controlplane.errors import ApiError
from controlplane.store.database import Database
from controlplane.store.sql import WRITERS_LOCK
from controlplane.store.writer import Writer

_INSERT = PART.replace("$rows", "$1::text::json")


async def execute(database: Database, org: str, sql: str, *arguments: object) -> str:
    """Run one statement about the organisation; returns its status. Where a command asks for it, its event is stored in
    the same transaction."""
    request = AUDITED.get()
    if request is None:
        return await database.execute(sql, *arguments)
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", WRITERS_LOCK)
        status: str = await connection.execute(sql, *arguments)
        entry = replace(request.entry(await connection.fetchval("SELECT now()"), 200, "Done"), org=org)
        await connection.execute(_INSERT, orjson.dumps([entry.as_row()]).decode())
    return status


async def tell_refusal(writer: Writer, clock: Clock, refusal: ApiError) -> None:
    """Store that the present command was refused, unless it has changed something before."""
    request = AUDITED.get()
    if request is None or request.recorded:
        return
    row = refusal.reason.row
    with audited(None):
        await writer.write(RecordEntries([request.entry(clock.now(), row.http_status, row.wire)]))
