"""What is left of an organisation that is being deleted, and its last commit (decision 0051).

`resources/organization_end.py` deletes what it has by the verbs of objects; here are the questions in between, and the
end itself: the organisation, the Owner whom every organisation keeps, and all rows that open or bound something. What
only grows stays, which is the ledger and the audit log.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.errors import ApiError, Reason
from controlplane.kinds.member import MEMBER
from controlplane.kinds.organization import ORGANIZATION
from controlplane.kinds.project import PROJECT
from controlplane.store.contract import Key, Loader, Reads, Tx
from controlplane.store.database import Database

LEFT_MAX = 500
"""Objects looked at at once."""
_COUNTS = "SELECT kind, count(*) AS count FROM objects WHERE org = $1 GROUP BY kind ORDER BY kind"
# What is in a project goes with it; what names one that is not there goes by itself.
_OUTSIDE_PROJECTS = """
SELECT kind, org, project, name FROM objects o
WHERE org = $1 AND NOT deleting AND kind <> ALL($2::text[]) AND (kind, project, name) > ($3, $4, $5)
    AND (project = '' OR NOT EXISTS (
        SELECT FROM objects p WHERE p.kind = 'Project' AND p.org = o.org AND p.project = '' AND p.name = o.project))
ORDER BY kind, project, name LIMIT $6
"""
_OF_KIND = "SELECT kind, org, project, name FROM objects WHERE org = $1 AND kind = $2 ORDER BY name LIMIT $3"
_LEFT = """
SELECT kind, org, project, name FROM objects WHERE org = $1 AND kind <> ALL($2::text[])
ORDER BY kind, project, name LIMIT $3
"""
_END_KEYS = "UPDATE tokens SET revoked_at = now() WHERE org = $1 AND kind = 'apikey' AND revoked_at IS NULL"
_STANDING = Loader(
    "identity-ending",
    """SELECT asked.key, o.kind, o.project, o.name FROM unnest($1::text[]) AS asked(key), LATERAL (
        SELECT kind, project, name FROM objects WHERE org = asked.key LIMIT 1000) AS o""",
)
_ROWS = ("credential_owners", "tokens", "quotas", "blob_usage", "spending_limits")
_LAST = (MEMBER.kind, ORGANIZATION.kind)
"""What goes in the last commit."""


async def counts(database: Database, org: str) -> Sequence[tuple[str, int]]:
    """How many objects of each kind an organisation has."""
    return [(row["kind"], row["count"]) for row in await database.fetch(_COUNTS, org)]


async def outside_projects(database: Database, org: str, after: Key | None) -> Sequence[Key]:
    """The next objects of the organisation that no project takes along and nobody deletes yet."""
    begin = ("", "", "") if after is None else (after.kind, after.project, after.name)
    kept = [PROJECT.kind, ORGANIZATION.kind]
    return [Key(*row) for row in await database.fetch(_OUTSIDE_PROJECTS, org, kept, *begin, LEFT_MAX)]


async def projects_left(database: Database, org: str) -> Sequence[Key]:
    """Projects of the organisation, those included that are going."""
    return [Key(*row) for row in await database.fetch(_OF_KIND, org, PROJECT.kind, LEFT_MAX)]


async def left(database: Database, org: str, limit: int) -> Sequence[Key]:
    """What keeps the organisation from its last commit."""
    return [Key(*row) for row in await database.fetch(_LEFT, org, list(_LAST), limit)]


async def end_keys(database: Database, org: str) -> None:
    """End the keys that have no object, which earlier releases made."""
    await database.execute(_END_KEYS, org)


async def last_keys(database: Database, org: str) -> Sequence[Key]:
    """The objects that go in the last commit."""
    found = [row for kind in _LAST for row in await database.fetch(_OF_KIND, org, kind, LEFT_MAX)]
    return [Key(*row) for row in found]


class EndOrganization:
    """Removes an organisation of which nothing else is left; Conflict when something was made meanwhile."""

    def __init__(self, org: str, keys: Sequence[Key]) -> None:
        self._org = org
        self._keys = keys

    def reads(self) -> Reads:
        return Reads(keys=tuple(self._keys), loads=((_STANDING, self._org),))

    def apply(self, tx: Tx) -> None:
        standing = {Key(row["kind"], self._org, row["project"], row["name"]) for row in tx.rows(_STANDING, self._org)}
        if beyond := sorted(standing - set(self._keys)):
            raise ApiError(
                Reason.CONFLICT,
                f'the organisation "{self._org}" got another {beyond[0].kind} "{beyond[0].name}" while it was deleted',
                fix="Run the command again; it goes on from here.",
            )
        for key in self._keys:
            if tx.get(key) is not None:
                tx.remove(key)
        for table in _ROWS:
            tx.execute(f"DELETE FROM {table} WHERE org = $1", (self._org,))  # noqa: S608 - a constant
