"""The chart of accounts: which there are, what moves between them, and what is left on one.

An organisation has three. `credits` is what it may spend, `revenue` what it was charged for, `grants` where its credit
came from. Every kind of transfer has one pair of them, so a row of the ledger balances by construction and money never
leaves its organisation; the same table is a constraint of the database (`store/ledger_tables.py`). What moves is in
`transfers.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from controlplane.audit.commands import execute
from controlplane.store.contract import Loader
from controlplane.store.database import Database

if TYPE_CHECKING:
    from controlplane.store.contract import Connection


class AccountClass(StrEnum):
    """The first half of an account's id; the second is the organisation."""

    CREDITS = "credits"
    REVENUE = "revenue"
    GRANTS = "grants"


class TransferKind(StrEnum):
    """What a transfer is. A hold reserves until it is posted (in full or in part), voided, or has expired."""

    CHARGE = "charge"
    GRANT = "grant"
    REFUND = "refund"
    HOLD = "hold"
    POST = "post"
    VOID = "void"
    EXPIRE = "expire"
    LAPSE = "lapse"
    """What was not spent of a grant whose time is over."""


_SPENDING = (AccountClass.CREDITS, AccountClass.REVENUE)

SIDES: Mapping[TransferKind, tuple[AccountClass, AccountClass]] = MappingProxyType(
    {
        TransferKind.CHARGE: _SPENDING,
        TransferKind.GRANT: (AccountClass.GRANTS, AccountClass.CREDITS),
        TransferKind.REFUND: (AccountClass.REVENUE, AccountClass.CREDITS),
        TransferKind.HOLD: _SPENDING,
        TransferKind.POST: _SPENDING,
        TransferKind.VOID: _SPENDING,
        TransferKind.EXPIRE: _SPENDING,
        TransferKind.LAPSE: (AccountClass.CREDITS, AccountClass.GRANTS),
    }
)
"""What each kind debits and credits."""

RESOLUTIONS = frozenset({TransferKind.POST, TransferKind.VOID, TransferKind.EXPIRE})
"""What ends a hold; one of them does, once."""


def account_id(account: AccountClass, org: str) -> str:
    """The id of an organisation's account."""
    return f"{account}/{org}"


@dataclass(frozen=True, kw_only=True)
class Balance:
    """What an organisation has, in micro-USD."""

    granted_micro_usd: int
    """Less what has lapsed."""
    charged_micro_usd: int
    """Less what was given back."""
    refunded_micro_usd: int = 0
    held_micro_usd: int
    floor_micro_usd: int | None
    """How low `available_micro_usd` may be after a hold; None when nobody limits this organisation."""

    @property
    def spent_micro_usd(self) -> int:
        """All that was ever charged, whatever was given back."""
        return self.charged_micro_usd + self.refunded_micro_usd

    @property
    def settled_micro_usd(self) -> int:
        """What was granted and not spent, reserved or not: the balance that Transactions move."""
        return self.granted_micro_usd - self.charged_micro_usd

    @property
    def available_micro_usd(self) -> int:
        """What is neither spent nor reserved. Below zero are arrears, or the use of an organisation without a limit."""
        return self.settled_micro_usd - self.held_micro_usd

    @property
    def holdable_micro_usd(self) -> int | None:
        """The largest hold that fits; None when any does."""
        return None if self.floor_micro_usd is None else max(0, self.available_micro_usd - self.floor_micro_usd)


_BALANCES = """
SELECT o.org AS key, COALESCE(g.debits_micro_usd - g.credits_micro_usd, 0) AS granted,
    COALESCE(r.credits_micro_usd - r.debits_micro_usd, 0) AS charged, COALESCE(r.debits_micro_usd, 0) AS refunded,
    COALESCE(c.held_debits_micro_usd, 0) AS held,
    c.floor_micro_usd AS floor
FROM unnest($1::text[]) AS o(org)
LEFT JOIN ledger_accounts c ON c.id = 'credits/' || o.org
LEFT JOIN ledger_accounts r ON r.id = 'revenue/' || o.org
LEFT JOIN ledger_accounts g ON g.id = 'grants/' || o.org
"""

BALANCE = Loader("ledger-balance", _BALANCES)
"""The balance of an organisation, one row, for mutations."""

_LIMIT = """
INSERT INTO ledger_accounts (id, org, class, floor_micro_usd) VALUES ('credits/' || $1, $1, 'credits', $2)
ON CONFLICT (id) DO UPDATE SET floor_micro_usd = EXCLUDED.floor_micro_usd
"""


def balance_of(row: Mapping[str, Any]) -> Balance:
    """The balance in a row of `BALANCE`."""
    return Balance(
        granted_micro_usd=row["granted"],
        charged_micro_usd=row["charged"],
        refunded_micro_usd=row["refunded"],
        held_micro_usd=row["held"],
        floor_micro_usd=row["floor"],
    )


async def read_balance(database: Database, org: str) -> Balance:
    """The balance now; all zero for an organisation that never moved money."""
    [row] = await database.fetch(_BALANCES, [org])
    return balance_of(dict(row))


_ARREARS = """
SELECT org, debits_micro_usd - credits_micro_usd AS arrears FROM ledger_accounts
WHERE class = 'credits' AND floor_micro_usd IS NOT NULL AND debits_micro_usd > credits_micro_usd
ORDER BY org LIMIT 10000
"""


async def read_arrears(database: Database) -> dict[str, int]:
    """The organisations whose credit is limited and that were charged more than they had, with how much (micro-USD)."""
    return {row["org"]: row["arrears"] for row in await database.fetch(_ARREARS)}


async def balance_of_org(connection: Connection, org: str) -> Balance:
    """The balance as the transaction of `connection` sees it."""
    [row] = await connection.fetch(_BALANCES, [org])
    return balance_of(dict(row))


async def set_floor(database: Database, org: str, floor_micro_usd: int | None) -> None:
    """Limit what the organisation may hold from now on, or lift the limit with None; what is held already stays."""
    await execute(database, org, _LIMIT, org, floor_micro_usd)
