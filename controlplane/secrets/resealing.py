"""Moves what older keys sealed to the newest, so that a key can be taken out of the settings.

A row is opened, sealed anew and replaced only if it is still the row that was read. A process that dies between two
rows leaves both readable: every process knows all keys. What no key opens stays as it is and is told in the log.
"""

from __future__ import annotations

import structlog

from controlplane.errors import ApiError
from controlplane.secrets.sealing import SecretSealer
from controlplane.store.database import Database

log = structlog.get_logger(__name__)

PER_TURN = 500

_SEALED_BY_OTHERS = """
SELECT secret_uid, version, ciphertext FROM secret_versions
WHERE substring(ciphertext FROM 1 FOR $1) <> $2 AND (secret_uid, version) > ($3, $4)
ORDER BY secret_uid, version LIMIT $5
"""
_REPLACE = """
UPDATE secret_versions SET ciphertext = $4, digest = $5 WHERE secret_uid = $1 AND version = $2 AND ciphertext = $3
"""


async def reseal(database: Database, sealer: SecretSealer) -> int:
    """Seal everything with the newest key; how many versions were not."""
    resealed, uid, version = 0, "", 0
    while True:
        rows = await database.fetch(_SEALED_BY_OTHERS, len(sealer.prefix), sealer.prefix, uid, version, PER_TURN)
        for row in rows:
            uid, version, ciphertext = row["secret_uid"], row["version"], row["ciphertext"]
            try:
                values = sealer.open(uid, version, ciphertext)
            except ApiError as error:
                log.error("a version of a Secret cannot be opened", told=error.message, about=error.debug)
                continue
            sealed = sealer.seal(uid, version, values)
            await database.execute(_REPLACE, uid, version, ciphertext, sealed, sealer.digest(values))
            resealed += 1
        if len(rows) < PER_TURN:
            break
    if resealed:
        log.info("versions of Secrets were sealed with the newest key", count=resealed)
    return resealed
