"""Quotas on workers and what they hold: CPUs, memory, accelerators. Asked about where a worker is started.

The transaction that starts workers (`capacity/attempts.py`) loads the quotas of the project with what its live workers
take, so they are exact: writers take turns, and what a batch has started already is in its scratch. The autoscaler
reads the same beforehand, only to plan and to tell why a pool may not grow. What a worker takes are the floors of
`spec.resources`, kept in its row from its start to the proof of its end.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.limits.quotas import Counter, holder, unit_of
from controlplane.placement.demand import Demand
from controlplane.store.contract import Loader
from controlplane.store.database import Database

TAKEN: Mapping[Counter, str] = {
    Counter.WORKERS: "count(*)",
    Counter.CPUS: "coalesce(sum(cpu_milli), 0)",
    Counter.MEMORY: "coalesce(sum(memory_bytes), 0)",
    Counter.GPUS: "coalesce(sum(gpus), 0)",
}
"""What live rows of `attempts` take of each counter."""
_CASES = " ".join(f"WHEN '{counter}' THEN {taken}" for counter, taken in TAKEN.items())
_COUNTERS = ", ".join(f"'{counter}'" for counter in TAKEN)

WORKER_QUOTAS = Loader(
    "quota-workers",
    # The words come from the table above; a name has no slash.
    f"""SELECT asked.key, q.org, q.project, q.counter, q.amount_max, (
        SELECT (CASE q.counter {_CASES} END)::bigint FROM attempts a
        WHERE a.org = q.org AND (q.project = '' OR a.project = q.project) AND a.state <> 'finished'
    ) AS used FROM unnest($1::text[]) AS asked (key)
    JOIN quotas q ON q.org = split_part(asked.key, '/', 1) AND q.project IN ('', split_part(asked.key, '/', 2))
        AND q.counter IN ({_COUNTERS})""",  # noqa: S608
    as_json=True,
)
"""By `org/project`: each quota that bounds the workers of the project, and what of it is used."""

Taken = dict[tuple[str, str, str], int]
"""What was taken since the rows were read, by (org, project, counter)."""


@dataclass(frozen=True, kw_only=True)
class Fit:
    """How many workers more fit the quotas; None when none bounds them."""

    more: int | None = None
    told: str = ""
    """Of the quota that leaves the least: what it is, what is used, and what to do."""


class WorkerRoom:
    """What the quotas leave, as they were read, less what was taken since."""

    def __init__(self, rows: Iterable[Mapping[str, Any]], taken: Taken | None = None) -> None:
        self._rows: dict[str, list[Mapping[str, Any]]] = {}
        for row in rows:
            self._rows.setdefault(row["key"], []).append(row)
        self._taken = taken if taken is not None else {}

    def fit(self, project_key: str, demand: Demand) -> Fit:
        """How many workers of this demand fit."""
        least = Fit()
        for row in self._rows.get(project_key, ()):
            each = _amounts(demand)[Counter(row["counter"])]
            used = row["used"] + self._taken.get(_place(row), 0)
            if not each:
                continue
            more = max(0, row["amount_max"] - used) // each
            if least.more is None or more < least.more:
                least = Fit(more=more, told=_told(row, used, each))
        return least

    def take(self, project_key: str, demand: Demand, count: int) -> None:
        """Note workers that were started."""
        for row in self._rows.get(project_key, ()):
            place = _place(row)
            self._taken[place] = self._taken.get(place, 0) + count * _amounts(demand)[Counter(row["counter"])]


def amounts_of(demand: Demand) -> tuple[int, int, int]:
    """What the row of a worker says it takes: thousandths of CPUs, bytes, accelerators."""
    return demand.cpu_milli, demand.memory_bytes, demand.gpu.count if demand.gpu is not None else 0


def project_key(org: str, project: str) -> str:
    """The argument of `WORKER_QUOTAS`."""
    return f"{org}/{project}"


async def read_room(database: Database, projects: Sequence[str]) -> WorkerRoom:
    """What the quotas of these projects (`project_key`) leave now."""
    return WorkerRoom([dict(row) for row in await database.fetch(WORKER_QUOTAS.sql, projects)])


def _amounts(demand: Demand) -> Mapping[Counter, int]:
    cpu_milli, memory_bytes, gpus = amounts_of(demand)
    return {Counter.WORKERS: 1, Counter.CPUS: cpu_milli, Counter.MEMORY: memory_bytes, Counter.GPUS: gpus}


def _place(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["org"], row["project"], row["counter"]


def _told(row: Mapping[str, Any], used: int, each: int) -> str:
    counter = Counter(row["counter"])
    text = unit_of(counter).text
    return (
        f"the {holder(row['org'], row['project'])} may have {text(row['amount_max'])} {counter} and its workers take "
        f"{text(used)}; one more takes {text(each)}. It starts when others end: lower `scaling` of other Functions, or "
        "ask an operator for a higher quota"
    )
