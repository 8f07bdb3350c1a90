"""Recording events: what happened to an object, told to people.

An Event belongs to the organisation and names its object; `describe` and `nodus events` find it by that. Events are
kept as long as the change log and then swept.
"""

from __future__ import annotations

from dataclasses import dataclass

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
        told, now = self._happening, format_time(tx.now)
        involved = {"kind": told.key.kind, "name": told.key.name, "uid": told.uid}
        if told.key.project:
            involved["namespace"] = told.key.project
        return tx.put(
            self._key,
            {
                "apiVersion": API_VERSION,
                "kind": "Event",
                "metadata": {"name": self._key.name, "uid": new_uid("evt"), "generation": 1, "creationTimestamp": now},
                "type": told.type,
                "reason": told.reason,
                "message": told.message,
                "involvedObject": involved,
                "firstTime": now,
                "lastTime": now,
                "count": 1,
            },
        )
