"""One movement of money, and the only way it enters the ledger.

A transfer is a row with both its sides and one amount, in the same transaction as what it is about: `record` makes it
part of the statement that writes the batch, so it costs no round trip. Its id is made of the uid of its subject and of
what happened to it, so that whatever is repeated after a crash is found to be there already; the database refuses an id
that comes again with another amount. Nothing is ever changed or deleted: what was wrong is set right by a refund.
`holds.py` and `credits.py` hold the mutations, `invariants.py` what must be true of all of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

import orjson

from controlplane.ledger.accounts import SIDES, TransferKind, account_id
from controlplane.ledger.pricing import call_charge_micro_usd, worker_seconds
from controlplane.store.contract import Tx


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What a transfer is about. `function_uid` is the Function whose total it counts to. Its name and the labels are
    kept here because usage is asked for long after the objects are gone."""

    kind: str
    project: str
    name: str
    uid: str
    function_uid: str | None = None
    function_name: str | None = None
    labels: Mapping[str, str] | None = None


def subject_of(row: Mapping[str, Any]) -> Subject | None:
    """The subject in a row of the ledger, for what follows that row."""
    if row["subject_uid"] is None:
        return None
    return Subject(
        kind=row["subject_kind"],
        project=row["project"],
        name=row["subject_name"],
        uid=row["subject_uid"],
        function_uid=row["function_uid"],
        function_name=row["function_name"],
        labels=None if row["labels"] is None else orjson.loads(row["labels"]),
    )


@dataclass(frozen=True, kw_only=True)
class Basis:
    """From what an amount was worked out, so that anybody can do it again (`pricing.py`); its fields are columns."""

    dispatch: int
    """Of a call; of a worker, which of its settlements."""
    period_start: datetime
    period_end: datetime
    rate_micro_usd_per_hour: int
    shares: int
    pricebook: str
    segment: str | None = None
    """Of a worker's life; None for a call."""
    seconds: int | None = None
    """Those of the period that are charged; None for a call, which pays for all of them."""
    offering: str | None = None
    """What the worker ran on."""

    @property
    def charged_seconds(self) -> int:
        """How many seconds are charged."""
        return worker_seconds(self.period_start, self.period_end) if self.seconds is None else self.seconds

    @property
    def cost_micro_usd(self) -> int:
        """The amount that the rule makes of it."""
        return call_charge_micro_usd(self.charged_seconds, self.rate_micro_usd_per_hour, self.shares)


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """One row of the ledger. `amount_micro_usd` is positive, and zero for what ends a hold without posting it."""

    id: str
    org: str
    kind: TransferKind
    amount_micro_usd: int
    reason: str = ""
    refers_to: str | None = None
    expires_at: datetime | None = None
    subject: Subject | None = None
    basis: Basis | None = None


def charge(org: str, amount_micro_usd: int, subject: Subject, basis: Basis) -> Transfer:
    """The charge for one dispatch of a call, or for one segment of a worker in one of its settlements."""
    part = "" if basis.segment is None else f"{basis.segment.lower()}/"
    return Transfer(
        id=f"charge/{subject.uid}/{part}{basis.dispatch}",
        org=org,
        kind=TransferKind.CHARGE,
        amount_micro_usd=amount_micro_usd,
        subject=subject,
        basis=basis,
    )


def resolution(hold_id: str, org: str, kind: TransferKind, amount_micro_usd: int, subject: Subject | None) -> Transfer:
    """What ends a hold. One hold has one end, whichever it is, so the id does not name the kind."""
    return Transfer(
        id=f"end/{hold_id}",
        org=org,
        kind=kind,
        amount_micro_usd=amount_micro_usd,
        refers_to=hold_id,
        subject=subject,
    )


def record(tx: Tx, transfer: Transfer) -> None:
    """Write the transfer with the batch; a transfer of nothing is none, so work that is free costs the ledger nothing.

    Call it last: what a mutation still refuses afterwards is taken back here too, but not in `pending`.
    """
    if transfer.amount_micro_usd == 0 and transfer.refers_to is None:
        return
    tx.join(_ADD_TRANSFERS, _row(transfer, tx.now))
    moved = pending(tx)
    moved[transfer.org] = moved.get(transfer.org, 0) + _AVAILABLE[transfer.kind] * transfer.amount_micro_usd


def pending(tx: Tx) -> dict[str, int]:
    """By organisation, how much more is available (micro-USD) than the batch loaded, by what it records itself."""
    return tx.scratch("ledger available")


_AVAILABLE: Mapping[TransferKind, int] = MappingProxyType(
    {
        TransferKind.CHARGE: -1,
        TransferKind.GRANT: 1,
        TransferKind.REFUND: 1,
        TransferKind.HOLD: -1,
        # What a hold releases is known to the database only; until the commit it is not counted upon.
        TransferKind.POST: 0,
        TransferKind.VOID: 0,
        TransferKind.EXPIRE: 0,
        TransferKind.LAPSE: -1,
    }
)

_COLUMNS = (
    "id, org, kind, debit, credit, amount_micro_usd, refers_to, expires_at, reason, project, subject_kind, "
    "subject_name, subject_uid, function_uid, function_name, labels, dispatch, period_start, period_end, "
    "rate_micro_usd_per_hour, shares, pricebook, segment, seconds, offering, created_at"
)

_ADD_TRANSFERS = f"""
INSERT INTO ledger_transfers ({_COLUMNS})
SELECT {_COLUMNS} FROM json_populate_recordset(NULL::ledger_transfers, $rows)
"""  # noqa: S608 - constants


def _row(transfer: Transfer, now: datetime) -> dict[str, Any]:
    debit, credit = SIDES[transfer.kind]
    row: dict[str, Any] = {
        "id": transfer.id,
        "org": transfer.org,
        "kind": transfer.kind,
        "debit": account_id(debit, transfer.org),
        "credit": account_id(credit, transfer.org),
        "amount_micro_usd": transfer.amount_micro_usd,
        "refers_to": transfer.refers_to,
        "expires_at": transfer.expires_at,
        "reason": transfer.reason,
        "created_at": now,
    }
    if transfer.subject is not None:
        row |= {
            "project": transfer.subject.project,
            "subject_kind": transfer.subject.kind,
            "subject_name": transfer.subject.name,
            "subject_uid": transfer.subject.uid,
            "function_uid": transfer.subject.function_uid,
            "function_name": transfer.subject.function_name,
            "labels": transfer.subject.labels or None,
        }
    if transfer.basis is not None:
        row |= vars(transfer.basis)
    return row
