"""Scopes as text: what a scope is, which scopes cover another, and what two sets of scopes have in common.

A scope is `*`, `*:read` or `<resource>:<access>`; `write` does not include `read` (the public command line's `can-i`
says the same). `kinds/roles.py` says which scopes a role has, `identity/scopes.py` what a request needs.
"""

from __future__ import annotations

SCOPE_PATTERN = r"^(\*|\*:read|[a-z]+:[a-z]+)$"
SCOPES_MAX = 64
"""Scopes of one credential; more than there are resources to name."""
ALL = "*"
ALL_READS = "*:read"
_READ = ":read"
READS_APART = frozenset({"auditevents:read"})
"""Reads that `*:read` does not cover: who did what, from which address, is not for whoever may look at the rest."""


def covers(scopes: frozenset[str], scope: str) -> bool:
    """Whether whoever has `scopes` has `scope`."""
    return (
        ALL in scopes or scope in scopes or (ALL_READS in scopes and scope.endswith(_READ) and scope not in READS_APART)
    )


def meet(left: frozenset[str], right: frozenset[str]) -> frozenset[str]:
    """The scopes that cover just what both sides cover.

    Two scopes are either ordered (`*` over `*:read` over `apps:read`) or have nothing in common, so what both cover is
    always one of those given.
    """
    return frozenset(scope for scope in left if covers(right, scope)) | frozenset(
        scope for scope in right if covers(left, scope)
    )
