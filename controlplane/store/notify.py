"""Telling other processes that there are changes to read.

Sent after the commit and from another connection, because NOTIFY inside a transaction takes a lock of the whole
database cluster until it ends. One notification stands for all changes of a moment. One that fails is sent again over
a new connection, since an idle connection may have died unnoticed; a lost one costs a poll of the change feed
(`changes.py`), never data.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import asyncpg
import structlog

from controlplane import failpoints
from controlplane.store.database import DRIVER_ERRORS, Database, is_passing

if TYPE_CHECKING:
    Connection = asyncpg.Connection[asyncpg.Record]

log = structlog.get_logger(__name__)

CHANNEL = "nodus_changes"
PAUSE_SECONDS = 0.02
"""A reader of a busy log is as well served by fifty looks a second as by two hundred, at a quarter of their cost."""

SEND_SECONDS_MAX = 1.0
"""A connection that takes longer is taken for dead; the poll of those who wait is not much slower."""


class Notifier:
    """Sends the first notification at once and at most one in PAUSE_SECONDS after it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._connection: Connection | None = None
        self._task: asyncio.Task[None] | None = None
        self._again = False
        self._rv = 0

    def notify(self, rv: int) -> None:
        """Tell the others soon that the log goes on to `rv`; who has it already need not read."""
        self._rv = rv
        self._again = True
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send(), name="notify")

    async def stop(self) -> None:
        """Stop sending and give the connection back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._hang_up()

    async def _send(self) -> None:
        while self._again:
            self._again = False
            failpoints.reach("commit-answered")
            if not (await self._told() or await self._told()):
                log.warning("a notification was lost; readers will poll", rv=self._rv)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _told(self) -> bool:
        """Whether the notification was sent; if not, the next try takes a new connection."""
        try:
            if self._connection is None or self._connection.is_closed():
                self._connection = await self._database.connect("notifier")
                # A notification need not survive a crash, so it need not wait for the disk.
                await self._connection.execute("SET synchronous_commit = off")
            await self._connection.execute(f"NOTIFY {CHANNEL}, '{self._rv:d}'", timeout=SEND_SECONDS_MAX)
        except DRIVER_ERRORS as error:
            if not is_passing(error):
                raise
            self._hang_up()
            return False
        return True

    def _hang_up(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
            self._connection = None
