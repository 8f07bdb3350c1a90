"""Keys that the server makes without a request: the first of an organisation, one for an administrator who lost theirs,
and the one that an operator keeps outside. Each has an APIKey, so people see all that opens their organisation.

The row of the token and the object are written in one transaction. The operator's key is marked, and the API refuses to
change it (`kinds/api_key.py`): the next start would bring it back.
"""

from __future__ import annotations

from dataclasses import dataclass

from controlplane.clock import format_time
from controlplane.identity.api_keys import INSERT_KEY, PREFIX_LENGTH
from controlplane.ids import new_uid
from controlplane.kinds.api_key import API_KEY, KEPT_BY, OPERATOR, is_operators
from controlplane.kinds.member import MEMBER
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import API_VERSION
from controlplane.store.contract import Document, Key, Loader, Reads, Tx

OPERATOR_KEY_NAME = "operator"
_TOKEN = Loader(
    "identity-token",
    """SELECT encode(hash, 'hex') AS key, uid, revoked_at FROM tokens
    WHERE hash IN (SELECT decode(asked, 'hex') FROM unnest($1::text[]) AS asked)""",
)
_FORGET = "DELETE FROM tokens WHERE hash = $1"
_END = "DELETE FROM tokens WHERE uid = $1"
# Before keys of operators had objects.
_END_EARLIER = "DELETE FROM tokens WHERE org = $1 AND kind = 'apikey' AND name = $2 AND uid IS NULL"


@dataclass(frozen=True, kw_only=True)
class Admin:
    """The Member whose keys these are."""

    org: str
    user: str
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class NewKey:
    """A key for everything that its owner may do."""

    token_hash: bytes
    prefix: str
    name: str
    kept_by_operator: bool = False

    @classmethod
    def of(cls, token: str, token_hash: bytes, name: str, *, kept_by_operator: bool = False) -> NewKey:
        """The key of a token, which itself is kept nowhere."""
        return cls(token_hash=token_hash, prefix=token[:PREFIX_LENGTH], name=name, kept_by_operator=kept_by_operator)

    def object_key(self, org: str) -> Key:
        """Where its object is; whoever adds it must have read it."""
        return Key(API_KEY.kind, org, "", self.name)


def add_key(tx: Tx, admin: Admin, new: NewKey) -> None:
    """Write the key and its object, which must not exist."""
    document = _document(tx, admin, new)
    tx.execute(
        INSERT_KEY,
        (
            new.token_hash, admin.org, admin.user, new.name, ["*"], ["*"], tx.now, None, admin.uid,
            document["metadata"]["uid"],
        ),
    )  # fmt: skip
    tx.put(new.object_key(admin.org), document)


class AddKey:
    """Writes a key of an administrator."""

    def __init__(self, admin: Admin, new: NewKey) -> None:
        self._admin = admin
        self._new = new

    def reads(self) -> Reads:
        return Reads(keys=(self._new.object_key(self._admin.org),))

    def apply(self, tx: Tx) -> None:
        add_key(tx, self._admin, self._new)


class KeepOperatorKey:
    """Makes this the operator's key, unless it is that already; the one before it ends in the same transaction."""

    def __init__(self, admin: Admin, token: str, token_hash: bytes) -> None:
        self._admin = admin
        self._digest = token_hash.hex()
        names = (OPERATOR_KEY_NAME, f"{OPERATOR_KEY_NAME}-{self._digest[:8]}")
        self._new = [NewKey.of(token, token_hash, name, kept_by_operator=True) for name in names]
        """The second for an organisation where somebody else's key has the name."""

    def reads(self) -> Reads:
        return Reads(keys=[new.object_key(self._admin.org) for new in self._new], loads=((_TOKEN, self._digest),))

    def apply(self, tx: Tx) -> None:
        known = {row["uid"] for row in tx.rows(_TOKEN, self._digest) if row["revoked_at"] is None}
        for new in self._new:
            where = new.object_key(self._admin.org)
            stored = tx.get(where)
            if stored is not None and not is_operators(stored):
                continue
            if stored is not None:
                if stored["metadata"]["uid"] in known:
                    return
                tx.execute(_END, (stored["metadata"]["uid"],))
                tx.remove(where)
            tx.execute(_END_EARLIER, (self._admin.org, OPERATOR_KEY_NAME))
            tx.execute(_FORGET, (new.token_hash,))
            add_key(tx, self._admin, new)
            return


def _document(tx: Tx, admin: Admin, new: NewKey) -> Document:
    owner = {"apiVersion": API_VERSION, "kind": MEMBER.kind, "name": admin.name, "uid": admin.uid}
    metadata: Document = {
        "name": new.name,
        "uid": new_uid(API_KEY.uid_prefix),
        "generation": 1,
        "creationTimestamp": format_time(tx.now),
        "ownerReferences": [owner],
    }
    if new.kept_by_operator:
        metadata["annotations"] = {KEPT_BY: OPERATOR}
    ready = Condition("Ready", "True", "Ready", "requests can be made with it", 1)
    status = {
        "phase": "Ready",
        "user": admin.user,
        "scopes": ["*"],
        "projects": ["*"],
        "prefix": new.prefix,
        "conditions": with_condition([], ready, tx.now),
    }
    return {
        "apiVersion": API_VERSION,
        "kind": API_KEY.kind,
        "metadata": metadata,
        "spec": {"member": admin.name},
        "status": status,
    }
