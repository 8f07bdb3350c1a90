"""The chain of hashes over the audit log.

A seal is a link: the numbers and SHA-256 digests of some events in their order, and a SHA-256 over these, its own
number, its time and the hash of the link before. Whoever changes, removes or moves a sealed event breaks its link, and
whoever makes a new link breaks all later ones; the newest hash (`Head`), kept outside of the database, shows that none
was cut off. There is one chain for the server, which also holds the organisations' events in their order to each other.

One sealer works at a time: `activities/audit_keeper.py` calls it, and a second one leaves at the lock. Then
`verification.py` reads the chain.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson

from controlplane.clock import Clock, format_time_micro, parse_time
from controlplane.store.database import Database
from controlplane.store.sql import WRITERS_LOCK

SEAL_EVENTS_MAX = 5_000
"""Events under one seal: 200 KB of digests, hashed in milliseconds."""
DIGEST_BYTES = 32
BEGINNING = bytes(DIGEST_BYTES)
"""What the first link has for the hash of the one before."""
EVENT_FORM = 1
"""Of what is hashed. Another form of events gets another number, so that no two events have the same digest."""
SEAL_FORM = 2
"""The same for links. Those of form 1, which did not cover their time, keep the hash that they were made with."""
RETENTION_VERB = "forget"
"""Of the event that tells of a checkpoint: what retention has removed (`retention.py`)."""

SEALERS_LOCK = 0x61756474
"""The advisory lock that whoever seals holds to the end of its transaction."""

COLUMNS = (
    "created_at", "org", "project", "kind", "name", "uid", "subresource", "verb", "principal_kind", "principal",
    "key_prefix", "request_id", "source", "code", "reason", "count", "message",
)  # fmt: skip
"""What of an event its digest covers, in this order; its number is covered by the seal."""
EVENT_COLUMNS = ", ".join(("seq", *COLUMNS))

_LAST = "SELECT coalesce(max(seq), 0) FROM audit_events"
_LATEST_SEAL = "SELECT number, last_seq, hash, sealed_at FROM audit_seals ORDER BY number DESC LIMIT 1"
_UNSEALED = f"SELECT {EVENT_COLUMNS} FROM audit_events WHERE seq > $1 AND seq <= $2 ORDER BY seq LIMIT $3"  # noqa: S608
_SEAL = """
INSERT INTO audit_seals (number, sealed_at, last_seq, events, digests, hash) VALUES ($1, $2, $3, $4, $5, $6)
"""


@dataclass(frozen=True)
class Head:
    """The newest link: all that must be kept elsewhere to notice that the end of the chain was cut off, and that its
    beginning was before its time."""

    number: int
    hash: bytes
    last_seq: int = 0
    sealed_at: datetime | None = None
    """None for a head that an earlier version told, and before the first seal."""

    @property
    def link(self) -> str:
        """The place in the chain, without its time."""
        return f"{self.number}:{self.hash.hex()}"

    def __str__(self) -> str:
        return self.link if self.sealed_at is None else f"{self.link}:{format_time_micro(self.sealed_at)}"

    @staticmethod
    def parsed(text: str) -> Head:
        """From what `str` gives; ValueError for anything else."""
        number, _, rest = text.strip().partition(":")
        digits, _, time = rest.partition(":")
        if not number.isdigit() or len(digits) != 2 * DIGEST_BYTES:
            raise ValueError("must be the number of a seal, a colon, 64 hexadecimal digits, a colon and a time")
        return Head(int(number), bytes.fromhex(digits), sealed_at=parse_time(time) if time else None)


def digest_of(event: Mapping[str, Any]) -> bytes:
    """The digest of an event, its number aside: so one that was moved can be told from one that was changed."""
    return hashlib.sha256(orjson.dumps([EVENT_FORM, *(_canonical(event[name]) for name in COLUMNS)])).digest()


def seal_hash(number: int, previous: bytes, sealed_at: datetime, events: Sequence[int], digests: bytes) -> bytes:
    """The hash of a link."""
    parts = [SEAL_FORM, number, previous.hex(), _canonical(sealed_at), [*events], digests.hex()]
    return hashlib.sha256(orjson.dumps(parts)).digest()


def follows(row: Mapping[str, Any], previous: bytes) -> bool:
    """Whether a stored link has the hash of what is stored with it, in one of the forms that there were."""
    number, events, digests = row["number"], row["events"], row["digests"]
    untimed = hashlib.sha256(orjson.dumps([1, number, previous.hex(), [*events], digests.hex()])).digest()
    return row["hash"] in (seal_hash(number, previous, row["sealed_at"], events, digests), untimed)


def checkpoint_message(head: Head) -> str:
    """What the event of a checkpoint says; verification looks for just this."""
    return f"events up to number {head.last_seq} are no longer kept; the chain goes on from {head.link}"


async def seal(database: Database, clock: Clock) -> Head | None:
    """Add one link over the oldest events that have none, at most SEAL_EVENTS_MAX; None when there is nothing to seal
    or another process is at it.

    If the process dies before the commit, nothing was sealed and the next look seals the same.
    """
    upto = await _last_written(database)
    async with database.pool.acquire() as connection, connection.transaction():
        if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", SEALERS_LOCK):
            return None
        latest = await connection.fetchrow(_LATEST_SEAL)
        number, last_seq, previous, _ = latest if latest is not None else (0, 0, BEGINNING, None)
        events = await connection.fetch(_UNSEALED, last_seq, upto, SEAL_EVENTS_MAX)
        if not events:
            return None
        numbers, digests = [event["seq"] for event in events], b"".join(digest_of(dict(event)) for event in events)
        sealed_at = clock.now()
        link = seal_hash(number + 1, previous, sealed_at, numbers, digests)
        head = Head(number + 1, link, numbers[-1], sealed_at)
        await connection.execute(_SEAL, head.number, sealed_at, head.last_seq, numbers, digests, head.hash)
    return head


async def newest_head(database: Database) -> Head:
    """The newest link; that of number 0 before there is one."""
    row = await database.fetchrow(_LATEST_SEAL)
    return Head(0, BEGINNING) if row is None else Head(row["number"], row["hash"], row["last_seq"], row["sealed_at"])


async def _last_written(database: Database) -> int:
    """The number up to which all events are there for good: rows enter under the writers' lock, so none with a smaller
    number appears once it was held. It is given back at once, since hashing need not hold up writers."""
    async with database.pool.acquire() as connection, connection.transaction():
        await connection.execute("SELECT pg_advisory_xact_lock($1)", WRITERS_LOCK)
        last: int = await connection.fetchval(_LAST)
    return last


def _canonical(value: Any) -> str | int:  # noqa: ANN401 - what a column holds
    """Times as whole microseconds, which is what PostgreSQL keeps; the rest as it is."""
    if isinstance(value, datetime):
        return (value - _EPOCH) // timedelta(microseconds=1)
    assert isinstance(value, str | int), f"{value!r} has no canonical form"
    return value


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
