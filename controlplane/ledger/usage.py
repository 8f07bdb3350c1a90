"""What was used and what that cost: UsageRecords, one for each charge of the ledger, and sums of them by some keys.

A record is told as usage of the Function that the work ran on, because that is what people budget for; the call is
named beside it. Labels are those that call and Function had when the work was given to a worker, kept with the charge,
so sums by label outlive both. `api/billing.py` serves it; `statements.py` tells the money side.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import orjson

from controlplane.clock import format_time
from controlplane.errors import ApiError, Cause, Reason
from controlplane.kinds.transaction import TRANSACTION
from controlplane.kinds.usage_record import USAGE_RECORD
from controlplane.ledger.periods import Range
from controlplane.ledger.pricing import worker_seconds
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.machinery.quantities import format_money
from controlplane.store.contract import FieldTerm
from controlplane.store.database import Database
from controlplane.store.numbered import NEWEST, allowed, field_conditions, metadata, name_of, named

METER = "ComputeSeconds"
SUMMARY_KIND = "UsageSummary"
GROUP_KEYS_MAX = 5
"""More columns fit on no screen, and each multiplies the rows."""
GROUPS_MAX = 1_000
"""Rows of a summary, which has no pages."""
MEMBER_LABEL = "nodus.dev/created-by"

_LABEL = "label:"
_LABEL_KEY = re.compile(r"[A-Za-z0-9./_-]{1,317}\Z")
_CHARGE = "t.kind IN ('charge', 'post')"
# The rounding of `pricing.worker_seconds`.
_SECONDS = (
    "CASE WHEN t.seconds IS NOT NULL THEN t.seconds WHEN t.period_end IS NULL THEN 0 ELSE "
    "GREATEST(1, ceil(extract(epoch FROM t.period_end - t.period_start))::bigint) END"
)
_SEGMENT = "COALESCE(t.segment, 'Running')"
_OBJECT = "CASE WHEN t.function_uid IS NULL THEN COALESCE(t.subject_kind, '') ELSE 'Function' END"
_COLUMNS: Mapping[str, str] = MappingProxyType(
    {
        "metadata.name": "''",
        "metadata.namespace": "''",
        "project": "COALESCE(t.project, '')",
        "object.kind": _OBJECT,
        "object.name": "COALESCE(t.function_name, t.subject_name, '')",
        "functionCall": "CASE t.subject_kind WHEN 'FunctionCall' THEN t.subject_name ELSE '' END",
        "meter": f"'{METER}'",
        "segment": _SEGMENT,
    }
)
"""What field selectors may name."""

_GROUPS: Mapping[str, str] = MappingProxyType(
    {
        "project": _COLUMNS["project"],
        "kind": _OBJECT,
        "object": _COLUMNS["object.name"],
        "meter": _COLUMNS["meter"],
        "day": "to_char(COALESCE(t.period_start, t.created_at) AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
        "segment": _SEGMENT,
        "offering": "COALESCE(t.offering, '')",
        # There are no gangs: all usage is in one group.
        "rank": "''",
        "member": f"COALESCE(t.labels ->> '{MEMBER_LABEL}', '')",
    }
)
"""The keys of `groupBy` beside `label:<key>`, as SQL."""

_WHERE = f"""
FROM ledger_transfers t
WHERE t.org = $1 AND {_CHARGE} AND t.created_at >= $2 AND t.created_at < $3
    AND ($4::text[] IS NULL OR t.project = ANY($4)) $conditions
"""
_PAGE = f"SELECT t.* {_WHERE} AND t.seq < $5 ORDER BY t.seq DESC LIMIT $6"
_SUMS = f"""
SELECT $keys, sum({_SECONDS})::bigint AS seconds, sum(t.amount_micro_usd)::bigint AS micro_usd
{_WHERE} GROUP BY $numbers ORDER BY micro_usd DESC, $numbers LIMIT {GROUPS_MAX + 1}
"""


class Usage:
    """Reads the charges of the ledger as usage."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def records(
        self,
        org: str,
        projects: Sequence[str] | None,
        within: Range,
        fields: Sequence[FieldTerm],
        limit: int,
        before_seq: int = NEWEST,
    ) -> tuple[list[Document], int | None]:
        """Up to `limit` records before a place in the ledger, the newest first, and the place for the next page.

        `projects` limits them to these.
        """
        arguments: list[object] = [org, *within.bounds, allowed(projects), before_seq, limit + 1]
        conditions = field_conditions(_COLUMNS, fields, arguments)
        rows = await self._database.fetch(_PAGE.replace("$conditions", conditions), *arguments)
        shown = rows[:limit]
        return [_record(dict(row)) for row in shown], shown[-1]["seq"] if len(rows) > limit else None

    async def record(self, org: str, projects: Sequence[str] | None, name: str) -> Document | None:
        """The record with this name, None when there is none."""

        async def before(seq: int) -> Sequence[Document]:
            return (await self.records(org, projects, Range(), (), 1, seq))[0]

        return await named(USAGE_RECORD.uid_prefix, name, before)

    async def summary(
        self,
        org: str,
        projects: Sequence[str] | None,
        within: Range,
        fields: Sequence[FieldTerm],
        keys: Sequence[str],
    ) -> Document:
        """The UsageSummary by these keys, the dearest group first; 422 for an unknown key, or too many groups."""
        arguments: list[object] = [org, *within.bounds, allowed(projects)]
        conditions = field_conditions(_COLUMNS, fields, arguments)
        columns = ", ".join(_group_sql(key, arguments) for key in _checked(keys))
        numbers = ", ".join(str(position + 1) for position in range(len(keys)))
        query = _SUMS.replace("$conditions", conditions).replace("$keys", columns).replace("$numbers", numbers)
        rows = await self._database.fetch(query, *arguments)
        if len(rows) > GROUPS_MAX:
            raise _refused(
                f"makes more than {GROUPS_MAX} groups; use fewer keys, or a shorter time with `since` and `until`"
            )
        return {
            "apiVersion": API_VERSION,
            "kind": SUMMARY_KIND,
            "metadata": {},
            "rows": [
                {
                    "group": {key: row[position] for position, key in enumerate(keys) if row[position]},
                    "quantity": str(row["seconds"]),
                    "amountUSD": format_money(row["micro_usd"]),
                }
                for row in rows
            ],
        }


def group_keys(text: str) -> list[str]:
    """The keys that `?groupBy=` names, each once."""
    return list(dict.fromkeys(key.strip() for key in text.split(",") if key.strip()))


def _checked(keys: Sequence[str]) -> Sequence[str]:
    if len(keys) > GROUP_KEYS_MAX:
        raise _refused(f"may name at most {GROUP_KEYS_MAX} keys")
    for key in keys:
        if key not in _GROUPS and not (key.startswith(_LABEL) and _LABEL_KEY.match(key.removeprefix(_LABEL))):
            raise _refused(f'may name {", ".join(_GROUPS)} and label:<key>, not "{key[:80]}"')
    return keys


def _group_sql(key: str, arguments: list[object]) -> str:
    if key in _GROUPS:
        return f"{_GROUPS[key]}"
    arguments.append(key.removeprefix(_LABEL))
    return f"COALESCE(t.labels ->> ${len(arguments)}::text, '')"


def _refused(problem: str) -> ApiError:
    return ApiError(Reason.INVALID, f"`groupBy` {problem}", causes=(Cause("groupBy", problem),))


def _record(row: Mapping[str, Any]) -> Document:
    name = name_of(USAGE_RECORD.uid_prefix, row)
    kind = "Function" if row["function_uid"] else row["subject_kind"] or "Organization"
    record: Document = {
        "apiVersion": API_VERSION,
        "kind": USAGE_RECORD.kind,
        "metadata": metadata(name, row) | ({"labels": orjson.loads(row["labels"])} if row["labels"] else {}),
        "periodStartTime": format_time(row["period_start"] or row["created_at"]),
        "object": {"kind": kind, "name": row["function_name"] or row["subject_name"] or row["org"]},
        "meter": METER,
        "segment": row["segment"] or "Running",
        "quantity": "0",
        "unit": "s",
        "amountUSD": format_money(row["amount_micro_usd"]),
        "transaction": name_of(TRANSACTION.uid_prefix, row),
    }
    if row["function_uid"]:
        record["object"]["uid"] = row["function_uid"]
    if row["project"]:
        record["project"] = row["project"]
    if row["subject_kind"] == "FunctionCall":
        record["functionCall"] = row["subject_name"]
    if row["period_end"] is not None:
        record["periodEndTime"] = format_time(row["period_end"])
        counted = row["seconds"]
        record["quantity"] = str(counted or worker_seconds(row["period_start"], row["period_end"]))
        record["shares"] = row["shares"]
        record["rate"] = {"usd": format_money(row["rate_micro_usd_per_hour"]), "per": "hour"}
        record["pricebookVersion"] = row["pricebook"]
        if row["offering"]:
            record["offering"] = row["offering"]
    return record
