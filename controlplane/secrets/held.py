"""Which versions of which Secrets workers were started with.

A worker goes on with the values it got when it started, whatever becomes of its Function and its Secrets meanwhile. So
what its lease gave out is noted in the same commit order as every other write (`HoldVersions`), the sealed values of a
noted version outlive a delete and the pruning of old versions (`NOT_HELD`), and error texts of the Function's workers
are searched for all of them (`environment.py`). Notes go a while after their worker, and values with their last note.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from controlplane.errors import ApiError, Reason
from controlplane.kinds.secret import VERSIONS_SHOWN_MAX
from controlplane.store.contract import Key, Loader, Reads, Tx
from controlplane.store.database import Database

VERSIONS_KEPT_MAX = VERSIONS_SHOWN_MAX
PER_TURN = 1_000

NOT_HELD = """NOT EXISTS (SELECT FROM attempt_secrets held
    WHERE held.secret_uid = secret_versions.secret_uid AND held.version = secret_versions.version)"""
"""The condition under which a row of `secret_versions` may go."""

_PRESENT = Loader(
    "secret-versions-present",
    """SELECT k.key FROM unnest($1::text[]) AS k(key) JOIN secret_versions v
    ON v.secret_uid = split_part(k.key, '/', 1) AND v.version = split_part(k.key, '/', 2)::bigint""",
)
_HOLD = """
INSERT INTO attempt_secrets (attempt, secret_uid, version)
SELECT uid, $2, $3 FROM attempts WHERE uid = $1 ON CONFLICT DO NOTHING
"""
_RELEASE = """
DELETE FROM attempt_secrets WHERE (attempt, secret_uid, version) IN (
    SELECT s.attempt, s.secret_uid, s.version FROM attempt_secrets s JOIN attempts a ON a.uid = s.attempt
    WHERE a.finished_at < $1 LIMIT $2)
"""
_DROP_UNUSED = f"""
DELETE FROM secret_versions WHERE (secret_uid, version) IN (
    SELECT secret_uid, version FROM secret_versions
    WHERE {NOT_HELD} AND (
        NOT EXISTS (SELECT FROM objects o WHERE o.kind = 'Secret' AND o.org = secret_versions.org
            AND o.project = secret_versions.project AND o.name = secret_versions.name
            AND o.uid = secret_versions.secret_uid)
        OR version <= (SELECT max(version) - $1 FROM secret_versions newer
            WHERE newer.secret_uid = secret_versions.secret_uid))
    LIMIT $2)
"""  # noqa: S608 - a constant

Version = tuple[str, int]
"""The uid of a Secret and the number of a version of it."""


class HoldVersions:
    """Notes that a worker got these versions; Unavailable when one of them has just gone, so that it asks again."""

    def __init__(self, attempt: str, secrets: Sequence[Key], versions: Sequence[Version]) -> None:
        self._attempt = attempt
        self._secrets = secrets
        self._versions = versions

    def reads(self) -> Reads:
        return Reads(keys=self._secrets, loads=[(_PRESENT, _argument(version)) for version in self._versions])

    def apply(self, tx: Tx) -> None:
        present = all(tx.rows(_PRESENT, _argument(version)) for version in self._versions)
        # A delete earlier in this batch shows only in the object.
        if not present or any(tx.get(key) is None for key in self._secrets):
            raise ApiError(
                Reason.UNAVAILABLE, "a Secret of the worker was changed while it was read", retry_after_seconds=1
            )
        for secret_uid, version in self._versions:
            tx.execute(_HOLD, (self._attempt, secret_uid, version))


async def release_versions(database: Database, before: datetime) -> None:
    """Forget what workers that ended before a time held, and drop values that nothing needs; some of each a call."""
    await database.execute(_RELEASE, before, PER_TURN)
    await database.execute(_DROP_UNUSED, VERSIONS_KEPT_MAX, PER_TURN)


def _argument(version: Version) -> str:
    return f"{version[0]}/{version[1]}"
