"""What an organisation begins with: itself, its project `default`, and its first member, an Owner with one key.

All is written in one commit, so a start that dies either did all of it or nothing, and a later start tells from the
Owner that it is not the first. `workers/initialise.py` calls `bootstrap` and writes the key, shown this once, to the
client's files; when those were lost, `issue_admin_key` makes another key and `rotate_admin_key` also ends the old ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from controlplane.audit.commands import execute
from controlplane.clock import Clock, format_time
from controlplane.identity.first_keys import OPERATOR_KEY_NAME, AddKey, Admin, KeepOperatorKey, NewKey, add_key
from controlplane.identity.owners import add_member, owners_read
from controlplane.identity.principal import user_label
from controlplane.identity.tokens import TokenHasher, new_api_key
from controlplane.ids import new_uid
from controlplane.kinds.member import MEMBER
from controlplane.kinds.organization import ORGANIZATION
from controlplane.kinds.project import PROJECT
from controlplane.kinds.roles import Role
from controlplane.machinery.kind import API_VERSION, AdmissionContext, Kind
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

FIRST_ORG = "default"
FIRST_PROJECT = "default"
FIRST_MEMBER = "admin"
_ADMIN_KEY_NAME = "admin"

# Before there were members, an administrator was whoever had a key for everything.
_ADMINS = Loader(
    "identity-admins",
    """SELECT DISTINCT ON (key) key, principal, member FROM (
        SELECT org AS key, user_uuid AS principal, uid AS member, uid AS age FROM credential_owners
        WHERE org = ANY($1::text[]) AND role = 'Owner'
        UNION ALL
        SELECT org, principal, NULL, to_char(created_at, 'YYYYMMDDHH24MISSUS') FROM tokens
        WHERE org = ANY($1::text[]) AND kind = 'apikey' AND owner IS NULL AND role = 'Owner' AND '*' = ANY(scopes)
    ) AS admins ORDER BY key, member IS NULL, age""",
)
_ADMIN = "SELECT user_uuid, name, uid FROM credential_owners WHERE org = $1 AND role = 'Owner' ORDER BY uid LIMIT 1"
_ADOPT = "UPDATE tokens SET owner = $3 WHERE org = $1 AND principal = $2 AND kind = 'apikey' AND owner IS NULL"
_REVOKE_OTHERS = """
UPDATE tokens SET revoked_at = $4
WHERE org = $1 AND principal = $2 AND kind = 'apikey' AND hash <> $3 AND revoked_at IS NULL
"""


@dataclass(frozen=True, kw_only=True)
class BootstrapResult:
    """What a start found or made. `token` is set only when this start made the key; nobody can read it again."""

    org: str
    project: str
    user_uuid: str
    token: str | None


async def bootstrap(
    writer: Writer, settings: Settings, clock: Clock, org: str = FIRST_ORG, *, given: str | None = None
) -> BootstrapResult:
    """Make the organisation, its first project, member and key unless that was done before; a `given` key is the first,
    and nobody needs to be told it.

    Safe to call from several processes at once. What an earlier release made is completed: its administrator becomes a
    Member, to whom all of their keys then belong.
    """
    token = given or new_api_key()
    now = clock.now()
    user_uuid = str(uuid.uuid4())
    label = user_label(user_uuid)
    beginning = _Beginning(
        org=org,
        user_uuid=user_uuid,
        key=NewKey.of(
            token,
            TokenHasher(settings.secret_key).hash(token),
            _ADMIN_KEY_NAME if given is None else OPERATOR_KEY_NAME,
            kept_by_operator=given is not None,
        ),
        organization=await server_object(ORGANIZATION, org, {}, label, now),
        project=await server_object(PROJECT, FIRST_PROJECT, {}, label, now),
        member=await server_object(MEMBER, FIRST_MEMBER, {"role": Role.OWNER.value}, label, now),
    )
    admin = await writer.write(beginning)
    told = token if admin == user_uuid and given is None else None
    return BootstrapResult(org=org, project=FIRST_PROJECT, user_uuid=admin, token=told)


async def keep_operator_key(writer: Writer, database: Database, settings: Settings, token: str) -> None:
    """Let this key, which an operator keeps outside, be one of the first administrator; the one before it ends.

    In one transaction, so that there is always one that works; `bootstrap` must have run.
    """
    admin = await _first_admin(database)
    await writer.write(KeepOperatorKey(admin, token, TokenHasher(settings.secret_key).hash(token)))


async def issue_admin_key(writer: Writer, database: Database, settings: Settings) -> str:
    """Another key of the first administrator, for when the first one was lost; `bootstrap` must have run."""
    token, _, _ = await _issue(writer, database, settings)
    return token


async def rotate_admin_key(writer: Writer, database: Database, settings: Settings, clock: Clock) -> str:
    """A new key of the first administrator; all their other keys stop working."""
    token, token_hash, admin = await _issue(writer, database, settings)
    await execute(database, FIRST_ORG, _REVOKE_OTHERS, FIRST_ORG, admin.user, token_hash, clock.now())
    return token


async def _issue(writer: Writer, database: Database, settings: Settings) -> tuple[str, bytes, Admin]:
    admin = await _first_admin(database)
    token = new_api_key()
    token_hash = TokenHasher(settings.secret_key).hash(token)
    name = f"{_ADMIN_KEY_NAME}-{token_hash.hex()[:8]}"
    await writer.write(AddKey(admin, NewKey.of(token, token_hash, name)))
    return token, token_hash, admin


async def _first_admin(database: Database) -> Admin:
    """The first Owner of the first organisation."""
    rows = await database.fetch(_ADMIN, FIRST_ORG)
    if not rows:
        raise RuntimeError("there is no administrator yet: start the server once")
    return Admin(org=FIRST_ORG, user=rows[0]["user_uuid"], name=rows[0]["name"], uid=rows[0]["uid"])


@dataclass(frozen=True, kw_only=True)
class _Beginning:
    """Stores what an organisation begins with unless it has an administrator; answers who that is."""

    org: str
    user_uuid: str
    key: NewKey
    organization: Document
    project: Document
    member: Document

    def reads(self) -> Reads:
        keys = (*self._keys(), self.key.object_key(self.org))
        return Reads(keys=keys, loads=((_ADMINS, self.org), owners_read(self.org)))

    def _keys(self) -> tuple[Key, Key, Key]:
        return (
            Key(ORGANIZATION.kind, self.org, "", self.org),
            Key(PROJECT.kind, self.org, "", FIRST_PROJECT),
            Key(MEMBER.kind, self.org, "", FIRST_MEMBER),
        )

    def apply(self, tx: Tx) -> str:
        known = tx.scratch(_ADMINS.name)
        if self.org not in known:
            found = tx.rows(_ADMINS, self.org)
            known[self.org] = found[0]["principal"] if found else self.user_uuid
            if not found or found[0]["member"] is None:
                self._begin(tx, known[self.org])
        admin: str = known[self.org]
        return admin

    def _begin(self, tx: Tx, admin: str) -> None:
        organization, project, key = self._keys()
        member = {**self.member, "status": {**self.member["status"], "user": admin}}
        for where, document in ((organization, self.organization), (project, self.project), (key, member)):
            if tx.get(where) is None:
                tx.put(where, document)
        add_member(tx, key, member)
        uid = member["metadata"]["uid"]
        if admin == self.user_uuid:
            add_key(tx, Admin(org=self.org, user=admin, name=key.name, uid=uid), self.key)
        else:
            tx.execute(_ADOPT, (self.org, admin, uid))


class _EmptyServer:
    """What admission may look up before anything exists."""

    async def get(self, kind: str, name: str) -> Document | None:
        return None

    async def blob_exists(self, digest: str) -> bool:
        return False

    async def secrets_holding(self, texts: Collection[str]) -> Mapping[str, tuple[str, str]]:
        return {}


async def server_object(kind: Kind, name: str, spec: Document, label: str, now: datetime) -> Document:
    """An object as admission would make it, for a server that cannot be asked yet."""
    document: Document = {
        "apiVersion": API_VERSION,
        "kind": kind.kind,
        "metadata": {
            "name": name,
            "uid": new_uid(kind.uid_prefix),
            "generation": 1,
            "creationTimestamp": format_time(now),
            "labels": {"nodus.dev/created-by": label},
        },
        "spec": spec,
    }
    context = AdmissionContext(org="", project="", principal=label, now=now, lookup=_EmptyServer())
    await kind.strategy.prepare_create(document, context)
    return document
