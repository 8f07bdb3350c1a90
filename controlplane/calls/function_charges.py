"""The audit of a Function's cost: what it tells, what the ledger holds for it, and the rule applied again to all of it.

The rule is applied in SQL here, apart from `ledger/pricing.py`, since a Function may have a million charges; that both
make the same of an entry is what the audit of a call shows. Everything is read in one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from controlplane.calls.shown import set_fields, view
from controlplane.clock import format_time_micro
from controlplane.errors import not_found
from controlplane.ledger.function_funds import SEGMENTS, SegmentSum, segment_sum
from controlplane.ledger.worker_costs import whole_seconds
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database

CHARGES_MAX = 1_000_000
"""Added up in a second or two; what is more is left to `python -m workers ledger verify`."""
WORKER_CHARGES_MAX = 500
"""Told one by one, the newest first; a worker has two or three, and one for each window that it idles."""
WRONG_MAX = 20
"""Told one by one; whatever made an entry wrong is found by a few."""

FUNCTION = """
SELECT o.doc, COALESCE(l.charge_micro_usd, 0) AS charge_micro_usd,
    (SELECT COALESCE(sum(held_micro_usd), 0)::bigint FROM worker_accounts w WHERE w.function_uid = o.uid) AS held,
    (SELECT COALESCE(sum(amount_micro_usd), 0)::bigint FROM ledger_transfers t
        WHERE t.function_uid = o.uid AND t.kind = 'refund') AS refunded
FROM objects o LEFT JOIN function_load l ON l.function_uid = o.uid
WHERE o.kind = 'Function' AND o.org = $1 AND o.project = $2 AND o.name = $3
"""

# A call pays for the whole seconds of its period and for one at least, a worker for those of it that its entry names;
# what is rounded is the amount, up.
_APPLIED = """
SELECT id, seq, segment, amount_micro_usd, charged_seconds, COALESCE(
    (charged_seconds * rate_micro_usd_per_hour + 3600 * shares - 1) / (3600 * shares), amount_micro_usd) AS recomputed,
    CASE WHEN segment = 'Running' THEN 'Warm' WHEN segment IS NOT NULL THEN segment
        WHEN dispatch IS NOT NULL THEN 'Calls' ELSE 'Opening' END AS part
FROM (
    SELECT t.*, COALESCE(seconds, GREATEST(1, ceil(extract(epoch FROM period_end - period_start))::bigint))
        AS charged_seconds
    FROM ledger_transfers t WHERE function_uid = $1 AND kind = 'charge' LIMIT $2
) AS charges
"""

PARTS = f"""
SELECT part, count(*) AS charges, sum(charged_seconds)::bigint AS seconds, sum(amount_micro_usd)::bigint AS amount,
    sum(recomputed)::bigint AS recomputed
FROM ({_APPLIED}) AS applied GROUP BY part ORDER BY part
"""  # noqa: S608 - constants

WRONG = f"""
SELECT id, amount_micro_usd AS amount, recomputed FROM ({_APPLIED}) AS applied
WHERE recomputed <> amount_micro_usd ORDER BY seq LIMIT $3
"""  # noqa: S608 - constants

WORKERS = """
SELECT id, subject_name, segment, period_start, period_end, seconds, rate_micro_usd_per_hour, shares, pricebook,
    amount_micro_usd
FROM ledger_transfers WHERE function_uid = $1 AND segment IS NOT NULL ORDER BY seq DESC LIMIT $2
"""


@dataclass(frozen=True, kw_only=True)
class Part:
    """All charges of one sort: of calls, of warm workers' free places, of their starts and stops."""

    charges: int
    seconds: int
    amount_micro_usd: int
    recomputed_micro_usd: int


@dataclass(frozen=True, kw_only=True)
class Audited:
    """What was read of one Function."""

    document: Document
    told_micro_usd: int
    held_micro_usd: int
    refunded_micro_usd: int
    parts: Mapping[str, Part]
    wrong: Sequence[Any]
    workers: Sequence[Any]
    segments: Mapping[str, SegmentSum]


class FunctionAuditor:
    """Answers for Functions what `CallInspector.charges` does for calls."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def charges(self, key: Key) -> Document:
        """The Function's FunctionCharges; NotFound when there is no such Function."""
        async with self._database.snapshot() as connection:
            found = await connection.fetchrow(FUNCTION, key.org, key.project, key.name)
            if found is None:
                raise not_found("functions", key.name)
            document: Document = orjson.loads(found["doc"])
            uid = document["metadata"]["uid"]
            parts = await connection.fetch(PARTS, uid, CHARGES_MAX)
            wrong = await connection.fetch(WRONG, uid, CHARGES_MAX, WRONG_MAX)
            workers = await connection.fetch(WORKERS, uid, WORKER_CHARGES_MAX + 1)
            segments = await connection.fetch(SEGMENTS, [uid])
        audited = Audited(
            document=document,
            told_micro_usd=found["charge_micro_usd"],
            held_micro_usd=found["held"],
            refunded_micro_usd=found["refunded"],
            parts={each["part"]: _part(each) for each in parts},
            wrong=wrong,
            workers=workers,
            segments={each["segment"]: segment_sum(each) for each in segments},
        )
        return view("FunctionCharges", document, function_charges_status(audited))


def function_charges_status(audited: Audited) -> Document:
    """The status of a FunctionCharges."""
    parts = audited.parts
    charged = sum(part.amount_micro_usd for part in parts.values())
    recomputed = sum(part.recomputed_micro_usd for part in parts.values())
    differences = [*_differences(audited, charged)]
    return set_fields(
        {
            "phase": audited.document["status"].get("phase"),
            "totalUSD": format_money(audited.told_micro_usd),
            "ledgerUSD": format_money(charged),
            "recomputedUSD": format_money(recomputed),
            "refundedUSD": format_money(audited.refunded_micro_usd),
            "heldUSD": format_money(audited.held_micro_usd),
            "equal": not differences,
            "differences": differences or None,
            "parts": [_shown_part(name, part) for name, part in parts.items()],
            "workers": [_shown_worker(row) for row in audited.workers[:WORKER_CHARGES_MAX]],
            "workersAreCut": len(audited.workers) > WORKER_CHARGES_MAX or None,
        }
    )


def _differences(audited: Audited, charged: int) -> Iterator[str]:
    if sum(part.charges for part in audited.parts.values()) >= CHARGES_MAX:
        yield (
            f"only {CHARGES_MAX:,} of its charges were added up; `python -m workers ledger verify` looks at all of them"
        )
        return
    if audited.told_micro_usd != charged:
        yield (
            f"the Function tells {format_money(audited.told_micro_usd)} USD and the ledger {format_money(charged)} USD"
        )
    for row in audited.wrong:
        yield (
            f"{row['id']} is of {format_money(row['amount'])} USD and the rule makes it "
            f"{format_money(row['recomputed'])} USD"
        )
    for segment, told in audited.segments.items():
        found = audited.parts.get("Warm" if segment == "Running" else segment)
        amount = found.amount_micro_usd if found is not None else 0
        if told.amount_micro_usd != amount:
            yield (
                f"its workers tell {format_money(told.amount_micro_usd)} USD of {segment} and the ledger "
                f"{format_money(amount)} USD"
            )


def _part(row: Any) -> Part:  # noqa: ANN401 - a driver row
    return Part(
        charges=row["charges"],
        seconds=row["seconds"] or 0,
        amount_micro_usd=row["amount"],
        recomputed_micro_usd=row["recomputed"],
    )


def _shown_part(name: str, part: Part) -> Document:
    return {
        "part": name,
        "charges": part.charges,
        "seconds": part.seconds,
        "amountUSD": format_money(part.amount_micro_usd),
        "recomputedUSD": format_money(part.recomputed_micro_usd),
    }


def _shown_worker(row: Any) -> Document:  # noqa: ANN401 - a driver row
    return set_fields(
        {
            "attempt": row["subject_name"],
            "segment": row["segment"],
            "chargedFrom": format_time_micro(row["period_start"]),
            "chargedUntil": format_time_micro(row["period_end"]),
            "seconds": row["seconds"],
            "rateUSDPerHour": format_money(row["rate_micro_usd_per_hour"]),
            "roundingSeconds": _rounding_seconds(row) or None,
            "shares": row["shares"],
            "pricebookVersion": row["pricebook"],
            "amountUSD": format_money(row["amount_micro_usd"]),
            "transaction": row["id"],
        }
    )


def _rounding_seconds(row: Any) -> int:  # noqa: ANN401 - a driver row
    """What of a worker's time was charged and not lived; places are charged for no more than there is."""
    lived = whole_seconds(row["period_start"], row["period_end"])
    return max(0, row["seconds"] - lived) if row["shares"] == 1 else 0
