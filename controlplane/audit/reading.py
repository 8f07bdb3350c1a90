"""AuditEvents as clients read them: rows of the audit log, the newest first.

A page looks at a bounded number of rows. When few of them match a selector it may be short or empty and still have a
`continue`, so that no question costs more than a page of everything. `api/audit_events.py` serves it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from controlplane.audit.chain import EVENT_COLUMNS
from controlplane.clock import format_time
from controlplane.kinds.audit_event import AUDIT_EVENT
from controlplane.ledger.periods import Range
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.store.contract import FieldTerm
from controlplane.store.database import Database
from controlplane.store.numbered import NEWEST, allowed, field_conditions, metadata, name_of, named

LOOK_EVENTS_MAX = 20_000
"""Rows that one page looks at: some ten milliseconds."""

_FIELDS = MappingProxyType(
    {
        "verb": "verb",
        "project": "project",
        "principal.kind": "principal_kind",
        "principal.name": "principal",
        "principal.keyPrefix": "key_prefix",
        "object.kind": "kind",
        "object.name": "name",
        "object.uid": "uid",
        "outcome.code": "code::text",
        "outcome.reason": "reason",
        "requestId": "request_id",
        "sourceAddress": "source",
        "metadata.name": "''",
        "metadata.namespace": "''",
    }
)
_PAGE = f"""
WITH looked AS MATERIALIZED (
    SELECT {EVENT_COLUMNS} FROM audit_events WHERE org = $1 AND seq < $2 ORDER BY seq DESC LIMIT {LOOK_EVENTS_MAX}
), matching AS (
    SELECT * FROM looked
    WHERE created_at >= $3 AND created_at < $4 AND ($5::text[] IS NULL OR project = ANY($5)) $conditions
    ORDER BY seq DESC LIMIT $6
)
SELECT m.*, l.last, l.looked FROM (SELECT min(seq) AS last, count(*) AS looked FROM looked) l
LEFT JOIN matching m ON true ORDER BY m.seq DESC
"""  # noqa: S608 - constants


class AuditLog:
    """Reads the audit log for the people of an organisation."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self,
        org: str,
        projects: Sequence[str] | None,
        within: Range,
        fields: Sequence[FieldTerm],
        limit: int,
        before: int = NEWEST,
    ) -> tuple[list[Document], int | None]:
        """Up to `limit` events, the newest first, and before which event the next page begins if there is one."""
        arguments: list[object] = [org, before, *within.bounds, allowed(projects), limit]
        sql = _PAGE.replace("$conditions", field_conditions(_FIELDS, fields, arguments))
        rows = [dict(row) for row in await self._database.fetch(sql, *arguments)]
        found = [_document(row) for row in rows if row["seq"] is not None]
        if len(found) == limit:
            return found, rows[-1]["seq"]
        return found, rows[0]["last"] if rows[0]["looked"] == LOOK_EVENTS_MAX else None

    async def event(self, org: str, projects: Sequence[str] | None, name: str) -> Document | None:
        """The event of this name, None when there is none."""

        async def before(seq: int) -> Sequence[Document]:
            return (await self.page(org, projects, Range(), (), 1, seq))[0]

        return await named(AUDIT_EVENT.uid_prefix, name, before)


def _document(row: Mapping[str, Any]) -> Document:
    principal = {"kind": row["principal_kind"], "name": row["principal"], "keyPrefix": row["key_prefix"]}
    about = {name: row[name] for name in ("kind", "name", "uid", "subresource")}
    document: Document = {
        "apiVersion": API_VERSION,
        "kind": AUDIT_EVENT.kind,
        "metadata": metadata(name_of(AUDIT_EVENT.uid_prefix, row), row),
        "time": format_time(row["created_at"]),
        "verb": row["verb"],
        "principal": _told(principal),
        "object": _told(about),
        "outcome": {"code": row["code"], "reason": row["reason"]},
        "count": row["count"],
    }
    others = {"project": "project", "requestId": "request_id", "sourceAddress": "source", "message": "message"}
    return document | _told({field: row[column] for field, column in others.items()})


def _told(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in fields.items() if value}
