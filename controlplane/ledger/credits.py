"""Credit that an operator grants, and charges that are given back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

from controlplane.errors import ApiError, Reason
from controlplane.ledger.accounts import TransferKind
from controlplane.ledger.transfers import Transfer, record, subject_of
from controlplane.machinery.quantities import format_duration, format_money
from controlplane.store.contract import Loader, Reads, Tx

_CHARGE = Loader(
    "ledger-charge",
    """
SELECT c.id AS key, c.org, c.kind, c.amount_micro_usd, c.project, c.subject_kind, c.subject_name, c.subject_uid,
    c.function_uid, c.function_name, c.labels, COALESCE((SELECT sum(r.amount_micro_usd) FROM ledger_transfers r
        WHERE r.kind = 'refund' AND r.refers_to = c.id), 0)::bigint AS refunded_micro_usd
FROM ledger_transfers c WHERE c.id = ANY($1::text[])
""",
)
_GRANT = Loader(
    "ledger-grant",
    """
SELECT id AS key, amount_micro_usd, extract(epoch FROM expires_at - created_at)::float8 AS lifetime_seconds
FROM ledger_transfers WHERE id = ANY($1::text[])
""",
)
_CHARGES = frozenset({TransferKind.CHARGE, TransferKind.POST})


class GrantCredit:
    """Gives an organisation something to spend, for a while or for good. `grant_id` names the grant: the same one again
    changes nothing.

    Raises CONFLICT when a grant of this name is of another amount or lifetime.
    """

    def __init__(
        self, org: str, grant_id: str, amount_micro_usd: int, reason: str, lifetime: timedelta | None = None
    ) -> None:
        if amount_micro_usd <= 0:
            raise ValueError(f"a grant must be of a positive amount, not {amount_micro_usd} micro-USD")
        self._transfer = Transfer(
            id=f"grant/{org}/{grant_id}",
            org=org,
            kind=TransferKind.GRANT,
            amount_micro_usd=amount_micro_usd,
            reason=reason,
        )
        self._lifetime = lifetime
        self._name = grant_id

    def reads(self) -> Reads:
        return Reads(loads=((_GRANT, self._transfer.id),))

    def apply(self, tx: Tx) -> str:
        lifetime_seconds = None if self._lifetime is None else self._lifetime.total_seconds()
        for known in tx.rows(_GRANT, self._transfer.id):
            if (known["amount_micro_usd"], known["lifetime_seconds"]) != (
                self._transfer.amount_micro_usd,
                lifetime_seconds,
            ):
                raise ApiError(Reason.CONFLICT, _is_another(self._name, known), fix=_ANOTHER_NAME)
        expires_at = None if self._lifetime is None else tx.now + self._lifetime
        record(tx, replace(self._transfer, expires_at=expires_at))
        return self._transfer.id


_ANOTHER_NAME = "Give another grant another name; `nodus get creditgrants` lists what there is."


def _is_another(name: str, known: Mapping[str, Any]) -> str:
    lifetime = known["lifetime_seconds"]
    good = "for ever" if lifetime is None else f"for {format_duration(lifetime)}"
    return f'the grant "{name}" is there already: of {format_money(known["amount_micro_usd"])} USD, good {good}'


class RefundCharge:
    """Gives back a charge, or a part of it. `refund_id` names the refund of it: the same again changes nothing.

    Raises NOT_FOUND when there is no such charge and INVALID when less than this is left of it. What was refunded in
    the same batch is not seen here; there the database refuses what is too much, and nothing is stored.
    """

    def __init__(self, charge_id: str, refund_id: str, amount_micro_usd: int, reason: str) -> None:
        if amount_micro_usd <= 0:
            raise ValueError(f"a refund must be of a positive amount, not {amount_micro_usd} micro-USD")
        self._charge_id = charge_id
        self._id = f"refund/{charge_id}/{refund_id}"
        self._amount_micro_usd = amount_micro_usd
        self._reason = reason

    def reads(self) -> Reads:
        return Reads(loads=((_CHARGE, self._charge_id), (_CHARGE, self._id)))

    def apply(self, tx: Tx) -> str:
        rows = tx.rows(_CHARGE, self._charge_id)
        if not rows or rows[0]["kind"] not in _CHARGES:
            raise ApiError(Reason.NOT_FOUND, f'there is no charge "{self._charge_id}"')
        charge, known = rows[0], tx.rows(_CHARGE, self._id)
        left = charge["amount_micro_usd"] - charge["refunded_micro_usd"]
        if not known and self._amount_micro_usd > left:
            raise ApiError(
                Reason.INVALID,
                f"{format_money(left)} USD are left of this charge, so {format_money(self._amount_micro_usd)} USD "
                "cannot be given back",
            )
        record(
            tx,
            Transfer(
                id=self._id,
                org=charge["org"],
                kind=TransferKind.REFUND,
                amount_micro_usd=self._amount_micro_usd,
                refers_to=self._charge_id,
                reason=self._reason,
                subject=subject_of(charge),
            ),
        )
        return self._id
