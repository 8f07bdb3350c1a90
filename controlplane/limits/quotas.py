"""Quotas: how much an organisation, or one of its projects, may have; checked in the transaction that would exceed it.

Here are those on objects and calls, which a create asks about. `worker_quotas.py` has those that starts of workers ask
about, `storage.py` the one of blobs; `quota_view.py` shows all with what is used.

An operator sets them (`python -m workers quotas`); what has none is not counted. All writers take turns, so what a
loader finds is the truth of the transaction, and what its batch has added meanwhile is kept in the batch's scratch:
no two creates can both take the last place. What a batch removes is not given back before the next one. Without a
quota a create costs one look at an index, inside the query that loads its objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from controlplane.audit.commands import execute
from controlplane.errors import ApiError, Reason
from controlplane.machinery.quantities import canonical_quantity, quantity_bytes, quantity_milli
from controlplane.store.contract import Loader, Tx
from controlplane.store.database import Database


class Counter(StrEnum):
    """What is counted; the words of `details.quota`."""

    PROJECTS = "projects"
    FUNCTIONS = "functions"
    QUEUED_CALLS = "functioncalls.queued"
    WORKERS = "workers"
    GPUS = "gpus"
    CPUS = "cpus"
    """In thousandths."""
    MEMORY = "memory"
    """In bytes, as is storage."""
    STORAGE = "storage"


class Unit(NamedTuple):
    """How an amount is read, with ValueError, and written."""

    parse: Callable[[str], int]
    text: Callable[[int], str]


def _bytes_text(amount: int) -> str:
    return canonical_quantity(f"{amount >> 10}Ki") if amount and not amount % 1024 else str(amount)


_PIECES = Unit(int, str)
_BYTES = Unit(quantity_bytes, _bytes_text)
_UNITS: Mapping[Counter, Unit] = {
    Counter.CPUS: Unit(quantity_milli, lambda amount: canonical_quantity(f"{amount}m")),
    Counter.MEMORY: _BYTES,
    Counter.STORAGE: _BYTES,
}


def unit_of(counter: Counter) -> Unit:
    """The unit of a counter: pieces unless it is a quantity as Kubernetes writes them."""
    return _UNITS.get(counter, _PIECES)


def holder(org: str, project: str) -> str:
    """Who has a quota, for people; without a project it is the whole organisation."""
    return f'project "{project}"' if project else f'organisation "{org}"'


def _loader(counter: Counter, used: str) -> Loader:
    """The quotas on the counter that hold for each `org/project` that was asked for, and what is used of each."""
    return Loader(
        f"quota-{counter}",
        # A name has no slash. The words come from the tables below.
        f"""SELECT asked.key, q.project, q.amount_max, ({used}) AS used FROM unnest($1::text[]) AS asked (key)
        JOIN quotas q ON q.org = split_part(asked.key, '/', 1)
            AND q.project IN ('', split_part(asked.key, '/', 2)) AND q.counter = '{counter}'""",  # noqa: S608
        as_json=True,
    )


def _objects(kind: str) -> str:
    """Counts objects no further than tells whether the quota is used up."""
    return f"""SELECT count(*) FROM (SELECT 1 FROM objects o WHERE o.kind = '{kind}' AND o.org = q.org
        AND (q.project = '' OR o.project = q.project) LIMIT q.amount_max) counted"""  # noqa: S608


_QUEUED = """SELECT coalesce(sum(l.queued), 0)::bigint FROM function_load l
    WHERE l.org = q.org AND (q.project = '' OR l.project = q.project)"""

_COUNTED: Mapping[str, tuple[Counter, Loader]] = {
    kind: (counter, _loader(counter, used))
    for kind, counter, used in (
        ("Project", Counter.PROJECTS, _objects("Project")),
        ("Function", Counter.FUNCTIONS, _objects("Function")),
        ("FunctionCall", Counter.QUEUED_CALLS, _QUEUED),
    )
}
"""By kind: what a create adds to."""


class QuotaUse:
    """What a create takes of the quotas on its kind."""

    def __init__(self, kind: str, org: str, project: str) -> None:
        self._counted = _COUNTED.get(kind)
        self._org = org
        self._project = project

    def loads(self) -> Sequence[tuple[Loader, str]]:
        """What must be loaded to check it."""
        return () if self._counted is None else ((self._counted[1], f"{self._org}/{self._project}"),)

    def check(self, tx: Tx, count: int) -> None:
        """QuotaExceeded unless `count` more fit every quota that holds for the project."""
        for counter, quota in self._quotas(tx):
            used = quota["used"] + self._taken(tx).get((counter, self._org, quota["project"]), 0)
            if count and used + count > quota["amount_max"]:
                where = holder(self._org, quota["project"])
                raise ApiError(
                    Reason.QUOTA_EXCEEDED,
                    f"the {where} may have {quota['amount_max']} {counter}: {count} more do not fit",
                    details={"quota": counter.value},
                )

    def take(self, tx: Tx, count: int) -> None:
        """Note what was taken, once nothing can refuse the create any more."""
        for counter, quota in self._quotas(tx):
            place = (counter, self._org, quota["project"])
            self._taken(tx)[place] = self._taken(tx).get(place, 0) + count

    def _quotas(self, tx: Tx) -> list[tuple[Counter, Mapping[str, Any]]]:
        if self._counted is None:
            return []
        counter, loader = self._counted
        return [(counter, quota) for quota in tx.rows(loader, f"{self._org}/{self._project}")]

    @staticmethod
    def _taken(tx: Tx) -> dict[Any, Any]:
        return tx.scratch("quotas")


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A quota as an operator set it; without a project it is the whole organisation's."""

    org: str
    project: str
    counter: Counter
    amount_max: int


_READ = "SELECT org, project, counter, amount_max FROM quotas WHERE org = $1 ORDER BY project, counter LIMIT 10000"
_SET = """
INSERT INTO quotas (org, project, counter, amount_max) VALUES ($1, $2, $3, $4)
ON CONFLICT (org, project, counter) DO UPDATE SET amount_max = excluded.amount_max
"""
_CLEAR = "DELETE FROM quotas WHERE org = $1 AND project = $2 AND counter = $3"


async def read_quotas(database: Database, org: str) -> list[Quota]:
    """The quotas of an organisation and its projects."""
    return [Quota(**{**row, "counter": Counter(row["counter"])}) for row in await database.fetch(_READ, org)]


async def set_quota(database: Database, quota: Quota) -> None:
    """Let no more be made than this; what there is beyond it stays."""
    await execute(database, quota.org, _SET, quota.org, quota.project, quota.counter.value, quota.amount_max)


async def clear_quota(database: Database, org: str, project: str, counter: Counter) -> bool:
    """Count no longer; whether there was a quota."""
    return (await execute(database, org, _CLEAR, org, project, counter.value)).endswith(" 1")
