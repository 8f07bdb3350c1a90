"""Who the holder of a provider's token is here: the Members of their name, within the role that their groups allow.

A person may be a Member of several organisations; a request is for one of them, which a client names in `Nodus-Org`
(the public SDK does for whatever is no API key). The rows are those that bound keys too, so a change of role reaches
tokens and keys alike. `authenticator.py` asks here for what has the form of a token.
"""

from __future__ import annotations

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.joining import Joining
from controlplane.identity.oidc import Holder, TokenVerifier
from controlplane.identity.principal import Principal, PrincipalKind, user_label
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.machinery.scope_grammar import ALL, meet
from controlplane.settings import Settings
from controlplane.store.database import Database

ORGS_MAX = 50
"""Organisations of one person that are looked at."""
_MEMBERS = """
SELECT org, user_uuid, role, projects FROM credential_owners WHERE kind = 'Member' AND login = $1 ORDER BY org LIMIT $2
"""
ORG_HEADER = "Nodus-Org"
"""What the public SDK names the organisation in, when its credential is no API key."""


class People:
    """The people behind a provider's tokens."""

    def __init__(self, database: Database, settings: Settings, clock: Clock, joining: Joining | None = None) -> None:
        self._database = database
        self._settings = settings
        self._clock = clock
        self._joining = joining
        self._verifier = TokenVerifier(settings, clock)
        self._known: OrderedDict[bytes, tuple[float, Principal]] = OrderedDict()

    async def principal(self, token: str, *, afresh: bool = False) -> Principal:
        """The caller behind a token, which may be followed by a space and the organisation that it is used for.

        What was found is trusted for as long as it is of keys, unless it is asked `afresh`. Raises Unauthorized for
        what is wrong with the token, Forbidden for a holder who is nobody here, Unavailable when either cannot be found
        out.
        """
        hashed = hashlib.sha256(token.encode()).digest()
        known = self._known.get(hashed)
        if known is not None and known[0] > time.monotonic() and not afresh:
            return known[1]
        self._known.pop(hashed, None)
        signed, _, org = token.partition(" ")
        holder = await self._verifier.holder(signed)
        people = _of(org, await self._members(holder))
        if not people and await self._accept_invites(holder):
            # A Member elsewhere, whom the organisation that this is for has invited.
            people = _of(org, await self._members(holder))
        if len(people) != 1:
            raise _not_one(org, people)
        left_seconds = (holder.good_until - self._clock.now()).total_seconds()
        trusted_seconds = min(self._settings.token_cache_seconds, left_seconds)
        self._known[hashed] = (time.monotonic() + trusted_seconds, people[0])
        self._known.move_to_end(hashed)
        if len(self._known) > self._settings.token_cache_entries_max:
            self._known.popitem(last=False)
        return people[0]

    async def everywhere(self, token: str) -> Sequence[Principal]:
        """The holder of a token in each of their organisations, those included that have invited them; Forbidden when
        there is none."""
        holder = await self._verifier.holder(token)
        await self._accept_invites(holder)
        return await self._members(holder)

    async def _accept_invites(self, holder: Holder) -> bool:
        return self._joining is not None and await self._joining.accept_all(holder.login, holder.email) > 0

    async def _members(self, holder: Holder) -> Sequence[Principal]:
        rows = await self._database.fetch(_MEMBERS, holder.login, ORGS_MAX)
        if not rows and (await self._accept_invites(holder) or await self._admit(holder)):
            rows = await self._database.fetch(_MEMBERS, holder.login, ORGS_MAX)
        orgs = [row["org"] for row in rows]
        if twice := sorted({org for org in orgs if orgs.count(org) > 1}):
            raise ApiError(
                Reason.FORBIDDEN,
                f'several Members of the organisation "{twice[0]}" have the name "{holder.login}"',
                fix="Ask an administrator to leave it to one of them.",
            )
        if not rows:
            raise _nobody(holder)
        scopes = self._allowed(holder)
        return [
            Principal(
                kind=PrincipalKind.USER,
                org=row["org"],
                id=row["user_uuid"],
                label=user_label(row["user_uuid"]),
                scopes=meet(SCOPES_OF_ROLE[Role(row["role"])], scopes),
                projects=frozenset(row["projects"] or (ALL,)),
                user_uuid=row["user_uuid"],
                email=holder.email,
                role=row["role"],
            )
            for row in rows
        ]

    async def _admit(self, holder: Holder) -> bool:
        """Make a stranger a Member if the operator lets in whoever the provider vouches for; says whether."""
        if self._joining is None or not self._settings.oidc_new_members:
            return False
        allowed = self._allowed(holder)
        roles = [role for role in Role if SCOPES_OF_ROLE[role] <= allowed]
        if not self._settings.oidc_groups_claim:
            roles = [Role.VIEWER]
        if not roles:
            return False
        await self._joining.join(holder.login, holder.email, roles[-1])
        return True

    def _allowed(self, holder: Holder) -> frozenset[str]:
        """What the groups of a holder allow at most."""
        if not self._settings.oidc_groups_claim:
            return frozenset({ALL})
        roles = [Role(role) for group, role in self._settings.oidc_roles.items() if group in holder.groups]
        return frozenset(scope for role in roles for scope in SCOPES_OF_ROLE[role])


def _of(org: str, people: Sequence[Principal]) -> Sequence[Principal]:
    return [person for person in people if org in ("", person.org)]


def _nobody(holder: Holder) -> ApiError:
    return ApiError(
        Reason.FORBIDDEN,
        f'the token is good, and "{holder.login}" is no Member here',
        fix="Ask an administrator of your organisation to invite you, or to make you a Member with this name as "
        "`spec.login` or `spec.email`.",
    )


def _not_one(org: str, people: Sequence[Principal]) -> ApiError:
    if org:
        return ApiError(Reason.FORBIDDEN, f'the holder of the token is no Member of the organisation "{org}"')
    orgs = ", ".join(person.org for person in people)
    return ApiError(
        Reason.FORBIDDEN,
        f"the holder of the token is a Member of several organisations: {orgs}",
        fix=f"Name the one that the request is for in the header `{ORG_HEADER}` (NODUS_ORG of the SDK).",
    )
