"""Which database of the engine our workflows live in.

The engine's data may be lost or replaced while ours stays: a wiped file, another cluster. The row remembers the
identity that was seen last; `activities/incarnation.py` compares and, when it differs, treats everything as unstarted.
"""

from __future__ import annotations

from controlplane.store.database import Database

_READ = "SELECT incarnation FROM engine WHERE id = 1"
_WRITE = """
INSERT INTO engine (id, incarnation) VALUES (1, $1) ON CONFLICT (id) DO UPDATE SET incarnation = EXCLUDED.incarnation
"""


async def known_incarnation(database: Database) -> str | None:
    """The identity seen last; None before the first time."""
    incarnation: str | None = await database.fetchval(_READ)
    return incarnation


async def remember_incarnation(database: Database, incarnation: str) -> None:
    """From now on, our workflows live there."""
    await database.execute(_WRITE, incarnation)
