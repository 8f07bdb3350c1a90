"""Whose credentials there are: the rows that bound keys, kept by the hooks of the kinds that own some.

A key names its owner's row and every look-up joins it (`authenticator.py`), so a change of role or scopes, or the
owner's end, reaches all keys with the commit that makes it, whichever process looked last. The rows are written in the
transaction of the object, so a process that dies leaves both or neither.
"""

from __future__ import annotations

from controlplane.errors import ApiError, Reason
from controlplane.kinds.member import MEMBER, login_of
from controlplane.kinds.roles import Role
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.hooks import PlainHooks

_OWNERS = Loader(
    "identity-owners",
    "SELECT org AS key, uid FROM credential_owners WHERE org = ANY($1::text[]) AND role = 'Owner'",
)
_INSERT = """
INSERT INTO credential_owners (uid, org, kind, name, user_uuid, role, scopes, login, projects)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
"""
_MEMBER_BOUND = "UPDATE credential_owners SET role = $2, login = $3, projects = $4 WHERE uid = $1"
_ACCOUNT_BOUND = "UPDATE credential_owners SET scopes = $2 WHERE uid = $1"
_DELETE = "DELETE FROM credential_owners WHERE uid = $1"
# A worker whose account has gone keeps its token, with what its work takes and no more: it has calls to report.
_DELETE_TOKENS = "DELETE FROM tokens WHERE owner = $1 AND kind = 'apikey'"


class MemberHooks(PlainHooks):
    """The hooks of the kind Member; an organisation always keeps an Owner."""

    def reads_create(self, key: Key, document: Document) -> Reads:
        return _reads(key)

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        add_member(tx, key, document)
        return document

    def reads_update(self, key: Key, document: Document) -> Reads:
        return _reads(key)

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        uid, role = old["metadata"]["uid"], new["spec"]["role"]
        if role != old["spec"]["role"] and role != Role.OWNER:
            _require_another_owner(tx, key, old)
        if _bound(new["spec"]) != _bound(old["spec"]):
            tx.execute(_MEMBER_BOUND, (uid, *_bound(new["spec"])))
        if role != old["spec"]["role"]:
            _note_role(tx, key, uid, role)
        return new

    def reads_delete(self, key: Key) -> Reads:
        return _reads(key)

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        _require_another_owner(tx, key, document)
        _note_role(tx, key, document["metadata"]["uid"], None)
        return _ended(tx, document)


class ServiceAccountHooks(PlainHooks):
    """The hooks of the kind ServiceAccount."""

    def admit_create(self, tx: Tx, key: Key, document: Document) -> Document:
        uid, scopes = document["metadata"]["uid"], document["spec"].get("scopes", [])
        tx.execute(_INSERT, (uid, key.org, key.kind, key.name, None, None, scopes, None, None))
        return document

    def updated(self, tx: Tx, key: Key, old: Document, new: Document) -> Document:
        scopes = new["spec"].get("scopes", [])
        if scopes != old["spec"].get("scopes", []):
            tx.execute(_ACCOUNT_BOUND, (old["metadata"]["uid"], scopes))
        return new

    def deleting(self, tx: Tx, key: Key, document: Document) -> Document:
        return _ended(tx, document)


def add_member(tx: Tx, key: Key, document: Document) -> None:
    """Write the row of a new Member; `key` must have been read with the org's Owners (`owners_read`)."""
    uid = document["metadata"]["uid"]
    role, login, projects = _bound(document["spec"])
    tx.execute(_INSERT, (uid, key.org, key.kind, key.name, document["status"]["user"], role, None, login, projects))
    _note_role(tx, key, uid, role)


def _bound(spec: Document) -> tuple[str, str | None, list[str] | None]:
    """What a Member's row holds of it: the role, the name at the identity provider, and the projects, None for all."""
    name = spec.get("login") or spec.get("email")
    return spec["role"], login_of(name) if name else None, spec.get("projects") or None


def owners_of(tx: Tx, org: str) -> set[str]:
    """The uids of the organisation's Owners at this point of the batch; `owners_read` must be among the reads."""
    known: dict[str, set[str]] = tx.scratch(_OWNERS.name)
    if org not in known:
        known[org] = {row["uid"] for row in tx.rows(_OWNERS, org)}
    return known[org]


def owners_read(org: str) -> tuple[Loader, str]:
    """What `owners_of` needs loaded."""
    return _OWNERS, org


def _ended(tx: Tx, document: Document) -> Document:
    """End whatever the owner's credentials could do as soon as the delete is asked: a finalizer may hold the object."""
    uid = document["metadata"]["uid"]
    tx.execute(_DELETE, (uid,))
    tx.execute(_DELETE_TOKENS, (uid,))
    return document


def _reads(key: Key) -> Reads:
    return Reads(loads=(owners_read(key.org),))


def _note_role(tx: Tx, key: Key, uid: str, role: str | None) -> None:
    owners = owners_of(tx, key.org)
    owners.discard(uid)
    if role == Role.OWNER:
        owners.add(uid)


def _require_another_owner(tx: Tx, key: Key, document: Document) -> None:
    if owners_of(tx, key.org) == {document["metadata"]["uid"]}:
        raise ApiError(
            Reason.CONFLICT,
            f'members.nodus.dev "{key.name}" is the only Owner of the organisation, which must keep one',
            subject=(MEMBER.plural, key.name),
            fix="Give another Member the role Owner first.",
        )
