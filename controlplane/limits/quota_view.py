"""Quotas as objects: what an operator set, with what is used at the moment. `api/quotas.py` serves them.

Nothing is stored for them: the limits are rows of `quotas`, and what is used is counted by the rules that enforce it
(workers by their rows, blobs by their sums, queued calls by the sums of their Functions).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from controlplane.kinds.quota import ORGANIZATION_QUOTA, PROJECT_PREFIX, QUOTA
from controlplane.limits.quotas import Counter, unit_of
from controlplane.limits.worker_quotas import TAKEN
from controlplane.machinery.kind import API_VERSION, Document
from controlplane.store.database import Database

COUNTED_MAX = 100_000
"""Objects are counted no further: nobody looks closer, and a count reads an index."""

_SCOPES = """
SELECT s.project, o.created_at,
    coalesce((SELECT json_object_agg(q.counter, q.amount_max) FROM quotas q WHERE q.org = $1 AND q.project = s.project),
        '{}') AS limits
FROM (SELECT '' AS project UNION SELECT DISTINCT project FROM quotas WHERE org = $1) s
JOIN LATERAL (
    SELECT doc #>> '{metadata,creationTimestamp}' AS created_at FROM objects
    WHERE org = $1 AND objects.project = '' AND kind = CASE s.project WHEN '' THEN 'Organization' ELSE 'Project' END
        AND name = CASE s.project WHEN '' THEN $1 ELSE s.project END
) o ON true
WHERE ($2::text[] IS NULL OR s.project = ANY($2)) AND ($3::text IS NULL OR s.project > $3)
ORDER BY s.project LIMIT $4
"""


_OF_SCOPE = "AND (s.project = '' OR c.project = s.project)"
_PROJECTS = "(SELECT count(*) FROM (SELECT 1 FROM objects c WHERE c.kind = 'Project' AND c.org = $1 LIMIT $3) counted)"
_FUNCTIONS = f"""(SELECT count(*) FROM (
    SELECT 1 FROM objects c WHERE c.kind = 'Function' AND c.org = $1 {_OF_SCOPE} LIMIT $3) counted)"""  # noqa: S608
_QUEUED = f"(SELECT coalesce(sum(c.queued), 0)::bigint FROM function_load c WHERE c.org = $1 {_OF_SCOPE})"  # noqa: S608
_WORKERS = f"(SELECT {{0}}::bigint FROM attempts c WHERE c.org = $1 AND c.state <> 'finished' {_OF_SCOPE})"  # noqa: S608
_COUNTS: Mapping[Counter, str] = {
    Counter.PROJECTS: f"CASE s.project WHEN '' THEN {_PROJECTS} END",
    Counter.FUNCTIONS: _FUNCTIONS,
    Counter.QUEUED_CALLS: _QUEUED,
    **{counter: _WORKERS.format(taken) for counter, taken in TAKEN.items()},
    Counter.STORAGE: "coalesce((SELECT c.bytes FROM blob_usage c WHERE c.org = $1 AND c.project = s.project), 0)",
}
_COLUMNS = ", ".join(f'{count} AS "{counter}"' for counter, count in _COUNTS.items())
_USED = f"SELECT s.project, {_COLUMNS} FROM unnest($2::text[]) AS s(project)"  # noqa: S608 - constants


class QuotaView:
    """Makes the objects."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def page(
        self, org: str, projects: Sequence[str] | None, limit: int, after: str | None
    ) -> tuple[list[Document], str | None]:
        """Up to `limit` Quotas, the organisation's first, and after which project the next page begins.

        `projects` leaves only theirs; the organisation's own is shown to those who may see all.
        """
        async with self._database.snapshot() as connection:
            scopes = await connection.fetch(_SCOPES, org, projects, after, limit + 1)
            shown = scopes[:limit]
            used = await connection.fetch(_USED, org, [scope["project"] for scope in shown], COUNTED_MAX)
        counted = {row["project"]: dict(row) for row in used}
        found = [_document(org, scope, counted[scope["project"]]) for scope in map(dict, shown)]
        return found, shown[-1]["project"] if len(scopes) > limit else None

    async def one(self, org: str, projects: Sequence[str] | None, name: str) -> Document | None:
        """The Quota of this name, None when there is none or it may not be seen."""
        if name != ORGANIZATION_QUOTA and not name.startswith(PROJECT_PREFIX):
            return None
        project = "" if name == ORGANIZATION_QUOTA else name.removeprefix(PROJECT_PREFIX)
        if projects is not None and project not in projects:
            return None
        found, _ = await self.page(org, [project], 1, None)
        return found[0] if found else None


def _document(org: str, scope: Mapping[str, Any], counted: Mapping[str, Any]) -> Document:
    project: str = scope["project"]
    limits = orjson.loads(scope["limits"])
    spec: Document = {"project": project} if project else {}
    spec["limits"] = {each.value: unit_of(each).text(limits[each]) for each in Counter if each in limits}
    used = {each.value: unit_of(each).text(counted[each]) for each in Counter if counted[each] is not None}
    name = f"{PROJECT_PREFIX}{project}" if project else ORGANIZATION_QUOTA
    content = orjson.dumps([spec, used])
    return {
        "apiVersion": API_VERSION,
        "kind": QUOTA.kind,
        "metadata": {
            "name": name,
            "uid": f"{QUOTA.uid_prefix}_{org}_{name}",
            # Only whether two readings are the same can be told.
            "resourceVersion": str(int.from_bytes(hashlib.sha256(content).digest()[:6])),
            "generation": 1,
            "creationTimestamp": scope["created_at"],
        },
        "spec": spec,
        "status": {"used": used},
    }
