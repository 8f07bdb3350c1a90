"""Recording events: what happened to an object, told to people.

An Event belongs to the organisation and names its object; `describe` and `nodus events` find it by that. Events are
kept as long as the change log and then swept.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from controlplane.clock import format_time
from controlplane.ids import generated_name, new_uid
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.store.contract import Key, Reads, Tx

NORMAL = "Normal"
WARNING = "Warning"


@dataclass(frozen=True, kw_only=True)
class Happening:
    """What happened to which object; `reason` is one CamelCase word."""

    key: Key
    uid: str
    type: str
    reason: str
    message: str


class RecordEvent:
    """Stores one event; a name that is taken is left to chance, since events are for people."""

    def __init__(self, happening: Happening) -> None:
        self._happening = happening
        self._key = Key("Event", happening.key.org, "", generated_name(f"{happening.key.name[:50]}-"))

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> Document:
        return tx.put(self._key, _event(self._key, self._happening, tx.now))


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
