"""What limits the spending of a Function: the Budgets that cover it, and its own `maxCostUSD`.

Read from memory (`store/cache.py`), because every dispatch asks; in a project without limits the answer is nothing,
and that is all a dispatch does about them. What the limits have spent and hold is in rows, which `reservations.py`
reads and writes in the transactions that spend.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Protocol

from controlplane.clock import parse_time
from controlplane.errors import ApiError, Reason
from controlplane.kinds.budget import BLOCK, MONTHLY, selector_terms
from controlplane.ledger.periods import month_of
from controlplane.machinery.documents import value_at
from controlplane.machinery.quantities import format_money, parse_money
from controlplane.machinery.selectors import LabelTerm, matches_labels
from controlplane.store.contract import Document, Key

ALWAYS = datetime(1970, 1, 1, tzinfo=UTC)
"""From when a Function's cap counts: everything it ever cost."""

_GOES_ON = (
    "what waits for it goes on by itself. Or give the call a shorter `spec.timeout`, which lowers what it may cost."
)


@dataclass(frozen=True, kw_only=True)
class Limit:
    """One limit; `id` is the uid of its Budget or Function."""

    id: str
    org: str
    told: str
    """`budget/team` or `function/square`."""
    limit_micro_usd: int
    blocks: bool
    fix: str
    project: str | None = None
    function_uid: str | None = None
    """Set for the cap of this Function."""
    terms: tuple[LabelTerm, ...] = ()
    """Labels that work must have; with none it is all work of the Functions that it covers."""
    opened_at: datetime = ALWAYS
    monthly: bool = False

    def period(self, now: datetime) -> tuple[datetime, datetime | None]:
        """The beginning and the end of its present period; no end for what counts for good."""
        return month_of(now) if self.monthly else (self.opened_at, None)

    def covers(self, labels: Mapping[str, str]) -> bool:
        """Whether work with these labels counts."""
        return matches_labels(self.terms, labels)

    def refusal(self, needed_micro_usd: int, remaining_micro_usd: int) -> ApiError:
        """The 402 of what does not fit."""
        needed, remaining = format_money(needed_micro_usd), format_money(max(0, remaining_micro_usd))
        return ApiError(
            Reason.BUDGET_EXCEEDED,
            f"a run may cost {needed} USD and {self.told} has {remaining} USD left of its "
            f"{format_money(self.limit_micro_usd)} USD",
            details={"budget": self.told.removeprefix("budget/"), "neededUSD": needed, "remainingUSD": remaining},
            fix=self.fix,
        )


def labels_of_work(inherited: Mapping[str, str] | None, own: Mapping[str, str] | None) -> dict[str, str]:
    """The labels by which the money of a call is counted: its Function's, and over them its own."""
    return {**(inherited or {}), **(own or {})}


class Documents(Protocol):
    """Where the present documents of Budgets and Functions are, without I/O."""

    def get(self, key: Key) -> Document | None: ...

    def of_kind(self, kind: str) -> list[tuple[Key, Document]]: ...


@dataclass
class SpendingLimits:
    """The limits that are known to this process, each read once from its document."""

    documents: Documents
    _read: dict[str, tuple[str, Limit]] = field(default_factory=dict)

    def of_function(self, key: Key, function: Document | None) -> list[Limit]:
        """What limits the Function; whether a Budget covers a call of it is a matter of the call's labels too."""
        found = [limit for limit in self.budgets() if limit.org == key.org and limit.project in (None, key.project)]
        if function is not None and function["spec"].get("maxCostUSD") is not None:
            found.append(cap_limit(key, function))
        return found

    def of(self, key: Key) -> list[Limit]:
        """What limits the Function at this key, as its document is known here."""
        return self.of_function(key, self.documents.get(key))

    def of_workers(self, key: Key, function: Document | None) -> list[Limit]:
        """Those that cover all work of the Function, and so its workers themselves."""
        labels = (function or {}).get("metadata", {}).get("labels") or {}
        return [limit for limit in self.of_function(key, function) if limit.covers(labels)]

    def blocking(self, key: Key, function: Document) -> list[Limit]:
        """Those of them that block when they are reached."""
        return [limit for limit in self.of_workers(key, function) if limit.blocks]

    def budgets(self) -> list[Limit]:
        """All Budgets; those that go away are forgotten."""
        documents = self.documents.of_kind("Budget")
        if len(documents) < len(self._read):
            self._read.clear()
        return [self._budget(key, document) for key, document in documents]

    def _budget(self, key: Key, document: Document) -> Limit:
        uid, rv = document["metadata"]["uid"], document["metadata"]["resourceVersion"]
        known = self._read.get(uid)
        if known is None or known[0] != rv:
            known = self._read[uid] = (rv, budget_limit(key, document))
        return known[1]


def budget_limit(key: Key, document: Document) -> Limit:
    """The limit that a Budget sets."""
    spec, metadata = document["spec"], document["metadata"]
    return Limit(
        id=metadata["uid"],
        org=key.org,
        told=f"budget/{key.name}",
        limit_micro_usd=parse_money(spec["limitUSD"]),
        blocks=spec.get("action", BLOCK) == BLOCK,
        fix=f'Raise `spec.limitUSD` of the Budget "{key.name}"; {_GOES_ON}',
        project=value_at(spec, "scope.project"),
        terms=selector_terms(spec),
        opened_at=parse_time(metadata["creationTimestamp"]),
        monthly=spec.get("period", MONTHLY) == MONTHLY,
    )


def cap_limit(key: Key, function: Document) -> Limit:
    """The limit that a Function with `maxCostUSD` sets itself."""
    return Limit(
        id=function["metadata"]["uid"],
        org=key.org,
        told=f"function/{key.name}",
        limit_micro_usd=parse_money(function["spec"]["maxCostUSD"]),
        blocks=True,
        fix=f'Raise `spec.maxCostUSD` of the Function "{key.name}"; {_GOES_ON}',
        function_uid=function["metadata"]["uid"],
    )


def limit_at(key: Key, document: Document) -> Limit | None:
    """The limit that the object sets; None for a Function without `maxCostUSD`."""
    if key.kind == "Budget":
        return budget_limit(key, document)
    return cap_limit(key, document) if document["spec"].get("maxCostUSD") is not None else None
