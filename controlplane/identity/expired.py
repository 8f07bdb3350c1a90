"""What the objects of keys and invites say once their time is over: that they are Expired.

Nothing depends on it, since every look-up of a token compares its time. The write is made again until the object says
so, and the token's row is kept as long (`tokens.PURGE`), so neither a crash nor a long absence loses it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.clock import format_time
from controlplane.kinds.invite import EXPIRED
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.database import Database

_UNTOLD = f"""
SELECT o.kind, o.org, o.name, o.uid, t.expires_at FROM tokens t JOIN objects o ON o.uid = t.uid
WHERE t.expires_at <= $1 AND o.doc -> 'status' ->> 'phase' IS DISTINCT FROM '{EXPIRED}' ORDER BY t.uid LIMIT $2
"""  # noqa: S608 - a constant


@dataclass(frozen=True, kw_only=True)
class Expired:
    """A key or an invite whose object does not say yet that its time is over."""

    key: Key
    uid: str
    at: datetime


async def untold_expiries(database: Database, now: datetime, limit: int) -> list[Expired]:
    """Up to `limit` of those whose time is over by `now`."""
    return [
        Expired(key=Key(row["kind"], row["org"], "", row["name"]), uid=row["uid"], at=row["expires_at"])
        for row in await database.fetch(_UNTOLD, now, limit)
    ]


class TellExpired:
    """Writes phase and condition of the objects that still exist."""

    def __init__(self, expired: Sequence[Expired]) -> None:
        self._expired = expired

    def reads(self) -> Reads:
        return Reads(keys=[each.key for each in self._expired])

    def apply(self, tx: Tx) -> None:
        for each in self._expired:
            stored = tx.get(each.key)
            if stored is None or stored["metadata"]["uid"] != each.uid:
                continue
            status = stored["status"]
            ready = Condition("Ready", "False", EXPIRED, f"its time was over at {format_time(each.at)}", 1)
            conditions = with_condition(status.get("conditions", []), ready, tx.now)
            tx.put(each.key, {**stored, "status": {**status, "phase": EXPIRED, "conditions": conditions}})
