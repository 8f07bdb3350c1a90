"""Whose request a write belongs to, and the events that its changes make.

The edge and the operator's commands say what is asked (`AUDITED`); `store/writer.py` takes that along with each
mutation, and `store/commit.py` adds the events of what the mutation changed to the same statement. A context variable
carries it, because the verbs in between have dozens of ways to a write and nothing to do with it. Writes of
controllers, workers and nodes have no request and leave no event.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType

from controlplane.audit.entries import Actor, ActorKind, AuditEntry
from controlplane.store.contract import Change, ChangeType

_PROJECT = "Project"
_OUTCOMES: Mapping[ChangeType, tuple[int, str]] = MappingProxyType(
    {
        ChangeType.ADDED: (201, "Created"),
        ChangeType.MODIFIED: (200, "Changed"),
        ChangeType.DELETED: (200, "Deleted"),
    }
)
_VERBS: Mapping[ChangeType, str] = MappingProxyType(
    {ChangeType.ADDED: "create", ChangeType.MODIFIED: "update", ChangeType.DELETED: "delete"}
)
"""What a command, which has a word of its own, does to an object."""


@dataclass(kw_only=True)
class AuditedRequest:
    """What is asked of one object, of a collection, or (by an operator's command) of the server."""

    actor: Actor
    verb: str
    kind: str = ""
    project: str = ""
    name: str = ""
    subresource: str = ""
    written_kind: str = ""
    """The kind of what it writes; empty for whatever a command changes."""
    is_command: bool = False
    """Whether it leaves an event for each object that it changes, and one when it writes something else."""
    message: str = ""
    request_id: str = ""
    source: str = ""
    recorded: set[str] = field(default_factory=set)
    """Uids whose event is stored, as many as the request changed objects; a later write of the same one is the same
    change (a delete that marks the object, and then takes it away)."""

    def entries(self, changes: Sequence[Change], now: datetime, *, wrote_rows: bool) -> Mapping[str, AuditEntry]:
        """The events of what a mutation of this request changed, by uid. What follows from it, such as the end of what
        a deleted object owns, is nobody's request. `wrote_rows` tells that it wrote something beside objects."""
        told: dict[str, AuditEntry] = {}
        for change in changes:
            if change.uid not in self.recorded and change.uid not in told and self._is_about(change):
                told[change.uid] = self._changed(change, now)
        if self.is_command and wrote_rows and not told and not self.recorded:
            told[""] = self.entry(now, 200, "Done")
        return told

    def entry(self, now: datetime, code: int, reason: str) -> AuditEntry:
        """An event of the request as it was asked."""
        return AuditEntry(
            created_at=now, org=self.actor.org, project=self.project, kind=self.kind, name=self.name,
            subresource=self.subresource, verb=self.verb, principal_kind=self.actor.kind, principal=self.actor.name,
            key_prefix=self.actor.key_prefix, request_id=self.request_id, source=self.source, code=code, reason=reason,
            message=self.message,
        )  # fmt: skip

    def _is_about(self, change: Change) -> bool:
        key = change.key
        if self.is_command:
            return True
        if (key.org, key.kind) != (self.actor.org, self.written_kind):
            return False
        # What is made below an object has a name of its own.
        return self.written_kind != self.kind or not self.name or self.name == key.name

    def _changed(self, change: Change, now: datetime) -> AuditEntry:
        key, (code, reason) = change.key, _OUTCOMES[change.type]
        return AuditEntry(
            created_at=now, org=key.org, project=key.project or (key.name if key.kind == _PROJECT else ""),
            kind=key.kind, name=key.name, uid=change.uid,
            subresource=self.subresource if key.kind == self.kind else "",
            verb=_VERBS[change.type] if self.is_command else self.verb,
            principal_kind=self.actor.kind, principal=self.actor.name, key_prefix=self.actor.key_prefix,
            request_id=self.request_id, source=self.source, code=code, reason=reason, message=self.message,
        )  # fmt: skip


AUDITED: ContextVar[AuditedRequest | None] = ContextVar("audited", default=None)
"""What the present task was asked to do; None for what the server does by itself."""


@contextmanager
def audited(request: AuditedRequest | None) -> Iterator[None]:
    """Writes inside the block belong to the request."""
    token = AUDITED.set(request)
    try:
        yield
    finally:
        AUDITED.reset(token)


def command_request(words: Sequence[str], *, org: str, user: str) -> AuditedRequest:
    """An operator's command (`admin revoke-key ci`), run by `user` of the host; `org` is told what is of no other."""
    command = " ".join(words)
    actor = Actor(kind=ActorKind.OPERATOR, org=org, name=user)
    return AuditedRequest(actor=actor, verb="run", name=command, is_command=True, message=f"workers {command}")
