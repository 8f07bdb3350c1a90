"""Which organisations there are, for what a server keeps for each of them."""

from __future__ import annotations

from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.store.database import Database

ORGANIZATIONS_MAX = 10_000
"""More than one installation is meant for; the rest would be left out."""
_NAMES = "SELECT name FROM objects WHERE kind = 'Organization' ORDER BY name LIMIT $1"


async def organizations(database: Database) -> list[str]:
    """The slugs of all organisations, also that of a server whose first start made no object for it."""
    found = {row["name"] for row in await database.fetch(_NAMES, ORGANIZATIONS_MAX)}
    return sorted(found | {FIRST_ORG})
