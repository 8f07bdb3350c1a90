"""Late reports: what a worker says of a call that was taken from it changes nothing, and is kept as an Event.

Somebody who looks for a lost result finds which worker had one, when it said so, and why nobody believed it; never the
payload. A worker may be hostile, so there is one Event for each call that it truly held, repetitions only raise its
count, and a process writes no more than a few of one worker in a minute. Who asks is `api/claims.py`, after the claim
was applied or refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog

from controlplane.calls.reports import Report
from controlplane.calls.timeline import OUTCOMES
from controlplane.calls.wants import Claimant
from controlplane.clock import Clock, format_time
from controlplane.errors import ApiError
from controlplane.ids import sha256_hex
from controlplane.settings import Settings
from controlplane.store.contract import Key, Loader, Reads, Tx
from controlplane.store.events import WARNING, Happening, record_repeated
from controlplane.store.writer import Writer

log = structlog.get_logger(__name__)

LATE_RESULT_REFUSED = "LateResultRefused"
_WINDOW_SECONDS = 60.0
"""Of `Settings.late_reports_max`."""

# The newest dispatch of a call to one worker; through the object, so a call that is gone has none.
_HELD = Loader(
    "dispatch of a call to a worker",
    """SELECT k.key, o.uid, d.number, d.cause, d.reported, d.ended_at
    FROM unnest($1::text[]) AS k(key)
    JOIN objects o ON o.kind = 'FunctionCall' AND o.org = split_part(k.key, '/', 1) COLLATE "C"
        AND o.project = split_part(k.key, '/', 2) COLLATE "C" AND o.name = split_part(k.key, '/', 3) COLLATE "C"
    JOIN call_dispatches d ON d.call_uid = o.uid AND d.attempt = split_part(k.key, '/', 4)
        AND d.epoch = split_part(k.key, '/', 5)::bigint
    ORDER BY d.number DESC""",
)


class NoteLateReport:
    """Records one late report; the result tells whether it was one. What a worker repeats because the answer to its
    claim was lost, and what it says of calls it never had, is none."""

    def __init__(self, claimant: Claimant, report: Report) -> None:
        self._claimant = claimant
        self._report = report
        worker = f"{claimant.attempt}/{claimant.epoch}"
        self._call = Key("FunctionCall", claimant.org, claimant.project, report.call)
        self._held = f"{claimant.org}/{claimant.project}/{report.call}/{worker}"
        digest = sha256_hex(self._held.encode())[:10]
        self._event = Key("Event", claimant.org, "", f"{report.call[:40].rstrip('-')}-late-{digest}")

    def reads(self) -> Reads:
        return Reads(keys=(self._event,), loads=((_HELD, self._held),))

    def apply(self, tx: Tx) -> bool:
        records = tx.rows(_HELD, self._held)
        if not records or records[0]["reported"]:
            return False
        held, claimant = records[0], self._claimant
        said = OUTCOMES[self._report.cause]
        message = (
            f"worker {claimant.attempt} (epoch {claimant.epoch}) reported {said} of dispatch {held['number']} after "
            f"that had ended at {format_time(held['ended_at'])} ({OUTCOMES[held['cause']]}); "
            "the report was refused and changed nothing"
        )
        happening = Happening(
            key=self._call, uid=held["uid"], type=WARNING, reason=LATE_RESULT_REFUSED, message=message
        )
        record_repeated(tx, self._event, happening)
        return True


@dataclass
class _Budget:
    """What one worker may still have written until a time."""

    left: int
    until: datetime


class LateReports:
    """Notes late reports within bounds; one for each process that takes claims."""

    def __init__(self, writer: Writer, settings: Settings, clock: Clock) -> None:
        self._writer = writer
        self._clock = clock
        self._reports_max = settings.late_reports_max
        self._workers_max = settings.late_report_workers_max
        self._budgets: OrderedDict[str, _Budget] = OrderedDict()

    def has_room(self, attempt: str) -> bool:
        """Whether anything that this worker says now would be noted; if not, it need not be read."""
        return self._budget(attempt).left > 0

    async def note(self, claimant: Claimant, reports: Sequence[Report]) -> None:
        """Record those of these reports that came too late; a fault here is not the worker's."""
        for report in reports:
            budget = self._budget(claimant.attempt)
            if budget.left <= 0:
                return
            budget.left -= 1
            try:
                noted = await self._writer.write(NoteLateReport(claimant, report))
            except ApiError as error:
                log.warning("a late report was not recorded", attempt=claimant.attempt, told=error.message)
                return
            if noted:
                log.info("a late report was refused", attempt=claimant.attempt, call=report.call, said=report.cause)

    def _budget(self, attempt: str) -> _Budget:
        now = self._clock.now()
        budget = self._budgets.get(attempt)
        if budget is None or budget.until <= now:
            budget = _Budget(self._reports_max, now + timedelta(seconds=_WINDOW_SECONDS))
            self._budgets[attempt] = budget
        self._budgets.move_to_end(attempt)
        if len(self._budgets) > self._workers_max:
            self._budgets.popitem(last=False)
        return budget
