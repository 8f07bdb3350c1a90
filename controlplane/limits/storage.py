"""The quota on storage: what the blobs of a project, and of its organisation, may take together.

The database keeps the sums and refuses the blob that passes a quota in the statement that stores its row
(`blobs_are_counted`), so the quota is exact whoever stores at once, and nothing is summed up when it is asked about.
Before its bytes are sent, `require_storage` tells a client that they would not fit.
"""

from __future__ import annotations

import asyncpg
import orjson

from controlplane.errors import ApiError, Reason
from controlplane.limits.quotas import Counter, holder, unit_of
from controlplane.store.database import Database

_EXCEEDED = "NDQ01"
"""What the trigger raises."""

_WOULD_EXCEED = """
SELECT q.project, q.amount_max, coalesce(u.bytes, 0) AS used
FROM quotas q LEFT JOIN blob_usage u ON u.org = q.org AND u.project = q.project
WHERE q.org = $1 AND q.project IN ('', $2) AND q.counter = 'storage' AND coalesce(u.bytes, 0) + $3 > q.amount_max
ORDER BY q.project LIMIT 1
"""


async def require_storage(database: Database, org: str, project: str, size_bytes: int) -> None:
    """QuotaExceeded when a blob of this size does not fit as things are now."""
    row = await database.fetchrow(_WOULD_EXCEED, org, project, size_bytes)
    if row is not None:
        raise _refusal(org, row["project"], row["amount_max"], row["used"], size_bytes)


def storage_refusal(error: asyncpg.PostgresError, org: str, size_bytes: int) -> ApiError | None:
    """The QuotaExceeded that the database meant; None for any other fault."""
    if error.sqlstate != _EXCEEDED:
        return None
    exceeded = orjson.loads(error.as_dict()["detail"])
    return _refusal(org, exceeded["project"], exceeded["amount_max"], exceeded["used"], size_bytes)


def _refusal(org: str, project: str, amount_max: int, used: int, size_bytes: int) -> ApiError:
    text = unit_of(Counter.STORAGE).text
    return ApiError(
        Reason.QUOTA_EXCEEDED,
        f"the {holder(org, project)} may have {text(amount_max)} storage and its blobs take {text(used)}: "
        f"{text(size_bytes)} more do not fit",
        details={"quota": Counter.STORAGE.value},
        fix="Delete Functions, Apps and calls with large blobs, which go once nothing refers to them, or ask an "
        "operator for a higher quota.",
    )
