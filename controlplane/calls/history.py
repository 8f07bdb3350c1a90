"""What a batch adds to the history of calls: each dispatch when it ends, and when what was decided of it took effect.

A dispatch becomes a row of `call_dispatches` in the transaction that ends it, as one more part of the statement that
writes the batch, so history costs no round trip and nothing is written when a call is handed out. Rows live exactly as
long as the call's object: whoever removes that says `forget`. `calls/timeline.py` tells the story that they hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any

from controlplane.calls.decide import Decision, Finish, Recover, Retry
from controlplane.calls.rows import CallRow

Json = dict[str, Any]

UNDELIVERED = "undelivered"
"""The cause of a dispatch whose hand-out never reached the worker; beside the causes of `calls/decide.py`."""
TOLD_CHARACTERS_MAX = 256
"""Kept of what a worker said; the call's own error has the rest."""


class Followed(StrEnum):
    """What was decided when a dispatch ended."""

    FINISH = "Finish"
    RETRY = "Retry"
    RECOVER = "Recover"
    REQUEUE = "Requeue"
    """Offered again at once, uncounted, because the worker never had it."""


class DispatchHistory:
    """The changes of one batch. Part of its `CallBook`, because rows of a call that goes in the batch go with it."""

    def __init__(self) -> None:
        self._ended: dict[tuple[str, int], Json] = {}
        self._applied: dict[tuple[str, int], Json] = {}
        self._pruned: dict[tuple[str, int], None] = {}
        self._forgotten: dict[str, None] = {}

    def ended(
        self,
        row: CallRow,
        now: datetime,
        *,
        cause: str,
        followed: Decision | None,
        reported: bool,
        told: str,
        charge_micro_usd: int,
        kept_max: int,
    ) -> None:
        """The present dispatch of `row`, which ran until now, is over; None as what followed means that it is queued
        again. At most `kept_max` dispatches of a call are kept, the newest ones."""
        decision, delay_seconds = _followed(followed)
        at_once = decision in (Followed.FINISH, Followed.REQUEUE)
        self._ended[row.uid, row.dispatches] = {
            "call_uid": row.uid,
            "number": row.dispatches,
            "org": row.org,
            "project": row.project,
            "attempt": row.attempt,
            "epoch": row.epoch,
            "call_created_at": row.created_at,
            "started_at": row.started_at,
            "cancel_requested_at": row.cancel_requested_at,
            "ended_at": now,
            "cause": cause,
            "reported": reported,
            # PostgreSQL has no NUL in its text.
            "told": told[:TOLD_CHARACTERS_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}"),
            "charge_micro_usd": charge_micro_usd,
            "decision": decision,
            "delay_seconds": delay_seconds,
            "applied_at": now if at_once else None,
        }
        if row.dispatches > kept_max:
            self._pruned[row.uid, row.dispatches - kept_max] = None

    def applied(self, row: CallRow, now: datetime, decision: Followed | None = None) -> None:
        """What was decided of the last dispatch of `row` takes effect now; `decision` if its workflow decided anew."""
        self._applied[row.uid, row.dispatches] = {
            "call_uid": row.uid,
            "number": row.dispatches,
            "decision": decision,
            "applied_at": now,
        }

    def forget(self, call_uid: str) -> None:
        """The call's object is gone, and its history with it."""
        self._forgotten[call_uid] = None

    def take(self) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What is unwritten, as parts of the batch's statement with their rows; no two parts touch the same row."""
        for part, rows in ((_ADD, self._ended), (_APPLY, self._applied)):
            yield from ((part, row) for (uid, _), row in rows.items() if uid not in self._forgotten)
        for uid, number in self._pruned:
            if uid not in self._forgotten:
                yield _PRUNE, {"call_uid": uid, "number": number}
        for uid in self._forgotten:
            yield _FORGET, {"call_uid": uid}


def _followed(decision: Decision | None) -> tuple[Followed, float | None]:
    match decision:
        case None:
            return Followed.REQUEUE, None
        case Finish():
            return Followed.FINISH, None
        case Retry(delay_seconds=delay):
            return Followed.RETRY, delay
        case Recover():
            return Followed.RECOVER, None


_COLUMNS = (
    "call_uid, number, org, project, attempt, epoch, call_created_at, started_at, cancel_requested_at, ended_at, "
    "cause, reported, told, charge_micro_usd, decision, delay_seconds, applied_at"
)

_ADD = f"""
INSERT INTO call_dispatches ({_COLUMNS})
SELECT {_COLUMNS} FROM json_populate_recordset(NULL::call_dispatches, $rows)
"""  # noqa: S608 - constants

_APPLY = """
UPDATE call_dispatches d SET applied_at = n.applied_at, decision = COALESCE(n.decision, d.decision)
FROM json_populate_recordset(NULL::call_dispatches, $rows) n WHERE d.call_uid = n.call_uid AND d.number = n.number
"""

_PRUNE = """
DELETE FROM call_dispatches d USING json_populate_recordset(NULL::call_dispatches, $rows) n
WHERE d.call_uid = n.call_uid AND d.number = n.number
"""

_FORGET = """
DELETE FROM call_dispatches WHERE call_uid IN (
    SELECT call_uid FROM json_populate_recordset(NULL::call_dispatches, $rows))
"""
