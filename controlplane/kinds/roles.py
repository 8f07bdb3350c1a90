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


OWN = ("apikeys", "sshkeys")
"""What everybody may write, of themselves: a login makes both, a logout deletes the first."""
WORK = ("apps", "functioncalls", "functions", "images", "secrets", "volumes")
"""What a Member may write: what work is made of."""
ADMINISTRATION = ("billing", "members", "projects", "quotas", "serviceaccounts")
"""What an Admin may write as well."""


def _writes(*resources: str) -> frozenset[str]:
    return frozenset(f"{resource}:write" for resource in resources)


SCOPES_OF_ROLE: Mapping[Role, frozenset[str]] = MappingProxyType(
    {
        Role.VIEWER: frozenset({ALL_READS}) | _writes(*OWN),
        Role.MEMBER: frozenset({ALL_READS}) | _writes(*OWN, *WORK),
        Role.ADMIN: frozenset({ALL_READS}) | READS_APART | _writes(*OWN, *WORK, *ADMINISTRATION),
        Role.OWNER: frozenset({ALL}),
    }
)
