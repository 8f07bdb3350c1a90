"""Who makes a request: what a credential was found to stand for.

`identity/authenticator.py` turns an Authorization header into a `Principal`; `identity/scopes.py` says what it may do;
the edge hands it to every handler. It is plain data, so any layer may read it.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from controlplane.ids import encode_base32
from controlplane.machinery.scope_grammar import ALL


class PrincipalKind(StrEnum):
    """What kind of caller a credential belongs to."""

    USER = "user"
    SERVICE_ACCOUNT = "service_account"
    ATTEMPT = "attempt"
    NODE = "node"


@dataclass(frozen=True, kw_only=True)
class AttemptBinding:
    """What an attempt's token is bound to; the fence of everything its worker reports."""

    project: str
    function: str
    function_uid: str
    attempt: str
    epoch: int
    concurrency: int
    """How many calls the worker runs at once; no claim of it has more to tell."""


@dataclass(frozen=True, kw_only=True)
class Principal:
    """An authenticated caller.

    `id` names the caller within `org` (a user's uuid, an attempt's uid, a node's name) and scopes idempotency keys.
    `label` is the value of the label `nodus.dev/created-by` on what the caller creates; for a user it is the id the
    public command line filters on. `projects` holds names, or `*` for every project of the organisation.

    A revoked attempt token still authenticates, with `revoked` set, because its worker must learn that it was fenced:
    the claims route answers it 404, which ends the worker. Every other route must answer 401
    (`scopes.require_active`, which `scopes.require` includes).
    """

    kind: PrincipalKind
    org: str
    id: str
    label: str
    scopes: frozenset[str]
    projects: frozenset[str] = field(default_factory=frozenset)
    user_uuid: str | None = None
    account: str | None = None
    """The name of the ServiceAccount, also of the one that a worker acts as."""
    email: str | None = None
    role: str | None = None
    binding: AttemptBinding | None = None
    revoked: bool = False

    @property
    def all_projects(self) -> bool:
        """Whether the caller may act in every project of its organisation."""
        return "*" in self.projects

    @property
    def project_limit(self) -> frozenset[str] | None:
        """The projects that bound what the caller sees; None for every project of its organisation."""
        return None if self.all_projects else self.projects

    def sees_project(self, project: str) -> bool:
        """Whether the caller may act in this project at all; scopes say what it may do there."""
        return self.all_projects or project in self.projects


def narrowed(projects: frozenset[str], bound: Collection[str] | None) -> frozenset[str]:
    """The projects that are in both; `*` is every project, and no bound bounds nothing."""
    if bound is None or ALL in bound:
        return projects
    return frozenset(bound) if ALL in projects else projects.intersection(bound)


def user_label(user_uuid: str) -> str:
    """How the public command line writes a user's id: `usr_` and 26 characters of base 32."""
    return f"usr_{encode_base32(uuid.UUID(user_uuid).int)}"
