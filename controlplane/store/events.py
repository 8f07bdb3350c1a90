"""Recording events: what happened to an object, told to people.

An Event belongs to the organisation and names its object; `describe` and `nodus events` find it by that. What happens
to an object for the same reason again is the same Event with a higher count and the last word, so that a Function whose
workers fail all night has one line and not a thousand. Events are kept as long as the change log after they happened
last, and then swept.

A mutation that knows beforehand what it may tell reads the Event (`event_key`, `record_repeated`); one that learns it
from what it loaded leaves it to the committer (`tell`).
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.clock import format_time
from controlplane.ids import new_uid, sha256_hex
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.store.contract import Key, Reads, Tx

NORMAL = "Normal"
WARNING = "Warning"
_TOLD = "happenings"


@dataclass(frozen=True, kw_only=True)
class Happening:
    """What happened to which object; `reason` is one CamelCase word."""

    key: Key
    uid: str
    type: str
    reason: str
    message: str


def event_key(happening: Happening) -> Key:
    """The Event of this object and reason; an object that comes again under its name has others."""
    digest = sha256_hex(f"{happening.key.kind}/{happening.uid}/{happening.reason}".encode())[:10]
    return Key("Event", happening.key.org, "", f"{happening.key.name[:40].rstrip('-')}-{digest}")


class RecordEvent:
    """Stores one event, or counts it when it happened before."""

    def __init__(self, happening: Happening) -> None:
        self._happening = happening
        self._key = event_key(happening)

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> Document:
        return record_repeated(tx, self._key, self._happening)


def tell(tx: Tx, happening: Happening) -> None:
    """Have the event stored in the transaction of the present batch; call it after everything that can raise."""
    tx.scratch(_TOLD).setdefault(event_key(happening), []).append(happening)


async def store_told(tx: Tx) -> None:
    """Store what mutations and hooks of a batch have told; asked once, after the last hook. Nothing told, nothing
    read."""
    told: dict[Key, list[Happening]] = tx.scratch(_TOLD)
    if not told:
        return
    await tx.load(list(told))
    for key, happenings in told.items():
        for happening in happenings:
            record_repeated(tx, key, happening)


def record_repeated(tx: Tx, key: Key, happening: Happening) -> Document:
    """Store what may happen again and again as the one Event at `key`, which must be among what the mutation reads: a
    repetition raises its count and has the last word."""
    stored = tx.get(key)
    if stored is None:
        return tx.put(key, _event(key, happening, tx.now))
    again = {"message": happening.message, "lastTime": format_time(tx.now), "count": stored["count"] + 1}
    return tx.put(key, {**stored, **again})


def _event(key: Key, told: Happening, moment: datetime) -> Document:
    now = format_time(moment)
    involved = {"kind": told.key.kind, "name": told.key.name, "uid": told.uid}
    if told.key.project:
        involved["namespace"] = told.key.project
    return {
        "apiVersion": API_VERSION,
        "kind": "Event",
        "metadata": {"name": key.name, "uid": new_uid("evt"), "generation": 1, "creationTimestamp": now},
        "type": told.type,
        "reason": told.reason,
        "message": told.message,
        "involvedObject": involved,
        "firstTime": now,
        "lastTime": now,
        "count": 1,
    }
