"""What was refused, and what else is told without a change: kept in memory for a moment and written in groups.

A refusal writes nothing, so its event has no transaction to join, and a client that is refused must not cost a commit
each time. The queue is bounded; what does not fit is counted, and the count is an event of its own. What the callers
of one source are refused for want of a credential or of patience is one event with a count, so that guessing keys
fills no disk. If the process dies, what waits here is lost, which `audit_flush_seconds` bounds; no change ever is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from dataclasses import replace

import structlog

from controlplane import metrics
from controlplane.audit.entries import ActorKind, AuditEntry, RecordEntries
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.settings import Settings
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

GROUP_EVENTS_MAX = 1_000
"""Events written in one transaction; they share it with whatever else is written then."""
_COUNTED_CODES = (401, 429)
"""Refusals that repeat themselves as often as a client likes to ask."""
LOST = "EventsLost"


class AuditQueue:
    """The queue of one process; `add` costs its caller nothing but memory."""

    def __init__(self, writer: Writer, settings: Settings, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._entries_max = settings.audit_queue_max
        self._flush_seconds = settings.audit_flush_seconds
        self._waiting: dict[Hashable, AuditEntry] = {}
        self._lost = 0
        self._flushing = asyncio.Lock()

    @property
    def waiting(self) -> int:
        """Events that are not written yet."""
        return len(self._waiting)

    def add(self, entry: AuditEntry) -> None:
        """Have the event written within moments."""
        same = _same(entry)
        known = self._waiting.get(same)
        if known is not None:
            self._waiting[same] = replace(known, count=known.count + entry.count)
        elif len(self._waiting) < self._entries_max:
            self._waiting[same] = entry
        else:
            self._lost += 1

    async def run(self) -> None:
        """Write what waits, again and again, until cancelled; then once more."""
        try:
            while True:
                await asyncio.sleep(self._flush_seconds)
                # A write that is under way when the process stops is waited for: cut off, it would be told twice.
                flushing = asyncio.create_task(self.flush(), name="audit flush")
                await asyncio.shield(flushing)
        finally:
            await self.flush()

    async def flush(self) -> None:
        """Write what waits now, after whoever is at it; while the database is away it goes on waiting."""
        async with self._flushing:
            for _ in range(1 + len(self._waiting) // GROUP_EVENTS_MAX):
                if not await self._write_group():
                    return

    async def _write_group(self) -> bool:
        """Write the oldest of what waits; whether there was something and it is stored."""
        group = dict(list(self._waiting.items())[:GROUP_EVENTS_MAX])
        lost = self._lost
        if not group and not lost:
            return False
        try:
            await self._writer.write(RecordEntries([*group.values(), *self._told_lost(lost)]))
        except ApiError as error:
            if error.reason is not Reason.INTERNAL_ERROR:
                log.warning("audit events wait for the database", waiting=len(self._waiting), error=error.message)
                return False
            # A bug: what cannot be stored must not keep the others waiting for ever.
            log.error("audit events cannot be stored", events=len(group), error=error.debug)
            self._waiting = {same: entry for same, entry in self._waiting.items() if same not in group}
            self._lost += sum(entry.count for entry in group.values())
            return True
        self._lost -= lost
        metrics.add("nodus_audit_events_lost_total", lost)
        for same, written in group.items():
            self._forget(same, written)
        return True

    def _forget(self, same: Hashable, written: AuditEntry) -> None:
        """Take out what was written; what was counted meanwhile waits for the next time."""
        later = self._waiting.pop(same)
        if later.count > written.count:
            self._waiting[same] = replace(later, count=later.count - written.count)

    def _told_lost(self, lost: int) -> Sequence[AuditEntry]:
        if not lost:
            return ()
        told = f"{lost} events are not kept: only {self._entries_max} may wait, or they could not be stored"
        return (
            AuditEntry(
                created_at=self._clock.now(), org=FIRST_ORG, kind="AuditEvent", verb="lose",
                principal_kind=ActorKind.SERVER, code=503, reason=LOST, count=lost, message=told,
            ),
        )  # fmt: skip


def _same(entry: AuditEntry) -> Hashable:
    """What tells an event apart: everything about it, or who is refused what when that may happen without end."""
    if entry.code not in _COUNTED_CODES:
        return entry
    return (entry.code, entry.source, entry.org, entry.principal, entry.verb, entry.kind)
