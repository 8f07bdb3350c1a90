"""How somebody becomes a Member without an administrator at that moment: by an invite, or because an operator lets in
all whom the identity provider vouches for (`oidc_new_members`).

An invite is accepted by who it names, when a token of the identity provider says that it is them, or by who has its own
token, on the page of a login. One commit makes the Member, ends the invite and its token; a process that dies leaves
all of it or nothing, and of two who accept at once the writer lets one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

import asyncpg

from controlplane.clock import Clock, parse_time
from controlplane.errors import ApiError, Reason
from controlplane.identity.bootstrap import FIRST_ORG, server_object
from controlplane.identity.invites import DELETE_INVITE_TOKEN, INVITE_PREFIX
from controlplane.identity.owners import add_member, owners_read
from controlplane.identity.principal import Principal, PrincipalKind, user_label
from controlplane.identity.tokens import TokenHasher
from controlplane.kinds.invite import ACCEPTED, INVITE, PENDING
from controlplane.kinds.member import MEMBER
from controlplane.kinds.roles import SCOPES_OF_ROLE, Role
from controlplane.machinery.scope_grammar import ALL
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

INVITES_MAX = 50
"""Invites of one person that are looked at; as many as organisations."""
_INVITED = "invite/"
_NAME_LENGTH_MAX = 40
"""Of what a Member is named after; a digest of their login makes it their own where that is taken."""
_UNIQUE_LENGTH = 8
_BY_HASH = """
SELECT o.org, o.name, o.uid, o.doc -> 'spec' ->> 'role' AS role,
    ARRAY(SELECT json_array_elements_text(coalesce(o.doc -> 'spec' -> 'projects', '[]'))) AS projects
FROM tokens t JOIN objects o ON o.uid = t.uid AND o.kind = 'Invite'
WHERE t.hash = $1 AND t.kind = 'invite' AND t.expires_at > $2
"""
_BY_NAME = f"""
SELECT org, name, uid FROM objects
WHERE kind = 'Invite' AND fields ->> 'spec.email' = ANY($1::text[]) AND fields ->> 'status.phase' = '{PENDING}'
ORDER BY org, name LIMIT $2
"""  # noqa: S608 - a constant
_SAME = Loader(
    "identity-members-by-login",
    """SELECT k.key, o.uid FROM unnest($1::text[]) AS k(key) JOIN credential_owners o
    ON o.kind = 'Member' AND o.org = split_part(k.key, '/', 1) AND o.login = substr(k.key, strpos(k.key, '/') + 1)""",
)


class Joining:
    """Invites, and those who accept them."""

    def __init__(self, database: Database, writer: Writer, hasher: TokenHasher, clock: Clock) -> None:
        self._database = database
        self._writer = writer
        self._hasher = hasher
        self._clock = clock

    async def invited(self, token: str) -> Principal:
        """Whom an invite's token would make; nothing is accepted yet. Raises Unauthorized for one that is none."""
        row = await self._database.fetchrow(_BY_HASH, self._hasher.hash(token), self._clock.now())
        if row is None:
            raise ApiError(
                Reason.UNAUTHORIZED,
                "the invite was used or revoked, or has expired",
                fix="Ask whoever invited you for another one.",
            )
        return _would_be(row)

    async def accept(self, org: str, user: str) -> str:
        """The id of who a user is: of one whom `invited` told, the new Member's, else the same."""
        if not user.startswith(_INVITED):
            return user
        name, _, uid = user.removeprefix(_INVITED).partition("/")
        return await self._accept(Key(INVITE.kind, org, "", name), uid)

    async def accept_all(self, login: str, email: str | None) -> int:
        """Accept what waits for somebody whom the identity provider calls so, or whose address it has verified;
        returns how many there were."""
        accepted = 0
        for row in await self._database.fetch(_BY_NAME, list({login, email or login}), INVITES_MAX):
            try:
                await self._accept(Key(INVITE.kind, row["org"], "", row["name"]), row["uid"], login)
                accepted += 1
            except ApiError as error:
                if error.reason not in (Reason.FORBIDDEN, Reason.CONFLICT):
                    raise
        return accepted

    async def _accept(self, invite: Key, uid: str, login: str | None = None) -> str:
        email = await self._email(invite)
        joining = _Join(
            org=invite.org,
            email=email,
            login=login or email,
            member=await self._member({"role": Role.VIEWER.value}),
            invite=invite,
            uid=uid,
        )
        return await self._writer.write(joining)

    async def join(self, login: str, email: str | None, role: Role) -> None:
        """Make somebody a Member of the first organisation, unless they are one by now."""
        member = await self._member({"role": role.value})
        joining = _Join(org=FIRST_ORG, email=email or "", login=login, member=member)
        try:
            await self._writer.write(joining)
        except ApiError as error:
            if error.reason is not Reason.CONFLICT:
                raise

    async def _member(self, spec: Document) -> Document:
        return await server_object(MEMBER, "", spec, "", self._clock.now())

    async def _email(self, invite: Key) -> str:
        email: str | None = await self._database.fetchval(
            "SELECT doc -> 'spec' ->> 'email' FROM objects WHERE kind = $1 AND org = $2 AND name = $3",
            invite.kind,
            invite.org,
            invite.name,
        )
        return email or ""


@dataclass(frozen=True, kw_only=True)
class _Join:
    """Makes a Member, of an invite if there is one; answers their user id."""

    org: str
    email: str
    """Of the invite, where it never changes, or the one that the provider has verified; empty for none."""
    login: str
    """What the identity provider calls them, as far as it is known."""
    member: Document
    """But for its name; an invite says what its spec is."""
    invite: Key | None = None
    uid: str = ""
    """Of the invite."""

    def reads(self) -> Reads:
        invites = () if self.invite is None else (self.invite,)
        return Reads(keys=(*invites, *self._names()), loads=(owners_read(self.org), (_SAME, self._who)))

    def apply(self, tx: Tx) -> str:
        invite = None if self.invite is None else self._open(tx, self.invite)
        joined = tx.scratch(_SAME.name)
        if tx.rows(_SAME, self._who) or self._who in joined:
            raise ApiError(Reason.CONFLICT, f'"{self.login}" is a Member of the organisation already')
        key = next(key for key in self._names() if tx.get(key) is None)
        user = self.member["status"]["user"]
        metadata = {**self.member["metadata"], "name": key.name, "labels": {"nodus.dev/created-by": user_label(user)}}
        member = {**self.member, "metadata": metadata, "spec": self._spec(invite)}
        tx.put(key, member)
        add_member(tx, key, member)
        joined[self._who] = True
        if self.invite is not None and invite is not None:
            tx.put(self.invite, {**invite, "status": {**invite["status"], "phase": ACCEPTED, "member": key.name}})
            tx.execute(DELETE_INVITE_TOKEN, (self.uid,))
        return str(user)

    @property
    def _who(self) -> str:
        return f"{self.org}/{self.login}"

    def _open(self, tx: Tx, key: Key) -> Document:
        invite = tx.get(key)
        if invite is None or invite["metadata"]["uid"] != self.uid or not _is_open(invite, tx):
            raise ApiError(Reason.FORBIDDEN, "the invite was used or revoked, or has expired")
        return invite

    def _spec(self, invite: Document | None) -> Document:
        given = self.member["spec"] if invite is None else invite["spec"]
        spec: Document = {name: given[name] for name in ("role", "projects") if given.get(name)}
        if self.email:
            spec["email"] = self.email
        if self.login != self.email:
            spec["login"] = self.login
        return spec

    def _names(self) -> Sequence[Key]:
        """What the Member may be called, by their address; the last one is nobody else's."""
        called = (self.email or self.login).partition("@")[0].lower()
        words = re.sub(r"[^a-z0-9]+", "-", called).strip("-")[:_NAME_LENGTH_MAX].strip("-")
        unique = hashlib.sha256(self.login.encode()).hexdigest()[:_UNIQUE_LENGTH]
        names = [*([words] if words else []), f"{words}-{unique}" if words else f"member-{unique}"]
        return [Key(MEMBER.kind, self.org, "", name) for name in names]


def is_invite(credential: str) -> bool:
    """Whether what somebody shows is the token of an invite."""
    return credential.startswith(INVITE_PREFIX)


def _is_open(invite: Document, tx: Tx) -> bool:
    status = invite["status"]
    is_leaving = "deletionTimestamp" in invite["metadata"]
    return status["phase"] == PENDING and parse_time(status["expirationTime"]) > tx.now and not is_leaving


def _would_be(row: asyncpg.Record) -> Principal:
    user = f"{_INVITED}{row['name']}/{row['uid']}"
    return Principal(
        kind=PrincipalKind.USER,
        org=row["org"],
        id=user,
        label=user,
        scopes=SCOPES_OF_ROLE[Role(row["role"])],
        projects=frozenset(row["projects"] or (ALL,)),
        user_uuid=user,
        role=row["role"],
    )
