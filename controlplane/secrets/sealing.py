"""How values of Secrets are kept: AES-GCM under a key derived from the installation's secret.

What is sealed is bound to its Secret and version, so ciphertexts cannot be swapped between rows. Values that are equal
give equal digests, which is how a repeated create is recognised without opening anything; the digest is keyed, so it
does not help whoever tries likely values on a copy of the database.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from controlplane.errors import ApiError, Reason
from controlplane.identity.keys import KeyPurpose, derive_key

_NONCE_BYTES = 12
_FORM = b"\x01"
"""The first byte of what is sealed: how it is to be opened, should that ever change."""


class SecretSealer:
    """Seals and opens the values of one version of a Secret."""

    def __init__(self, secret_key: SecretStr) -> None:
        self._cipher = AESGCM(derive_key(secret_key, KeyPurpose.SECRETS_AT_REST))
        self._digest_key = derive_key(secret_key, KeyPurpose.SECRET_DIGESTS)

    def seal(self, secret_uid: str, version: int, values: Mapping[str, bytes]) -> bytes:
        """The ciphertext of all keys and values."""
        nonce = os.urandom(_NONCE_BYTES)
        return _FORM + nonce + self._cipher.encrypt(nonce, _serialised(values), _bound_to(secret_uid, version))

    def open(self, secret_uid: str, version: int, ciphertext: bytes) -> dict[str, bytes]:
        """The values behind a ciphertext; EncryptionFailed when it was sealed with another key."""
        nonce, sealed = ciphertext[1 : 1 + _NONCE_BYTES], ciphertext[1 + _NONCE_BYTES :]
        try:
            opened = self._cipher.decrypt(nonce, sealed, _bound_to(secret_uid, version))
        except InvalidTag:
            raise ApiError(
                Reason.ENCRYPTION_FAILED,
                "the values of a Secret cannot be opened with this server's secret key",
                fix="Start the server with the secret key it had, or replace the Secret with all its values.",
                retry_after_seconds=30,
                debug=f"secret {secret_uid} version {version}",
            ) from None
        return {key: base64.b64decode(value) for key, value in orjson.loads(opened).items()}

    def digest(self, values: Mapping[str, bytes]) -> str:
        """Equal for equal keys and values, and for nothing else."""
        return hmac.new(self._digest_key, _serialised(values), hashlib.sha256).hexdigest()


def _serialised(values: Mapping[str, bytes]) -> bytes:
    encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return orjson.dumps(encoded, option=orjson.OPT_SORT_KEYS)


def _bound_to(secret_uid: str, version: int) -> bytes:
    return f"{secret_uid}/{version}".encode()
