"""What an organisation has and how it came to it: its BillingAccount and its Transactions, made of the ledger.

Nothing is stored for them. A Transaction is a transfer that moved money; the balance after it is worked out backwards
from what the account holds now, so a page reads what the organisation moved from its oldest Transaction to where the
page before it ended: what it shows, unless it is asked for some only, which may lie far apart. The name of a
Transaction is made of the place of its transfer in the ledger, which never changes. `api/billing.py` serves both;
`usage.py` tells what for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from controlplane.clock import Clock, format_time
from controlplane.kinds.billing_account import ACCOUNT_NAME, BILLING_ACCOUNT
from controlplane.kinds.transaction import TRANSACTION
from controlplane.ledger.accounts import Balance, TransferKind, balance_of_org
from controlplane.ledger.periods import Range, month_of
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import FieldTerm
from controlplane.store.database import Database
from controlplane.store.numbered import NEWEST, allowed, field_conditions, metadata, name_of, seq_of

TYPES: Mapping[TransferKind, str] = MappingProxyType(
    {
        TransferKind.CHARGE: "Capture",
        TransferKind.POST: "Capture",
        TransferKind.GRANT: "Grant",
        TransferKind.REFUND: "Refund",
        TransferKind.LAPSE: "GrantExpiry",
    }
)
"""The transfers that change a balance, and what a Transaction of them is called."""

_MOVED = "t.kind IN ('charge', 'post', 'grant', 'refund', 'lapse')"
_SIGNED = "CASE WHEN t.kind IN ('grant', 'refund') THEN t.amount_micro_usd ELSE -t.amount_micro_usd END"
_TYPE = (
    "CASE t.kind WHEN 'grant' THEN 'Grant' WHEN 'refund' THEN 'Refund' WHEN 'lapse' THEN 'GrantExpiry' "
    "ELSE 'Capture' END"
)
_FIELDS = MappingProxyType(
    {"type": _TYPE, "project": "COALESCE(t.project, '')", "metadata.name": "''", "metadata.namespace": "''"}
)

# A page of transfers, newest first, each with what later ones moved; those since the last page are known to that page.
_PAGE = f"""
WITH page AS (
    SELECT t.* FROM ledger_transfers t
    WHERE t.org = $1 AND {_MOVED} AND t.seq < $2 AND t.created_at >= $3 AND t.created_at < $4
        AND ($5::text[] IS NULL OR t.project = ANY($5)) $conditions
    ORDER BY t.seq DESC LIMIT $6
), later AS (
    SELECT t.seq, sum({_SIGNED}) OVER (ORDER BY t.seq DESC) - {_SIGNED} AS micro_usd
    FROM ledger_transfers t
    WHERE t.org = $1 AND {_MOVED} AND t.seq < $2 AND t.seq >= (SELECT min(seq) FROM page)
)
SELECT p.*, l.micro_usd::bigint AS later_micro_usd, {_SIGNED.replace("t.", "p.")} AS signed_micro_usd
FROM page p JOIN later l ON l.seq = p.seq ORDER BY p.seq DESC
"""  # noqa: S608 - constants

_SPENT = """
SELECT COALESCE(sum(CASE WHEN kind = 'refund' THEN -amount_micro_usd ELSE amount_micro_usd END), 0)::bigint AS spent,
    (SELECT min(created_at) FROM ledger_transfers WHERE org = $1) AS opened_at
FROM ledger_transfers
WHERE org = $1 AND created_at >= $2 AND created_at < $3 AND kind IN ('charge', 'post', 'refund')
"""


@dataclass(frozen=True)
class Cursor:
    """Where a page of Transactions ends: the place of its last one, and the balance before that."""

    seq: int
    balance_micro_usd: int


class Statements:
    """Reads the ledger for people."""

    def __init__(self, database: Database, clock: Clock) -> None:
        self._database = database
        self._clock = clock

    async def account(self, org: str, next_grant_expiry: Document | None) -> Document:
        """The BillingAccount of the organisation as of now; what expires next is known to `grants.py`."""
        now = self._clock.now()
        start, end = month_of(now)
        async with self._database.snapshot() as connection:
            balance = await balance_of_org(connection, org)
            month = await connection.fetchrow(_SPENT, org, start, end)
        assert month is not None, "an aggregate has one row"
        account = _account(org, balance, month["spent"], month["opened_at"] or now)
        if next_grant_expiry is not None:
            account["status"]["nextGrantExpiry"] = next_grant_expiry
        return account

    async def transactions(
        self,
        org: str,
        projects: Sequence[str] | None,
        within: Range,
        fields: Sequence[FieldTerm],
        limit: int,
        after: Cursor | None = None,
    ) -> tuple[list[Document], Cursor | None]:
        """Up to `limit` Transactions, the newest first, and where the next page begins if there is one.

        `projects` limits them to these; then no balance is told, because it is the organisation's.
        """
        arguments: list[object] = [
            org, after.seq if after else NEWEST, *within.bounds, allowed(projects), limit + 1,
        ]  # fmt: skip
        conditions = field_conditions(_FIELDS, fields, arguments)
        async with self._database.snapshot() as connection:
            rows = [dict(row) for row in await connection.fetch(_PAGE.replace("$conditions", conditions), *arguments)]
            newest = after.balance_micro_usd if after else (await balance_of_org(connection, org)).settled_micro_usd
        shown = rows[:limit]
        found = [_transaction(row, None if projects is not None else newest - row["later_micro_usd"]) for row in shown]
        if len(rows) <= limit:
            return found, None
        last = shown[-1]
        return found, Cursor(last["seq"], newest - last["later_micro_usd"] - last["signed_micro_usd"])

    async def transaction(self, org: str, projects: Sequence[str] | None, name: str) -> Document | None:
        """The Transaction with this name, None when there is none."""
        seq = seq_of(TRANSACTION.uid_prefix, name)
        if seq is None:
            return None
        async with self._database.snapshot() as connection:
            arguments = (org, seq + 1, *Range().bounds, allowed(projects), 1)
            rows = [dict(row) for row in await connection.fetch(_PAGE.replace("$conditions", ""), *arguments)]
            if not rows or rows[0]["seq"] != seq or name_of(TRANSACTION.uid_prefix, rows[0]) != name:
                return None
            balance = (await balance_of_org(connection, org)).settled_micro_usd
            later = await connection.fetchval(
                f"SELECT COALESCE(sum({_SIGNED}), 0)::bigint FROM ledger_transfers t "  # noqa: S608 - constants
                f"WHERE t.org = $1 AND {_MOVED} AND t.seq > $2",
                org, seq,
            )  # fmt: skip
        return _transaction(rows[0], None if projects is not None else balance - later)


def _transaction(row: Mapping[str, Any], balance_micro_usd: int | None) -> Document:
    kind = TransferKind(row["kind"])
    name = name_of(TRANSACTION.uid_prefix, row)
    shown: Document = {
        "apiVersion": API_VERSION,
        "kind": TRANSACTION.kind,
        "metadata": metadata(name, row),
        "time": format_time(row["created_at"]),
        "type": TYPES[kind],
        "amountUSD": format_money(row["signed_micro_usd"]),
        "entry": row["id"],
        "cause": _CAUSES[kind],
    }
    if balance_micro_usd is not None:
        shown["balanceAfterUSD"] = format_money(balance_micro_usd)
    if row["project"]:
        shown["project"] = row["project"]
    if row["subject_kind"]:
        subject = {"kind": row["subject_kind"], "name": row["subject_name"], "uid": row["subject_uid"]}
        shown["reference"] = {name: value for name, value in subject.items() if value}
    if kind is TransferKind.LAPSE:
        # The subject is the grant by its id in the ledger; people know it by its name.
        shown["reference"].pop("uid", None)
        shown["bucket"] = {"kind": "Grant", "creditGrant": row["subject_name"]}
    if kind is TransferKind.GRANT:
        shown["bucket"] = {"kind": "Grant", "creditGrant": row["id"].rpartition("/")[2]}
    if row["reason"]:
        shown["description"] = row["reason"]
    return shown


_CAUSES: Mapping[TransferKind, str] = MappingProxyType(
    {
        TransferKind.CHARGE: "WorkEnded",
        TransferKind.POST: "HoldPosted",
        TransferKind.GRANT: "CreditGranted",
        TransferKind.REFUND: "ChargeRefunded",
        TransferKind.LAPSE: "GrantExpired",
    }
)


def _account(org: str, balance: Balance, spent_micro_usd: int, opened_at: datetime) -> Document:
    available = max(0, balance.available_micro_usd)
    limited = balance.floor_micro_usd is not None
    arrears = max(0, -balance.settled_micro_usd) if limited else 0
    told = (
        ("True", "Limited", "work must fit the credit that is left")
        if limited
        else ("False", "Unlimited", "nobody limits what this organisation may use")
    )
    # No time of theirs is stored; that of the moment would be another at each look, though nothing has changed.
    conditions = with_condition([], Condition("CreditLimited", *told, 1), opened_at)
    no_payments = "this server takes no payments; its operator grants credit"
    conditions = with_condition(
        conditions, Condition("PaymentMethodPresent", "False", "PaymentsNotConfigured", no_payments, 1), opened_at
    )
    return {
        "apiVersion": API_VERSION,
        "kind": BILLING_ACCOUNT.kind,
        "metadata": {
            "name": ACCOUNT_NAME,
            "uid": f"{BILLING_ACCOUNT.uid_prefix}_{org}",
            "resourceVersion": str(balance.settled_micro_usd % NEWEST),
            "generation": 1,
            "creationTimestamp": format_time(opened_at),
        },
        "spec": {"autoRecharge": {"enabled": False}},
        "status": {
            "availableUSD": format_money(available),
            "purchasedUSD": format_money(0),
            "grantsUSD": format_money(available),
            "pendingUSD": format_money(balance.held_micro_usd),
            "arrearsUSD": format_money(arrears),
            "monthToDate": {"spentUSD": format_money(max(0, spent_micro_usd))},
            "conditions": conditions,
        },
    }
