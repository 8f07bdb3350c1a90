"""When keys were used: noted beside the token as it is looked up, and shown by its object a little later.

A look-up happens for each key and process every second, an object's change is kept for a day and sent to watchers; so a
use is noted at most once in `USE_NOTED_EVERY`. Both writes can be lost with their process and are made again: the first
by the next look-up, the second because `unshown_uses` finds what the object does not say yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controlplane.clock import format_time
from controlplane.kinds.api_key import API_KEY
from controlplane.kinds.service_account import SERVICE_ACCOUNT
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.database import Database

USE_NOTED_EVERY = timedelta(minutes=10)
_NOTE = """
UPDATE tokens SET last_used_at = $2 WHERE hash = ANY($1::bytea[]) AND (last_used_at IS NULL OR last_used_at <= $3)
"""
_UNSHOWN = """
SELECT t.uid, t.org, t.name, t.last_used_at, o.kind AS owner_kind, o.uid AS owner, o.name AS owner_name,
    t.projects[1] AS project
FROM tokens t JOIN credential_owners o ON o.uid = t.owner
WHERE t.uid IS NOT NULL AND t.last_used_at > coalesce(t.shown_used_at, '-infinity') ORDER BY t.uid LIMIT $1
"""
_SHOWN = "UPDATE tokens SET shown_used_at = $2 WHERE uid = $1"


@dataclass(frozen=True, kw_only=True)
class KeyUse:
    """A use that the objects do not tell yet: of a key, and of the ServiceAccount that it belongs to, if it does."""

    key: Key
    uid: str
    account: Key | None
    account_uid: str
    used_at: datetime


async def note_use(database: Database, hashes: Sequence[bytes], now: datetime) -> None:
    """Note that tokens with these hashes were used now, unless that was noted not long ago."""
    await database.execute(_NOTE, hashes, now, now - USE_NOTED_EVERY)


async def unshown_uses(database: Database, limit: int) -> list[KeyUse]:
    """Up to `limit` uses to show."""
    return [
        KeyUse(
            key=Key(API_KEY.kind, row["org"], "", row["name"]),
            uid=row["uid"],
            account=Key(SERVICE_ACCOUNT.kind, row["org"], row["project"], row["owner_name"])
            if row["owner_kind"] == SERVICE_ACCOUNT.kind
            else None,
            account_uid=row["owner"],
            used_at=row["last_used_at"],
        )
        for row in await database.fetch(_UNSHOWN, limit)
    ]


class ShowUses:
    """Writes `status.lastUsedTime` of keys and accounts that still exist; answers how many objects changed."""

    def __init__(self, uses: Sequence[KeyUse]) -> None:
        self._uses = uses

    def reads(self) -> Reads:
        accounts = [use.account for use in self._uses if use.account is not None]
        return Reads(keys=list(dict.fromkeys([*(use.key for use in self._uses), *accounts])))

    def apply(self, tx: Tx) -> int:
        changed = 0
        for use in self._uses:
            changed += _show(tx, use.key, use.uid, use.used_at)
            if use.account is not None:
                changed += _show(tx, use.account, use.account_uid, use.used_at)
            tx.execute(_SHOWN, (use.uid, use.used_at))
        return changed


def _show(tx: Tx, key: Key, uid: str, used_at: datetime) -> bool:
    stored, told = tx.get(key), format_time(used_at)
    if stored is None or stored["metadata"]["uid"] != uid or _told(stored) >= told:
        return False
    tx.put(key, {**stored, "status": {**stored["status"], "lastUsedTime": told}})
    return True


def _told(document: Document) -> str:
    text: str = document["status"].get("lastUsedTime", "")
    return text
