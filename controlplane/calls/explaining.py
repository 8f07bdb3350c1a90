"""Keeping `status.message` of waiting calls true: which calls to look at, and the mutation that tells them.

A queue may be long and its reason may change, so only calls that are next are told: the first few of the sessions whose
turn comes first. The others keep what they were told when they were created, and are told anew when they come forward.
Want of money is the exception: it may last, and whoever asks for calls that are not funded wants all of them, so the
queue is walked once from one end to the other, some calls at a time.
`activities/queue_explainer.py` decides when; a call that says the right thing already is not written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import orjson

from controlplane.calls import transitions
from controlplane.calls.book import CallBook
from controlplane.calls.outcomes import present_document
from controlplane.calls.rows import CALL_BY_UID, CallRef, CallRow, CallState
from controlplane.calls.waits import WaitReason
from controlplane.store.contract import Reads, Tx
from controlplane.store.database import Database

# Sessions that were emptied by cancels keep their place until their turn, so fewer may have a call. `seq >= 0` and the
# orders choose the index.
HEADS = """
SELECT c.uid, c.org, c.project, c.name, c.state, c.has_workflow, c.suspect, c.retries, c.recoveries, c.updated_at,
    o.doc -> 'status' AS status
FROM (SELECT session FROM call_sessions WHERE function_uid = $1 ORDER BY last_turn LIMIT $2) AS s
CROSS JOIN LATERAL (
    SELECT * FROM calls WHERE function_uid = $1 AND session = s.session AND state = 'queued' AND seq >= 0
    ORDER BY priority, seq LIMIT $3
) AS c
JOIN objects o ON o.kind = 'FunctionCall' AND o.org = c.org COLLATE "C" AND o.project = c.project COLLATE "C"
    AND o.name = c.name COLLATE "C" AND o.uid = c.uid
"""

QUEUED_AFTER = """
SELECT c.uid, c.org, c.project, c.name, c.state, c.has_workflow, c.suspect, c.retries, c.recoveries, c.updated_at,
    o.doc -> 'status' AS status, c.session, c.priority, c.seq
FROM (
    SELECT * FROM calls
    WHERE function_uid = $1 AND state = 'queued' AND seq >= 0 AND (session, priority, seq) > ($2, $3, $4)
    ORDER BY session, priority, seq LIMIT $5
) AS c
JOIN objects o ON o.kind = 'FunctionCall' AND o.org = c.org COLLATE "C" AND o.project = c.project COLLATE "C"
    AND o.name = c.name COLLATE "C" AND o.uid = c.uid
ORDER BY c.session, c.priority, c.seq
"""

# Calls with a decision to make that the engine has not heard of, and those whose waiting workflow was not told.
LATE = """
SELECT c.uid, c.org, c.project, c.name, c.state, c.has_workflow, c.suspect, c.retries, c.recoveries, c.updated_at,
    o.doc -> 'status' AS status
FROM (
    (SELECT * FROM calls WHERE NOT has_workflow AND state IN ('deciding', 'waiting') ORDER BY seq LIMIT $1)
    UNION ALL
    (SELECT * FROM calls WHERE state = 'deciding' AND task_token IS NOT NULL ORDER BY seq LIMIT $1)
) AS c
JOIN objects o ON o.kind = 'FunctionCall' AND o.org = c.org COLLATE "C" AND o.project = c.project COLLATE "C"
    AND o.name = c.name COLLATE "C" AND o.uid = c.uid
WHERE c.updated_at < $2
"""


@dataclass(frozen=True, kw_only=True)
class WaitingCall:
    """A call that waits, and what it says about that."""

    ref: CallRef
    state: CallState
    has_workflow: bool
    suspect: bool
    retries: int
    recoveries: int
    updated_at: datetime
    phase: str
    reason: str
    """Of its condition Scheduled."""
    message: str
    funded: bool
    """Whether money is not what it waits for; the dispatcher says what does."""

    @classmethod
    def from_record(cls, record: Any) -> WaitingCall:  # noqa: ANN401 - a driver row
        """The call from a row of `HEADS` or `LATE`."""
        status = orjson.loads(record["status"])
        scheduled: dict[str, str] = next(
            (each for each in status.get("conditions", ()) if each["type"] == "Scheduled"), {}
        )
        return cls(
            ref=CallRef.from_record(record),
            state=CallState(record["state"]),
            has_workflow=record["has_workflow"],
            suspect=record["suspect"],
            retries=record["retries"],
            recoveries=record["recoveries"],
            updated_at=record["updated_at"],
            phase=status["phase"],
            reason=scheduled.get("reason", ""),
            message=status.get("message", ""),
            funded=transitions.is_funded({"status": status}),
        )

    @property
    def again(self) -> str:
        """What it waits to be done again, for a second dispatch or a later one; empty for the first."""
        if self.phase == transitions.Phase.RECOVERING:
            return f"recovery {self.recoveries}"
        return f"retry {self.retries}" if self.retries else ""


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """Why one call waits."""

    call: WaitingCall
    reason: WaitReason
    message: str

    @property
    def is_news(self) -> bool:
        """Whether the call does not say so yet."""
        return self.call.funded and (self.call.reason, self.call.message) != (self.reason, self.message)


async def queue_heads(
    database: Database, function_uid: str, sessions_max: int, calls_per_session_max: int
) -> list[WaitingCall]:
    """The calls of a Function that are next."""
    records = await database.fetch(HEADS, function_uid, sessions_max, calls_per_session_max)
    return [WaitingCall.from_record(record) for record in records]


@dataclass(frozen=True)
class QueuePlace:
    """Where a walk through the queue of a Function is: behind the call with these columns."""

    session: str = ""
    priority: int = -1
    seq: int = -1


async def queued_after(
    database: Database, function_uid: str, after: QueuePlace, limit: int
) -> tuple[list[WaitingCall], QueuePlace | None]:
    """Queued calls of a Function behind this place, and where the walk goes on, None at its end."""
    records = await database.fetch(QUEUED_AFTER, function_uid, after.session, after.priority, after.seq, limit)
    calls = [WaitingCall.from_record(record) for record in records]
    if len(records) < limit:
        return calls, None
    last = records[-1]
    return calls, QueuePlace(last["session"], last["priority"], last["seq"])


async def late_decisions(database: Database, before: datetime, limit: int) -> list[WaitingCall]:
    """Calls that have waited for a decision of the engine since `before`."""
    return [WaitingCall.from_record(record) for record in await database.fetch(LATE, limit, before)]


class ExplainCalls:
    """Writes why calls wait; one that went on meanwhile is left alone. The result is how many were written."""

    def __init__(self, explanations: Sequence[Explanation]) -> None:
        self._explanations = tuple(explanations)

    def reads(self) -> Reads:
        refs = [explanation.call.ref for explanation in self._explanations]
        return Reads(keys=[ref.key for ref in refs], loads=tuple((CALL_BY_UID, ref.uid) for ref in refs))

    def apply(self, tx: Tx) -> int:
        return sum(self._tell(tx, explanation) for explanation in self._explanations)

    def _tell(self, tx: Tx, explanation: Explanation) -> bool:
        call = explanation.call
        records = tx.rows(CALL_BY_UID, call.ref.uid)
        row = CallBook.of(tx).present(call.ref.uid, CallRow.from_json(records[0]) if records else None)
        if row is None or (row.state, row.retries, row.recoveries) != (call.state, call.retries, call.recoveries):
            return False
        document = present_document(tx, row)
        if document is None or transitions.is_terminal(document):
            return False
        tx.put(row.key, transitions.waiting(document, tx.now, explanation.reason, explanation.message))
        return True
