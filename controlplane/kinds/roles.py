"""What each role of an organisation may do, as the scopes of its members.

A key never does more than the role of its owner, whatever scopes it was made with: `identity/authenticator.py` takes
what both cover. Everybody of an organisation may read it, but for its audit log, which is for Admins and Owners; what
nobody may read (values of Secrets, keys) is not in any object. An Owner differs from an Admin in what decides over the
organisation itself: its object, and who its Owners are.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from controlplane.machinery.scope_grammar import ALL, ALL_READS, READS_APART


class Role(StrEnum):
    """The roles, each with all that the ones before it may do."""

    VIEWER = "Viewer"
    MEMBER = "Member"
    ADMIN = "Admin"
    OWNER = "Owner"


WORK = ("apikeys", "apps", "functioncalls", "functions", "images", "secrets", "sshkeys", "volumes")
"""What a Member may write: what work is made of, and keys of their own."""
ADMINISTRATION = ("billing", "members", "projects", "quotas", "serviceaccounts")
"""What an Admin may write as well."""


def _writes(*resources: str) -> frozenset[str]:
    return frozenset(f"{resource}:write" for resource in resources)


SCOPES_OF_ROLE: Mapping[Role, frozenset[str]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({ALL_READS}),
        Role.MEMBER: frozenset({ALL_READS}) | _writes(*WORK),
        Role.ADMIN: frozenset({ALL_READS}) | READS_APART | _writes(*WORK, *ADMINISTRATION),
        Role.OWNER: frozenset({ALL}),
    }
)
