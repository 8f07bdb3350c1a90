"""One row of the audit log, and the one way in which rows enter it.

A row holds names and codes and nothing that a client wrote in a body, nor any message made of one: what is not here
cannot leak. Rows are inserted under the lock that all writers share, so their numbers follow the order of commits and
nothing can appear later among rows that were sealed (`chain.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any

from controlplane.store.contract import Reads, Tx

TEXT_LENGTH_MAX = 253
"""Of a name, a project and the like: what Kubernetes takes for one at most. Paths that name nothing may be longer."""

PART = """
INSERT INTO audit_events (created_at, org, project, kind, name, uid, subresource, verb, principal_kind, principal,
    key_prefix, request_id, source, code, reason, count, message)
SELECT r.* FROM json_to_recordset($rows) AS r(created_at timestamptz, org text, project text, kind text, name text,
    uid text, subresource text, verb text, principal_kind text, principal text, key_prefix text, request_id text,
    source text, code integer, reason text, count bigint, message text)
"""
"""Joins a batch's own statement (`Tx.join`), so that a change and its event are stored together, in one round trip."""


class ActorKind(StrEnum):
    """What kind of principal did something."""

    USER = "User"
    SERVICE_ACCOUNT = "ServiceAccount"
    ATTEMPT = "Attempt"
    NODE = "Node"
    ANONYMOUS = "Anonymous"
    """A credential that is missing, unknown, expired or revoked."""
    OPERATOR = "Operator"
    """Whoever ran a command of the server with its settings."""
    SERVER = "Server"


@dataclass(frozen=True, kw_only=True)
class Actor:
    """Who did something. `key_prefix` is what an APIKey shows of itself, "" for credentials that are no keys."""

    kind: ActorKind
    org: str
    name: str = ""
    key_prefix: str = ""


@dataclass(frozen=True, kw_only=True)
class AuditEntry:
    """What happened once, or `count` times in the same way within a moment."""

    created_at: datetime
    org: str
    project: str = ""
    kind: str = ""
    """Empty for what is no object; `name` is then a path or the words of a command."""
    name: str = ""
    uid: str = ""
    subresource: str = ""
    verb: str
    principal_kind: ActorKind
    principal: str = ""
    key_prefix: str = ""
    request_id: str = ""
    source: str = ""
    code: int
    """As HTTP has it, for commands too: 200 and 201 for what was done."""
    reason: str
    count: int = 1
    message: str = ""
    """A sentence of the server's own, never of a client."""

    def as_row(self) -> Mapping[str, Any]:
        """The row for `PART`."""
        row = {name: getattr(self, name) for name in _COLUMNS}
        return row | {name: clipped(row[name]) for name in _FROM_PATHS}


_COLUMNS = tuple(field.name for field in fields(AuditEntry))
_FROM_PATHS = ("project", "kind", "name", "subresource", "verb", "principal", "message")


class RecordEntries:
    """Stores events of what changed no object."""

    def __init__(self, entries: Sequence[AuditEntry]) -> None:
        self._entries = entries

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        for entry in self._entries:
            tx.join(PART, entry.as_row())


def clipped(text: str) -> str:
    """The text as a row takes it: not too long, and nothing that PostgreSQL or UTF-8 cannot hold."""
    held = text[:TEXT_LENGTH_MAX].replace("\0", "\N{REPLACEMENT CHARACTER}")
    return held.encode(errors="replace").decode()
