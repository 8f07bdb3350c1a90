"""What the sweeper does for keys and invites: show when keys were last used, and tell what has expired."""

from __future__ import annotations

from activities.chores import Chore
from controlplane.clock import Clock
from controlplane.identity.expired import TellExpired, untold_expiries
from controlplane.identity.key_use import ShowUses, unshown_uses
from controlplane.store.database import Database
from controlplane.store.writer import Writer

PER_TURN = 100


class CredentialsKeeper:
    """The chores."""

    def __init__(self, database: Database, writer: Writer, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._clock = clock
        self.chores = (
            Chore("show uses of keys", 30.0, self.show_uses),
            Chore("tell expired credentials", 30.0, self.tell_expired),
        )

    async def show_uses(self) -> None:
        """Bring the objects to what was noted of their keys."""
        while uses := await unshown_uses(self._database, PER_TURN):
            await self._writer.write(ShowUses(uses))

    async def tell_expired(self) -> None:
        """Have the objects of keys and invites say that their time is over."""
        while expired := await untold_expiries(self._database, self._clock.now(), PER_TURN):
            await self._writer.write(TellExpired(expired))
