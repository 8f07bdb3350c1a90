"""Deleting an organisation with everything in it, for operators (`python -m workers admin delete-org`, decision 0051).

Compute first, so that nothing new is run; then credentials, so that nobody makes anything; then projects with what is
in them, by the verb that users have; at last the organisation, in one commit. Each step looks at what is there, so a
run that dies is ended by the next one. The suspension stays: it says that the name was used, since ledger and audit
log keep what they have under it.
"""

from __future__ import annotations

from collections.abc import Sequence

from controlplane.errors import ApiError, Reason
from controlplane.identity.ending import (
    EndOrganization,
    end_keys,
    last_keys,
    left,
    outside_projects,
    projects_left,
)
from controlplane.identity.organizations import is_organization
from controlplane.limits.switches import Switch, read_switches, turn_on
from controlplane.resources.answers import DeleteOptions, Propagation
from controlplane.resources.deletion import Deleter
from controlplane.store.contract import Key
from controlplane.store.database import Database
from controlplane.store.writer import Writer

WHY = "the organisation was deleted"
TOLD_MAX = 10
"""What is told of what is left."""
_KEPT = frozenset({Reason.CONFLICT, Reason.NOT_FOUND})
"""The last Owner goes with the organisation; what is gone already is as good as deleted."""


class OrganizationEnd:
    """The steps towards the end of one organisation."""

    def __init__(self, database: Database, writer: Writer, deleter: Deleter, org: str) -> None:
        self._database = database
        self._writer = writer
        self._deleter = deleter
        self._org = org

    async def begin(self) -> None:
        """Suspend its compute, and end its credentials and what else is not in a project."""
        await turn_on(self._database, Switch.SUSPEND, self._org, WHY)
        await end_keys(self._database, self._org)
        await self._delete_outside_projects()

    async def go_on(self) -> Sequence[Key]:
        """Delete what can be deleted by now; some of what is left. Workers that end their calls and finalizers of
        clients take their time."""
        while projects := await projects_left(self._database, self._org):
            for project in projects:
                await self._delete(project)
            if await projects_left(self._database, self._org) == projects:
                break
        await self._delete_outside_projects()
        return await left(self._database, self._org, TOLD_MAX)

    async def finish(self) -> None:
        """Remove the organisation itself, once nothing is left; Conflict when something was made meanwhile."""
        await self._writer.write(EndOrganization(self._org, await last_keys(self._database, self._org)))

    async def _delete_outside_projects(self) -> None:
        after: Key | None = None
        while keys := await outside_projects(self._database, self._org, after):
            for after in keys:
                await self._delete(after)

    async def _delete(self, key: Key) -> None:
        try:
            await self._deleter.delete(key, DeleteOptions(propagation=Propagation.FOREGROUND))
        except ApiError as error:
            if error.reason not in _KEPT:
                raise


async def was_deleted(database: Database, org: str) -> bool:
    """Whether the name was of an organisation that was deleted: it is suspended, and there is none."""
    switches = await read_switches(database)
    is_suspended = any((each.switch, each.subject) == (Switch.SUSPEND, org) for each in switches)
    return is_suspended and not await is_organization(database, org)
