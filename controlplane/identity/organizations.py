"""Which organisations and projects there are, for what a server keeps for each of them."""

from __future__ import annotations

from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.kinds.organization import ORGANIZATION
from controlplane.kinds.project import PROJECT
from controlplane.store.database import Database

ORGANIZATIONS_MAX = 10_000
"""More than one installation is meant for; the rest would be left out."""
_NAMES = "SELECT name FROM objects WHERE kind = 'Organization' ORDER BY name LIMIT $1"

_EXISTS = "SELECT EXISTS (SELECT FROM objects WHERE kind = $1 AND org = $2 AND project = '' AND name = $3)"


async def organizations(database: Database) -> list[str]:
    """The slugs of all organisations, also that of a server whose first start made no object for it."""
    found = {row["name"] for row in await database.fetch(_NAMES, ORGANIZATIONS_MAX)}
    return sorted(found | {FIRST_ORG})


async def is_organization(database: Database, org: str) -> bool:
    """Whether there is this organisation; the first one is there from the first start on."""
    return org == FIRST_ORG or bool(await database.fetchval(_EXISTS, ORGANIZATION.kind, org, org))


async def is_project(database: Database, org: str, project: str) -> bool:
    """Whether there is this project in the organisation."""
    return bool(await database.fetchval(_EXISTS, PROJECT.kind, org, project))
