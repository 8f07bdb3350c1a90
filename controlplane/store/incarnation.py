"""Which database of the engine our workflows live in.

The engine's data may be lost or replaced while ours stays: a wiped file, another cluster. The row remembers the
identity that was seen last; `activities/incarnation.py` compares and, when it differs, treats everything as unstarted.
"""

from __future__ import annotations

from controlplane.store.database import Database

_READ = "SELECT incarnation FROM engine WHERE id = 1"
_FIRST = "INSERT INTO engine (id, incarnation) VALUES (1, $1) ON CONFLICT (id) DO NOTHING"
_REPLACE = "UPDATE engine SET incarnation = $2 WHERE id = 1 AND incarnation = $1"


async def known_incarnation(database: Database) -> str | None:
    """The identity seen last; None before the first time."""
    incarnation: str | None = await database.fetchval(_READ)
    return incarnation


async def note_first_incarnation(database: Database, incarnation: str) -> None:
    """Our first workflows will live there, unless another process has said where."""
    await database.execute(_FIRST, incarnation)


async def replace_incarnation(database: Database, was: str, incarnation: str) -> bool:
    """From now on, our workflows live there; False when another process has replaced `was` already."""
    return bool((await database.execute(_REPLACE, was, incarnation)).endswith(" 1"))
