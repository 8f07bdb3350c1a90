"""Server-side apply: several managers share one object, each saying what it wants and nothing else.

An apply merges its configuration into the live object, takes off what its manager applied before and now leaves out,
and owns every field it names. A field that it would change although another manager owns it is a conflict, unless it
is forced. The rules are those of Kubernetes' structured merge; which value is one field is in `shapes.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from controlplane.errors import ApiError, Cause, Reason, invalid
from controlplane.machinery import problems
from controlplane.machinery.fieldsets import Path, merged, told, with_ancestors, without
from controlplane.machinery.kind import API_VERSION, Document, Kind
from controlplane.machinery.managed_fields import (
    APPLIERS_MAX,
    BEFORE_FIRST_APPLY,
    STATUS,
    Manager,
    Managers,
    Operation,
    Owned,
    checked_size,
    difference,
    disowned,
    entries_of,
    managers_of,
    ownable,
    owned_since,
)
from controlplane.machinery.shapes import shape_of
from controlplane.machinery.validation import without_nulls

CONFLICT = "FieldManagerConflict"
_CONFLICTS_TOLD_MAX = 100
"""Conflicts listed in one answer; the rest would tell nobody more."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """A field that another manager owns and this apply would change."""

    owner: Manager
    since: str
    path: Path

    @property
    def told_owner(self) -> str:
        """The owner as kubectl's users know it."""
        name = f'"{self.owner.name}"'
        if self.owner.subresource:
            name += f' with subresource "{self.owner.subresource}"'
        return f"{name} using {API_VERSION} at {self.since}" if self.owner.operation is Operation.UPDATE else name


class Apply:
    """One request to apply `config` as `manager`."""

    def __init__(self, kind: Kind, config: Document, manager: Manager, *, force: bool) -> None:
        self._kind = kind
        self._force = force
        self.manager = manager
        self.config = _own_part(config, manager.subresource)
        self._fields = frozenset(ownable(kind, self.config, manager.subresource))

    def wanted(self, live: Document) -> Document:
        """The live object with the configuration, without what its manager no longer wants and nobody else owns."""
        managers = self._managers(live)
        shape = shape_of(self._kind)
        last = managers.get(self.manager)
        result: Document = merged(shape, live, self.config)
        if last is None:
            return result
        others = [owned.fields for manager, owned in managers.items() if manager != self.manager]
        kept = with_ancestors(self._fields.union(*others))
        # The first step is metadata, spec or status, which every object has.
        return without(shape, result, (path for path in with_ancestors(last.fields) - kept if len(path) > 1))

    def owners(self, live: Document, new: Document, now: datetime) -> list[Document]:
        """`managedFields` of `new`, which admission made of `wanted`. Raises `Conflict` with a cause for each field."""
        managers = self._managers(live)
        changes = difference(self._kind, live, new, self.manager.subresource)
        conflicts = [
            Conflict(manager, owned.since, path)
            for manager, owned in managers.items()
            if manager != self.manager
            for path in sorted(owned.fields & changes.changed & self._fields)
        ]
        if conflicts and not self._force:
            raise conflict_error(conflicts)
        kept = disowned(managers, changes.changed | changes.removed)
        mine = owned_since(managers.get(self.manager), self._fields & changes.present, now)
        found: Managers = {**kept, self.manager: mine}
        appliers = sum(manager.operation is Operation.APPLY and bool(found[manager].fields) for manager in found)
        if appliers > APPLIERS_MAX:
            message = f"may be applied by at most {APPLIERS_MAX} managers"
            cause = Cause("metadata.managedFields", message, problems.TOO_MANY)
            raise invalid(self._kind.plural, live["metadata"]["name"], [cause])
        return checked_size(self._kind, live["metadata"]["name"], entries_of(found))

    def _managers(self, live: Document) -> Managers:
        """The managers so far; whatever an object without any has, but for its status, belongs to who came before."""
        before = Owned(frozenset(ownable(self._kind, live)), live["metadata"]["creationTimestamp"])
        return managers_of(live) or {Manager(BEFORE_FIRST_APPLY): before}


def conflict_error(conflicts: Sequence[Conflict]) -> ApiError:
    """The 409 with a cause for each field, worded as kubectl's users know it."""
    if len(conflicts) == 1:
        message = f"Apply failed with 1 conflict: conflict with {conflicts[0].told_owner}: {told(conflicts[0].path)}"
    else:
        owners = sorted({conflict.told_owner for conflict in conflicts})
        lines = [
            line
            for owner in owners
            for line in (
                f"conflicts with {owner}:",
                *(f"- {told(conflict.path)}" for conflict in conflicts if conflict.told_owner == owner),
            )
        ]
        message = f"Apply failed with {len(conflicts)} conflicts: " + "\n".join(lines[:_CONFLICTS_TOLD_MAX])
    causes = [Cause(told(conflict.path), f"conflict with {conflict.told_owner}", CONFLICT) for conflict in conflicts]
    return ApiError(
        Reason.CONFLICT,
        message,
        causes=tuple(causes[:_CONFLICTS_TOLD_MAX]),
        fix="Take the fields over with `force=true` (kubectl: --force-conflicts), leave them out of what you apply, or "
        "give them the values they have.",
    )


def _own_part(config: Document, subresource: str) -> Document:
    """What an apply says about the part of the object it was sent to; null means absent, as typed clients send it."""
    part: Document = without_nulls(config)
    if subresource == STATUS:
        return {name: value for name, value in part.items() if name != "spec"}
    return {name: value for name, value in part.items() if name != STATUS}
