"""What the sweeper does for keys: show when they were last used."""

from __future__ import annotations

from activities.chores import Chore
from controlplane.identity.key_use import ShowUses, unshown_uses
from controlplane.store.database import Database
from controlplane.store.writer import Writer

PER_TURN = 100


class KeyUses:
    """The chore."""

    def __init__(self, database: Database, writer: Writer) -> None:
        self._database = database
        self._writer = writer
        self.chores = (Chore("show uses of keys", 30.0, self.show),)

    async def show(self) -> None:
        """Bring the objects to what was noted of their keys."""
        while uses := await unshown_uses(self._database, PER_TURN):
            await self._writer.write(ShowUses(uses))
