"""What exists after the first start: an organisation, its project `default`, and one administrator with one key.

Organisations are only a slug in every row so far; there is no object for one. The project and the key are written in
one commit, so a start that dies either did all of it or nothing, and a later start tells from the key's row that it is
not the first. `workers/wiring.py` calls `bootstrap` and writes the key, shown this once, to the client's files; when
those were lost, `issue_admin_key` makes another key and `rotate_admin_key` also ends the old ones.
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime

from controlplane.clock import Clock, format_time
from controlplane.identity.authenticator import user_label
from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from controlplane.ids import new_uid
from controlplane.kinds.project import PROJECT
from controlplane.kinds.roles import Role
from controlplane.machinery.kind import API_VERSION, AdmissionContext
from controlplane.settings import Settings
from controlplane.store.contract import Document, Key, Loader, Reads, Tx
from controlplane.store.database import Database
from controlplane.store.writer import Writer

FIRST_ORG = "default"
FIRST_PROJECT = "default"
_ADMIN_KEY_NAME = "admin"

_ADMINS = Loader(
    "identity-admins",
    """SELECT DISTINCT ON (org) org AS key, principal FROM tokens
    WHERE org = ANY($1::text[]) AND kind = 'apikey' AND '*' = ANY(scopes) ORDER BY org, created_at""",
)
_ADMIN = (
    "SELECT principal FROM tokens WHERE org = $1 AND kind = 'apikey' AND '*' = ANY(scopes) ORDER BY created_at LIMIT 1"
)
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


async def bootstrap(writer: Writer, settings: Settings, clock: Clock) -> BootstrapResult:
    """Make the first project and key unless an earlier start did; safe to call from several processes at once."""
    token = new_api_key()
    now = clock.now()
    user_uuid = str(uuid.uuid4())
    first = _FirstStart(
        user_uuid=user_uuid,
        token_hash=TokenHasher(settings.secret_key).hash(token),
        project=await _first_project(user_uuid, now),
    )
    admin = await writer.write(first)
    return BootstrapResult(
        org=FIRST_ORG, project=FIRST_PROJECT, user_uuid=admin, token=token if admin == user_uuid else None
    )


async def issue_admin_key(database: Database, settings: Settings, clock: Clock) -> str:
    """Another key of the first administrator, for when the first one was lost; `bootstrap` must have run."""
    token, _, _ = await _issue(database, settings, clock)
    return token


async def rotate_admin_key(database: Database, settings: Settings, clock: Clock) -> str:
    """A new key of the first administrator; all their other keys stop working."""
    token, token_hash, admin = await _issue(database, settings, clock)
    await database.execute(_REVOKE_OTHERS, FIRST_ORG, admin, token_hash, clock.now())
    return token


async def _issue(database: Database, settings: Settings, clock: Clock) -> tuple[str, bytes, str]:
    rows = await database.fetch(_ADMIN, FIRST_ORG)
    if not rows:
        raise RuntimeError("there is no administrator yet: start the server once")
    admin: str = rows[0]["principal"]
    token = new_api_key()
    token_hash = TokenHasher(settings.secret_key).hash(token)
    await database.execute(INSERT_API_KEY, *_key_row(token_hash, admin, clock.now()))
    return token, token_hash, admin


def _key_row(token_hash: bytes, user_uuid: str, now: datetime) -> tuple[object, ...]:
    return (token_hash, FIRST_ORG, user_uuid, _ADMIN_KEY_NAME, ["*"], ["*"], now, None, Role.OWNER)


class _FirstStart:
    """Stores the project and the key unless there is an administrator; answers who the administrator is."""

    def __init__(self, *, user_uuid: str, token_hash: bytes, project: Document) -> None:
        self._user_uuid = user_uuid
        self._token_hash = token_hash
        self._project = project
        self._key = Key(PROJECT.kind, FIRST_ORG, "", FIRST_PROJECT)

    def reads(self) -> Reads:
        return Reads(keys=(self._key,), loads=((_ADMINS, FIRST_ORG),))

    def apply(self, tx: Tx) -> str:
        known = tx.scratch(_ADMINS.name)
        for row in tx.rows(_ADMINS, FIRST_ORG):
            known.setdefault(FIRST_ORG, row["principal"])
        if FIRST_ORG not in known:
            if tx.get(self._key) is None:
                tx.put(self._key, self._project)
            tx.execute(INSERT_API_KEY, _key_row(self._token_hash, self._user_uuid, tx.now))
            known[FIRST_ORG] = self._user_uuid
        admin: str = known[FIRST_ORG]
        return admin


class _EmptyServer:
    """What admission may look up before anything exists."""

    async def get(self, kind: str, name: str) -> Document | None:
        return None

    async def blob_exists(self, digest: str) -> bool:
        return False

    async def secrets_holding(self, texts: Collection[str]) -> Mapping[str, tuple[str, str]]:
        return {}


async def _first_project(user_uuid: str, now: datetime) -> Document:
    label = user_label(user_uuid)
    document: Document = {
        "apiVersion": API_VERSION,
        "kind": PROJECT.kind,
        "metadata": {
            "name": FIRST_PROJECT,
            "uid": new_uid(PROJECT.uid_prefix),
            "generation": 1,
            "creationTimestamp": format_time(now),
            "labels": {"nodus.dev/created-by": label},
        },
        "spec": {},
    }
    context = AdmissionContext(org=FIRST_ORG, project="", principal=label, now=now, lookup=_EmptyServer())
    await PROJECT.strategy.prepare_create(document, context)
    return document
