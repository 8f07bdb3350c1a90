"""How values of Secrets are kept: AES-GCM under a key that is not in the database.

What is sealed is bound to its Secret and version, so ciphertexts cannot be swapped between rows. Values that are equal
give equal digests, which is how a repeated create is recognised without opening anything; the digest is keyed, so it
does not help whoever tries likely values on a copy of the database.

Keys can be changed while the server runs: the newest seals, all of them open and recognise, and `resealing.py` moves
what older ones sealed to the newest, after which they are not needed any more.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Mapping
from dataclasses import dataclass

import orjson
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from controlplane.errors import ApiError, Reason
from controlplane.identity.keys import KeyPurpose, derive_key
from controlplane.settings import Settings

_NONCE_BYTES = 12
_MARK_BYTES = 4
_UNMARKED = b"\x01"
_MARKED = b"\x02"
"""The first byte of what is sealed says what follows: the nonce, or before it four bytes that tell the key."""


@dataclass(frozen=True, slots=True)
class _Key:
    """One key: what it seals with, what it recognises values by, and how its ciphertexts begin."""

    cipher: AESGCM
    digest_key: bytes
    prefix: bytes

    @classmethod
    def derived(cls, secret_key: SecretStr) -> _Key:
        sealing = derive_key(secret_key, KeyPurpose.SECRETS_AT_REST)
        mark = hashlib.sha256(b"nodus secrets key mark v1" + sealing).digest()[:_MARK_BYTES]
        return cls(AESGCM(sealing), derive_key(secret_key, KeyPurpose.SECRET_DIGESTS), _MARKED + mark)

    def digest(self, serialised: bytes) -> str:
        return hmac.new(self.digest_key, serialised, hashlib.sha256).hexdigest()


class SecretSealer:
    """Seals and opens the values of one version of a Secret. The first key seals; all of them open."""

    def __init__(self, newest: SecretStr, *older: SecretStr) -> None:
        self._keys = [_Key.derived(secret_key) for secret_key in (newest, *older)]

    @property
    def prefix(self) -> bytes:
        """How everything begins that the newest key has sealed, and nothing else."""
        return self._keys[0].prefix

    def seal(self, secret_uid: str, version: int, values: Mapping[str, bytes]) -> bytes:
        """The ciphertext of all keys and values."""
        nonce = os.urandom(_NONCE_BYTES)
        sealed = self._keys[0].cipher.encrypt(nonce, _serialised(values), _bound_to(secret_uid, version))
        return self.prefix + nonce + sealed

    def open(self, secret_uid: str, version: int, ciphertext: bytes) -> dict[str, bytes]:
        """The values behind a ciphertext; EncryptionFailed when it was sealed with a key that is not among ours."""
        begin = len(_UNMARKED) if ciphertext.startswith(_UNMARKED) else len(self.prefix)
        nonce, sealed = ciphertext[begin : begin + _NONCE_BYTES], ciphertext[begin + _NONCE_BYTES :]
        for key in self._keys:
            if begin == len(_UNMARKED) or ciphertext.startswith(key.prefix):
                try:
                    opened = key.cipher.decrypt(nonce, sealed, _bound_to(secret_uid, version))
                except (InvalidTag, ValueError):  # the latter for what is too short to be a ciphertext
                    continue
                return {name: base64.b64decode(value) for name, value in orjson.loads(opened).items()}
        raise ApiError(
            Reason.ENCRYPTION_FAILED,
            "the values of a Secret cannot be opened with this server's keys",
            fix="Start the server with the key it had, as an older one at least, or replace the Secret and its values.",
            retry_after_seconds=30,
            debug=f"secret {secret_uid} version {version}",
        )

    def digest(self, values: Mapping[str, bytes]) -> str:
        """Equal for equal keys and values under the newest key, and for nothing else."""
        return self._keys[0].digest(_serialised(values))

    def recognises(self, values: Mapping[str, bytes], digest: str) -> bool:
        """Whether a digest, made under any of the keys, is that of these values."""
        serialised = _serialised(values)
        return any(hmac.compare_digest(key.digest(serialised), digest) for key in self._keys)


def secret_sealer(settings: Settings) -> SecretSealer:
    """The sealer that the settings ask for; what the installation's secret sealed can always be opened."""
    newest = [settings.secrets_key] if settings.secrets_key.get_secret_value() else []
    return SecretSealer(*newest, *settings.secrets_older_keys, settings.secret_key)


def _serialised(values: Mapping[str, bytes]) -> bytes:
    encoded = {key: base64.b64encode(value).decode() for key, value in values.items()}
    return orjson.dumps(encoded, option=orjson.OPT_SORT_KEYS)


def _bound_to(secret_uid: str, version: int) -> bytes:
    return f"{secret_uid}/{version}".encode()
