"""The audit of a call's cost: its dispatches and the ledger side by side, and the rule applied to them again.

Three accounts of the same money are compared: what the call tells, what the ledger charged, and what follows from the
recorded intervals, rates and shares by `ledger/pricing.py`. Pure but for its query; `calls/inspection.py` reads both in
one snapshot.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.calls.decide import Cause
from controlplane.calls.history import UNDELIVERED
from controlplane.calls.shown import set_fields
from controlplane.calls.timeline import PastDispatch
from controlplane.clock import format_time, format_time_micro
from controlplane.ledger.accounts import TransferKind
from controlplane.ledger.pricing import worker_seconds
from controlplane.ledger.transfers import Basis
from controlplane.machinery.quantities import format_money, parse_money
from controlplane.store.contract import Document

TRANSFERS_MAX = 2_000
"""A call may be retried and recovered some hundred times, and each charge given back in parts."""

TRANSFERS = """
SELECT id, kind, amount_micro_usd, refers_to, reason, dispatch, period_start, period_end, rate_micro_usd_per_hour,
    shares, pricebook, created_at
FROM ledger_transfers WHERE subject_uid = $1 ORDER BY seq LIMIT $2
"""

_FREE: Mapping[str, str] = {
    UNDELIVERED: "the worker never received it",
    Cause.LOST: "the platform lost its worker, or nobody knows that it ran",
}


@dataclass(frozen=True, kw_only=True)
class CallTransfer:
    """A row of `TRANSFERS`."""

    id: str
    kind: str
    amount_micro_usd: int
    refers_to: str | None
    reason: str
    dispatch: int | None
    period_start: datetime | None
    period_end: datetime | None
    rate_micro_usd_per_hour: int | None
    shares: int | None
    pricebook: str | None
    created_at: datetime

    @property
    def basis(self) -> Basis | None:
        """From what the amount was worked out."""
        if self.dispatch is None or self.period_start is None or self.period_end is None:
            return None
        return Basis(
            dispatch=self.dispatch,
            period_start=self.period_start,
            period_end=self.period_end,
            rate_micro_usd_per_hour=self.rate_micro_usd_per_hour or 0,
            shares=self.shares or 1,
            pricebook=self.pricebook or "",
        )


def charges_status(document: Document, past: Sequence[PastDispatch], transfers: Sequence[CallTransfer]) -> Document:
    """The status of a FunctionCallCharges."""
    told = parse_money(document["status"].get("costUSD", "0"))
    is_cut, transfers = len(transfers) > TRANSFERS_MAX, transfers[:TRANSFERS_MAX]
    charges: dict[int, list[CallTransfer]] = {}
    for transfer in transfers:
        if transfer.kind == TransferKind.CHARGE:
            charges.setdefault(transfer.dispatch or 0, []).append(transfer)
    refunds = [transfer for transfer in transfers if transfer.kind == TransferKind.REFUND]
    dispatches = {dispatch.number: dispatch for dispatch in past}
    charged = sum(_amount(found) for found in charges.values())
    recomputed = sum(_recomputed(transfer) for found in charges.values() for transfer in found)
    differences = [*_differences(told, charged, charges, dispatches)]
    if is_cut:
        differences.append(f"the ledger has more than the {TRANSFERS_MAX} entries that are compared here")
    numbers = sorted(charges.keys() | dispatches.keys())
    return set_fields(
        {
            "phase": document["status"]["phase"],
            "costUSD": format_money(told),
            "ledgerUSD": format_money(charged),
            "recomputedUSD": format_money(recomputed),
            "refundedUSD": format_money(sum(refund.amount_micro_usd for refund in refunds)),
            "equal": not differences,
            "differences": differences or None,
            "charges": [
                _charge(number, transfer, dispatches.get(number))
                for number in numbers
                for transfer in charges.get(number, [None])
            ],
            "chargesAreCut": is_cut or None,
            "refunds": [_refund(refund) for refund in refunds] or None,
        }
    )


def _amount(transfers: Sequence[CallTransfer]) -> int:
    return sum(transfer.amount_micro_usd for transfer in transfers)


def _recomputed(transfer: CallTransfer) -> int:
    return transfer.basis.cost_micro_usd if transfer.basis is not None else 0


def _differences(
    told: int,
    charged: int,
    charges: Mapping[int, Sequence[CallTransfer]],
    dispatches: Mapping[int, PastDispatch],
) -> Iterator[str]:
    if told != charged:
        yield f"the call tells {format_money(told)} USD and the ledger {format_money(charged)} USD"
    for number, found in charges.items():
        recomputed = sum(_recomputed(transfer) for transfer in found)
        if recomputed != _amount(found):
            yield (
                f"dispatch {number} was charged {format_money(_amount(found))} USD and the rule makes it "
                f"{format_money(recomputed)} USD"
            )
        if len(found) > 1:
            yield f"dispatch {number} was charged {len(found)} times"
    for number, dispatch in dispatches.items():
        found = charges.get(number, ())
        amount = _amount(found)
        if dispatch.charge_micro_usd != amount:
            tells = format_money(dispatch.charge_micro_usd)
            yield f"dispatch {number} tells {tells} USD and the ledger {format_money(amount)} USD"
        if any(transfer.period_start != dispatch.started_at for transfer in found):
            yield f"dispatch {number} began at another time than it is charged from"
        if any(transfer.period_end is not None and transfer.period_end > dispatch.ended_at for transfer in found):
            yield f"dispatch {number} ended before what it is charged until"


def _charge(number: int, transfer: CallTransfer | None, dispatch: PastDispatch | None) -> Document:
    attempt = dispatch.attempt if dispatch is not None else None
    if transfer is None:
        assert dispatch is not None, f"dispatch {number} is from nowhere"
        return set_fields(
            {
                "dispatch": number,
                "attempt": attempt,
                "startedAt": format_time_micro(dispatch.started_at),
                "endedAt": format_time_micro(dispatch.ended_at),
                "amountUSD": format_money(0),
                "reason": _FREE.get(dispatch.cause, "its price is nothing"),
            }
        )
    shown: dict[str, Any] = {
        "dispatch": number,
        "attempt": attempt,
        "amountUSD": format_money(transfer.amount_micro_usd),
        "transaction": transfer.id,
    }
    basis = transfer.basis
    if basis is not None:
        shown |= {
            "chargedFrom": format_time_micro(basis.period_start),
            "chargedUntil": format_time_micro(basis.period_end),
            "seconds": worker_seconds(basis.period_start, basis.period_end),
            "rateUSDPerHour": format_money(basis.rate_micro_usd_per_hour),
            "shares": basis.shares,
            "pricebookVersion": basis.pricebook,
            "recomputedUSD": format_money(basis.cost_micro_usd),
        }
    return set_fields(shown)


def _refund(transfer: CallTransfer) -> Document:
    return set_fields(
        {
            "transaction": transfer.id,
            "of": transfer.refers_to,
            "amountUSD": format_money(transfer.amount_micro_usd),
            "time": format_time(transfer.created_at),
            "reason": transfer.reason or None,
        }
    )
