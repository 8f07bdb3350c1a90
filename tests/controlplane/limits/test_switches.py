"""Switches in the memory of a process, whatever becomes of its connections."""

from __future__ import annotations

from controlplane.limits.switches import Switch, Switches, turn_off, turn_on
from controlplane.store.database import Database
from tests.fixtures.eventually import eventually
from tests.fixtures.postgres import away


async def test_switches_count_on_while_the_database_is_away_and_are_read_again_afterwards(database: Database) -> None:
    await turn_on(database, Switch.SUSPEND, "acme", "unpaid")
    switches = Switches(database, poll_seconds=0.01)
    await switches.start()
    async with away(database, "the switches cannot be read, those known so far count on"):
        pass
    assert switches.is_suspended("acme")
    await turn_off(database, Switch.SUSPEND, "acme")
    await eventually(lambda: not switches.is_suspended("acme"))
    await switches.stop()
