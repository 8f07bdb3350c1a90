"""The operator's switches: new objects of a kind are paused, or the compute of an organisation is suspended.

A row that exists is a switch that is on. Every process reads the few rows twice a second and decides from memory, so a
switch works everywhere within a second and costs a request nothing; while the database is away, what was read last
counts. `controlplane/admission.py` asks about new objects, the dispatcher about calls, the autoscaler about workers:
while its compute is suspended an organisation's calls wait, no worker is started, and those that run end what they have
in hand and leave. `python -m workers switches` turns them. What an organisation owes works like a switch that its
ledger turns, and is read with them: no new calls until it is paid.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import structlog

from controlplane.audit.commands import execute
from controlplane.errors import ApiError, Reason
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.ledger.accounts import read_arrears
from controlplane.machinery.quantities import format_money
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

CALL_KIND = "FunctionCall"
"""What is refused while its organisation owes."""
COMPUTE_KINDS = frozenset({"Function", "FunctionCall", "Image"})
"""Kinds that make the server run something."""
_READ = "SELECT switch, subject, reason, since FROM operator_switches ORDER BY switch, subject LIMIT 10000"
_ON = """
INSERT INTO operator_switches (switch, subject, reason, since) VALUES ($1, $2, $3, now())
ON CONFLICT (switch, subject) DO UPDATE SET reason = excluded.reason
"""
_OFF = "DELETE FROM operator_switches WHERE switch = $1 AND subject = $2"


class Switch(StrEnum):
    """What can be stopped."""

    PAUSE = "pause"
    """New objects of a kind."""
    SUSPEND = "suspend"
    """The compute of an organisation."""


@dataclass(frozen=True, kw_only=True)
class SwitchedOn:
    """A switch that is on."""

    switch: Switch
    subject: str
    reason: str
    since: datetime


async def read_switches(database: Database) -> list[SwitchedOn]:
    """The switches that are on."""
    return [
        SwitchedOn(switch=Switch(row["switch"]), subject=row["subject"], reason=row["reason"], since=row["since"])
        for row in await database.fetch(_READ)
    ]


async def turn_on(database: Database, switch: Switch, subject: str, reason: str) -> None:
    """Stop what the switch is about; once more only changes the reason."""
    await execute(database, _org_of(switch, subject), _ON, switch.value, subject, reason)


async def turn_off(database: Database, switch: Switch, subject: str) -> bool:
    """Let it go on; whether the switch was on."""
    return (await execute(database, _org_of(switch, subject), _OFF, switch.value, subject)).endswith(" 1")


def _org_of(switch: Switch, subject: str) -> str:
    """Who is told of it; what concerns everybody is told to the operator's organisation."""
    return subject if switch is Switch.SUSPEND else FIRST_ORG


class Switches:
    """The switches as this process knows them."""

    def __init__(self, database: Database, poll_seconds: float) -> None:
        self._database = database
        self._poll_seconds = poll_seconds
        self._on: Mapping[Switch, Mapping[str, SwitchedOn]] = {switch: {} for switch in Switch}
        self._arrears: Mapping[str, int] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Read them, and keep reading: a process that starts must not act as if all were off."""
        await self._read()
        self._task = asyncio.create_task(self._run(), name="switches")

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def refusal(self, kind: str, plural: str, org: str) -> ApiError | None:
        """Why no new object of the kind may be made in the organisation now; None when it may."""
        paused = self._on[Switch.PAUSE].get(kind)
        if paused is not None:
            return ApiError(
                Reason.ADMISSIONS_PAUSED,
                f"an operator has paused new {plural}: {paused.reason}",
                details={"kind": kind},
                retry_after_seconds=PAUSE_RETRY_SECONDS,
            )
        suspended = self._on[Switch.SUSPEND].get(org) if kind in COMPUTE_KINDS else None
        if suspended is not None:
            return ApiError(
                Reason.COMPUTE_SUSPENDED,
                f'an operator has suspended the compute of the organisation "{org}": {suspended.reason}',
            )
        if kind == CALL_KIND and org in self._arrears:
            owed = format_money(self._arrears[org])
            return ApiError(
                Reason.ARREARS_OUTSTANDING,
                f'the organisation "{org}" owes {owed} USD: it was charged for more than it had credit for',
                details={"arrearsUSD": owed},
            )
        return None

    def is_suspended(self, org: str) -> bool:
        """Whether nothing may be run for the organisation."""
        return org in self._on[Switch.SUSPEND]

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._poll_seconds)
            try:
                await self._read()
            except ApiError as error:
                log.warning("the switches cannot be read, those known so far count on", told=error.message)

    async def _read(self) -> None:
        found = await read_switches(self._database)
        self._arrears = await read_arrears(self._database)
        on = {switch: {each.subject: each for each in found if each.switch is switch} for switch in Switch}
        if on != self._on:
            log.warning("switches", on=[f"{each.switch} {each.subject}: {each.reason}" for each in found])
        self._on = on


PAUSE_RETRY_SECONDS = 5
"""Pauses are of minutes; asking each second would be most of a paused server's work."""
