"""Recomputing the chain of the audit log, and telling what does not agree with it.

`python -m workers audit verify` runs it. It reads the seals in their order and the events below each, a link at a time,
so a log of any length takes the same memory. What retention has removed is covered by its checkpoint, whose hash stands
in an event of its own that is sealed like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from controlplane.audit.chain import (
    BEGINNING,
    DIGEST_BYTES,
    EVENT_COLUMNS,
    RETENTION_VERB,
    Head,
    checkpoint_message,
    digest_of,
    follows,
)
from controlplane.clock import format_time
from controlplane.store.database import Database

if TYPE_CHECKING:
    from controlplane.store.contract import Connection

# One that says it is of the future would release what is not old yet.
_CHECKPOINT = """
SELECT seal, least(created_at, now()) AS created_at, last_seq, hash FROM audit_checkpoints ORDER BY seal DESC LIMIT 1
"""
_NEXT_SEAL = """
SELECT number, sealed_at, last_seq, events, digests, hash FROM audit_seals WHERE number > $1 ORDER BY number LIMIT 1
"""
_BELOW = f"SELECT {EVENT_COLUMNS} FROM audit_events WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"  # noqa: S608
_UNSEALED = "SELECT count(*) FROM audit_events WHERE seq > $1"
_TOLD = """
SELECT EXISTS (SELECT FROM audit_events WHERE seq > $1 AND verb = $2 AND principal_kind = 'Server' AND message = $3)
"""
_STRANGERS_MAX = 1_000
"""Events beyond those of a seal that are read to tell which were added to it."""


_START = Head(0, BEGINNING)


@dataclass(frozen=True)
class Tampering:
    """Something that does not agree with the chain."""

    where: str
    told: str


@dataclass
class Verdict:
    """What a verification found."""

    tamperings: list[Tampering] = field(default_factory=list)
    seals: int = 0
    events: int = 0
    unsealed: int = 0
    """Events that no seal covers yet: the sealer comes to them within moments."""
    head: Head = _START
    checkpoint_seal: int = 0
    """The last seal that retention may have removed; 0 when none was."""
    removed_at: datetime | None = None


async def verify(
    database: Database, expected: Head | None = None, found_max: int = 100, *, kept_for: timedelta
) -> Verdict:
    """Recompute everything; stops after `found_max` problems. `expected` is a head that was kept elsewhere, which must
    be there for as long as events are `kept_for`."""
    verdict = Verdict()
    # One snapshot, so that sealing and retention may go on meanwhile.
    async with database.snapshot() as connection:
        await begin(connection, verdict)
        if expected is not None and expected.number < verdict.checkpoint_seal:
            verdict.tamperings += _removed_early(verdict, expected, kept_for)
        if expected is not None and expected.number == verdict.head.number and expected.number:
            _compare(verdict, expected)
        while len(verdict.tamperings) < found_max:
            row = await next_seal(connection, verdict)
            if row is None:
                break
            await look(connection, verdict, row)
            if expected is not None and expected.number == verdict.head.number:
                _compare(verdict, expected)
        verdict.unsealed = await connection.fetchval(_UNSEALED, verdict.head.last_seq)
    if expected is not None and expected.number > verdict.head.number:
        told = f"the log ends with seal {verdict.head.number}: what came after it was cut off"
        verdict.tamperings.append(Tampering(f"seal {expected.number}", told))
    del verdict.tamperings[found_max:]
    return verdict


async def begin(connection: Connection, verdict: Verdict) -> None:
    """Start where retention has come to, if the log itself tells of it."""
    checkpoint = await connection.fetchrow(_CHECKPOINT)
    if checkpoint is None:
        return
    verdict.head = Head(checkpoint["seal"], checkpoint["hash"], checkpoint["last_seq"])
    verdict.checkpoint_seal, verdict.removed_at = checkpoint["seal"], checkpoint["created_at"]
    message = checkpoint_message(verdict.head)
    if not await connection.fetchval(_TOLD, checkpoint["last_seq"], RETENTION_VERB, message):
        told = "no event tells of this checkpoint: what it covers was not removed by retention"
        verdict.tamperings.append(Tampering(f"checkpoint {checkpoint['seal']}", told))


async def next_seal(connection: Connection, verdict: Verdict) -> dict[str, Any] | None:
    """The link after the last that was judged; None at the end."""
    row = await connection.fetchrow(_NEXT_SEAL, verdict.head.number)
    return None if row is None else dict(row)


async def look(connection: Connection, verdict: Verdict, row: Mapping[str, Any]) -> datetime:
    """Judge one link and go on from what it says, so that one fault is told once; the time of its newest event."""
    where, before = f"seal {row['number']}", verdict.head
    if row["number"] != before.number + 1:
        told = f"follows seal {before.number}: those between were removed"
        verdict.tamperings.append(Tampering(where, told))
    elif not follows(row, before.hash):
        told = "its hash does not follow from its events, its time and the seal before"
        verdict.tamperings.append(Tampering(where, told))
    limit = len(row["events"]) + _STRANGERS_MAX
    found = await connection.fetch(_BELOW, before.last_seq, row["last_seq"], limit)
    verdict.tamperings += _differences(row["events"], row["digests"], [dict(event) for event in found])
    verdict.seals += 1
    verdict.events += len(row["events"])
    verdict.head = Head(row["number"], row["hash"], row["last_seq"], row["sealed_at"])
    newest: datetime = max((event["created_at"] for event in found), default=row["sealed_at"])
    return newest


def _differences(sealed: Sequence[int], digests: bytes, found: Sequence[Mapping[str, Any]]) -> Iterator[Tampering]:
    expected = {seq: digests[DIGEST_BYTES * n : DIGEST_BYTES * (n + 1)] for n, seq in enumerate(sealed)}
    present = {event["seq"]: digest_of(event) for event in found}
    places = {digest: seq for seq, digest in expected.items()}
    for seq, digest in expected.items():
        if seq not in present:
            yield Tampering(f"event {seq}", "it was deleted")
        elif present[seq] != digest:
            place = places.get(present[seq])
            told = "it was changed" if place is None else f"it stood at {place}: events were reordered"
            yield Tampering(f"event {seq}", told)
    for seq in sorted(present.keys() - expected.keys()):
        yield Tampering(f"event {seq}", "it was added after its neighbours were sealed")


def _compare(verdict: Verdict, expected: Head) -> None:
    if verdict.head.hash != expected.hash:
        told = "its hash is not the one that was kept: the chain was made anew"
        verdict.tamperings.append(Tampering(f"seal {expected.number}", told))


def _removed_early(verdict: Verdict, expected: Head, kept_for: timedelta) -> Iterator[Tampering]:
    """A head that is no longer there, unless its time says that retention was due. The time was kept with it, so
    nothing in the database can make it older."""
    assert verdict.removed_at is not None, "what a checkpoint covers was removed at its time"
    where, gone = f"seal {expected.number}", f"what seal {verdict.checkpoint_seal} and those before it cover is gone"
    if expected.sealed_at is None:
        yield Tampering(where, f"{gone}, and the head that was kept has no time by which to tell whether it may be")
    elif expected.sealed_at >= verdict.removed_at - kept_for:
        times = f"sealed {format_time(expected.sealed_at)}, removed {format_time(verdict.removed_at)}"
        yield Tampering(where, f"{gone}, although events are kept for {kept_for.days} days: {times}")
