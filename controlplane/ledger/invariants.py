"""What must be true of the ledger at any moment, and the two ways to find out.

`LedgerAuditor.look` is cheap enough for every minute: it remembers what it has added up and reads what was written
since, which the order of `seq` makes possible (writers take turns, so what it numbers lower was committed before). The
operator's `verify` begins at the first transfer and asks what takes a look at everything as well. Both compare what was
written with what follows from it, in one snapshot; neither mends anything, because a ledger that does not balance has
been written by something that must be found first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import add
from types import MappingProxyType

from controlplane.ledger.spending_repairs import miscounts
from controlplane.machinery.quantities import format_money
from controlplane.store.database import Database

TRANSFERS_PER_READ = 100_000
"""A tenth of a second of the database; a first look at a ledger of ten million takes a hundred of them."""
BREACHES_MAX = 20
"""Told of one rule; whatever broke it is found by a few."""

Sums = tuple[int, int, int, int]
"""Debits, credits, held debits, held credits, in micro-USD."""
_NOTHING: Sums = (0, 0, 0, 0)
_SIDES = ("debits", "credits", "held debits", "held credits")


@dataclass(frozen=True)
class Breach:
    """A rule that does not hold, and where."""

    rule: str
    told: str
    org: str | None = None


# What transfers add to the sums of their accounts, worked out apart from the trigger that does it.
_ADDED = """
SELECT s.account, sum(s.debits)::bigint AS debits, sum(s.credits)::bigint AS credits,
    sum(s.held_debits)::bigint AS held_debits, sum(s.held_credits)::bigint AS held_credits
FROM (
    SELECT debit AS account, CASE WHEN kind <> 'hold' THEN amount_micro_usd ELSE 0 END AS debits, 0 AS credits,
        CASE WHEN kind = 'hold' THEN amount_micro_usd ELSE 0 END AS held_debits, 0 AS held_credits
    FROM ledger_transfers WHERE seq > $1 AND seq <= $2
    UNION ALL
    SELECT credit, 0, CASE WHEN kind <> 'hold' THEN amount_micro_usd ELSE 0 END, 0,
        CASE WHEN kind = 'hold' THEN amount_micro_usd ELSE 0 END
    FROM ledger_transfers WHERE seq > $1 AND seq <= $2
    UNION ALL
    SELECT h.debit, 0, 0, -h.amount_micro_usd, 0 FROM ledger_transfers e JOIN ledger_transfers h ON h.id = e.refers_to
    WHERE e.seq > $1 AND e.seq <= $2 AND e.kind IN ('post', 'void', 'expire')
    UNION ALL
    SELECT h.credit, 0, 0, 0, -h.amount_micro_usd FROM ledger_transfers e JOIN ledger_transfers h ON h.id = e.refers_to
    WHERE e.seq > $1 AND e.seq <= $2 AND e.kind IN ('post', 'void', 'expire')
) AS s GROUP BY s.account
"""

_LOOK = f"""
WITH added AS ({_ADDED.replace("$2", "9223372036854775807")})
SELECT COALESCE(a.id, n.account) AS account, a.debits_micro_usd, a.credits_micro_usd, a.held_debits_micro_usd,
    a.held_credits_micro_usd, COALESCE(n.debits, 0) AS debits, COALESCE(n.credits, 0) AS credits,
    COALESCE(n.held_debits, 0) AS held_debits, COALESCE(n.held_credits, 0) AS held_credits,
    (SELECT COALESCE(max(seq), 0) FROM ledger_transfers) AS head
FROM ledger_accounts a FULL JOIN added n ON n.account = a.id
ORDER BY 1
"""  # noqa: S608 - constants

SUMS_RULE = "the sums of an account are those of its transfers"
BALANCE_RULE = "what is debited is credited"
SPENT_RULE = "what a limit of spending has spent is what the ledger charged of its scope in its period"
"""Its scope is in its Budget, so it is asked of each limit by itself."""

RULES: Mapping[str, str] = MappingProxyType(
    {
        "a hold is open until something ends it": """
SELECT COALESCE(o.id, h.id) || CASE WHEN o.id IS NULL THEN ' has not ended and is not open'
    ELSE ' is open and has ended, or never was a hold' END AS told, h.org
FROM ledger_open_holds o FULL JOIN (
    SELECT t.id, t.org FROM ledger_transfers t WHERE t.kind = 'hold' AND NOT EXISTS (
        SELECT FROM ledger_transfers e WHERE e.refers_to = t.id AND e.kind IN ('post', 'void', 'expire'))
) AS h ON h.id = o.id
WHERE o.id IS NULL OR h.id IS NULL LIMIT $1
""",
        "what ends or refunds a transfer is of no more than that": """
SELECT n.id || ' is of more than ' || COALESCE(r.id, 'nothing') AS told, n.org
FROM ledger_transfers n LEFT JOIN ledger_transfers r ON r.id = n.refers_to
WHERE n.refers_to IS NOT NULL AND (r.id IS NULL OR n.amount_micro_usd > r.amount_micro_usd) LIMIT $1
""",
        "no more of a grant lapses than was granted, and nothing of one whose time is not over": """
SELECT l.uid || ' is of ' || COALESCE(g.amount_micro_usd, 0) || ' micro-USD and ' || l.micro_usd || ' lapsed' AS told,
    l.org
FROM (
    SELECT subject_uid AS uid, org, sum(amount_micro_usd) AS micro_usd, min(created_at) AS first_at
    FROM ledger_transfers WHERE kind = 'lapse' GROUP BY 1, 2
) AS l LEFT JOIN ledger_transfers g ON g.id = l.uid AND g.kind = 'grant' AND g.org = l.org
WHERE g.id IS NULL OR g.expires_at IS NULL OR l.first_at < g.expires_at OR l.micro_usd > g.amount_micro_usd LIMIT $1
""",
        "what a limit of spending holds is the sum of its reservations": """
SELECT l.id || ' tells ' || l.held_micro_usd || ' micro-USD and its reservations ' || COALESCE(r.micro_usd, 0) AS told,
    l.org
FROM spending_limits l LEFT JOIN (
    SELECT limit_id, sum(amount_micro_usd) AS micro_usd FROM spending_reservations GROUP BY 1
) AS r ON r.limit_id = l.id
WHERE l.held_micro_usd <> COALESCE(r.micro_usd, 0) LIMIT $1
""",
        "the total of a Function is the sum of its charges": """
SELECT l.function || ' (' || l.function_uid || ') tells ' || l.charge_micro_usd || ' micro-USD and the ledger '
    || COALESCE(c.micro_usd, 0) AS told, l.org
FROM function_load l LEFT JOIN (
    SELECT function_uid, sum(amount_micro_usd) AS micro_usd FROM ledger_transfers WHERE kind = 'charge' GROUP BY 1
) AS c ON c.function_uid = l.function_uid
WHERE l.charge_micro_usd <> COALESCE(c.micro_usd, 0) LIMIT $1
""",
        "the segments of a Function are the charges of its workers": """
SELECT s.function_uid || ' tells ' || s.amount_micro_usd || ' micro-USD of ' || s.segment || ' and the ledger '
    || COALESCE(c.micro_usd, 0) AS told, s.org
FROM function_segments s LEFT JOIN (
    SELECT function_uid, segment, sum(amount_micro_usd) AS micro_usd FROM ledger_transfers
    WHERE kind = 'charge' AND segment IS NOT NULL GROUP BY 1, 2
) AS c ON c.function_uid = s.function_uid AND c.segment = s.segment
WHERE s.amount_micro_usd <> COALESCE(c.micro_usd, 0) LIMIT $1
""",
        "a worker that lives was charged for its free places what its account says": """
SELECT w.uid || ' tells ' || w.idle_micro_usd || ' micro-USD and the ledger ' || COALESCE(c.micro_usd, 0) AS told, w.org
FROM worker_accounts w LEFT JOIN (
    SELECT subject_uid, sum(amount_micro_usd) AS micro_usd FROM ledger_transfers
    WHERE kind = 'charge' AND segment IS NOT NULL GROUP BY 1
) AS c ON c.subject_uid = w.uid
WHERE w.idle_micro_usd <> COALESCE(c.micro_usd, 0) LIMIT $1
""",
        "a worker that lives holds what its account says, unless that has expired": """
SELECT w.uid || ' tells a hold of ' || w.held_micro_usd || ' micro-USD and the ledger '
    || COALESCE(h.amount_micro_usd, 0) AS told, w.org
FROM worker_accounts w LEFT JOIN ledger_transfers h ON h.id = 'hold/' || w.uid || '/' || w.hold
LEFT JOIN ledger_transfers e ON e.refers_to = h.id AND e.kind IN ('post', 'void')
WHERE h.amount_micro_usd IS DISTINCT FROM w.held_micro_usd OR e.id IS NOT NULL LIMIT $1
""",
        "a dispatch was charged what the ledger says": """
SELECT 'dispatch ' || d.number || ' of ' || d.call_uid || ' tells ' || d.charge_micro_usd
    || ' micro-USD and the ledger ' || COALESCE(t.amount_micro_usd, 0) AS told, d.org
FROM call_dispatches d LEFT JOIN ledger_transfers t ON t.id = 'charge/' || d.call_uid || '/' || d.number
WHERE d.charge_micro_usd <> COALESCE(t.amount_micro_usd, 0)
AND d.ended_at > (SELECT COALESCE(max(created_at), '-infinity') FROM ledger_transfers WHERE id LIKE 'opening/%')
LIMIT $1
""",
    }
)
"""Rules that take a look at everything: a sentence, and the query that tells where it does not hold."""


class LedgerAuditor:
    """Looks at the ledger again and again; what it has seen to balance is not read a second time."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._seq = 0
        self._sums: dict[str, Sums] = {}

    async def look(self) -> list[Breach]:
        """What does not balance now. What is in order is remembered; the rest is found again by the next look."""
        await self._catch_up()
        rows = await self._database.fetch(_LOOK, self._seq)
        breaches: list[Breach] = []
        derived: dict[str, Sums] = {}
        for row in rows:
            account = row["account"]
            fresh = (row["debits"], row["credits"], row["held_debits"], row["held_credits"])
            derived[account] = _plus(self._sums.get(account, _NOTHING), fresh)
            stored = (row["debits_micro_usd"], row["credits_micro_usd"], row["held_debits_micro_usd"],
                      row["held_credits_micro_usd"])  # fmt: skip
            breaches += _differences(account, stored, derived[account])
        missing = self._sums.keys() - derived.keys()
        breaches += [Breach(SUMS_RULE, f"the account {account} is gone", _org(account)) for account in sorted(missing)]
        breaches += _unbalanced([*derived.values()])
        if rows and not breaches:
            self._seq, self._sums = rows[0]["head"], derived
        return breaches[:BREACHES_MAX]

    async def _catch_up(self) -> None:
        """Add up what is far behind in bounded pieces, so that no query reads all of a long ledger."""
        [head] = await self._database.fetch("SELECT COALESCE(max(seq), 0) AS seq FROM ledger_transfers")
        while head["seq"] - self._seq > TRANSFERS_PER_READ:
            upto = self._seq + TRANSFERS_PER_READ
            for row in await self._database.fetch(_ADDED, self._seq, upto):
                fresh = (row["debits"], row["credits"], row["held_debits"], row["held_credits"])
                self._sums[row["account"]] = _plus(self._sums.get(row["account"], _NOTHING), fresh)
            self._seq = upto


async def verify(database: Database) -> list[Breach]:
    """Everything, from the first transfer on: what an operator asks for. Empty when all rules hold."""
    breaches = await LedgerAuditor(database).look()
    for rule, query in RULES.items():
        rows = await database.fetch(query, BREACHES_MAX)
        breaches += [Breach(rule, row["told"], row["org"]) for row in rows]
    return breaches + [
        Breach(
            SPENT_RULE,
            f"{wrong.limit.told} tells {_usd(wrong.spent_micro_usd)} and the ledger {_usd(wrong.charged_micro_usd)}",
            wrong.limit.org,
        )
        for wrong in await miscounts(database, BREACHES_MAX)
    ]


def _differences(account: str, stored: Sequence[int | None], derived: Sums) -> list[Breach]:
    if None in stored:
        return [Breach(SUMS_RULE, f"{account} has transfers and is no account", _org(account))]
    return [
        Breach(SUMS_RULE, f"{account} tells {side} of {_usd(told)} and its transfers {_usd(counted)}", _org(account))
        for side, told, counted in zip(_SIDES, stored, derived, strict=True)
        if told is not None and told != counted
    ]


def _unbalanced(sums: Sequence[Sums]) -> list[Breach]:
    debits, credits, held_debits, held_credits = (
        (sum(column) for column in zip(*sums, strict=True)) if sums else _NOTHING
    )
    pairs = (("moved", debits, credits), ("held", held_debits, held_credits))
    return [
        Breach(BALANCE_RULE, f"{_usd(debit)} are debited and {_usd(credit)} credited of what is {what}")
        for what, debit, credit in pairs
        if debit != credit
    ]


def _plus(left: Sums, right: Sums) -> Sums:
    debits, credits, held_debits, held_credits = map(add, left, right)
    return debits, credits, held_debits, held_credits


def _usd(micro_usd: int) -> str:
    return f"{format_money(micro_usd)} USD"


def _org(account: str) -> str:
    return account.partition("/")[2]
