"""Keys for each purpose, derived from the one secret of the installation.

Nothing uses `settings.secret_key` directly: every purpose has a key of its own (HKDF-SHA256 with the purpose as info),
so what leaks through one use is of no use for another.
"""

from __future__ import annotations

from enum import StrEnum

from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from pydantic import SecretStr

KEY_BYTES = 32


class KeyPurpose(StrEnum):
    """What a derived key is for. The words are part of the derivation: changing one makes what it made unreadable."""

    TOKEN_HASHES = "nodus token hashes v1"  # noqa: S105 - labels, not passwords
    CONTINUE_TOKENS = "nodus continue tokens v1"
    BLOB_URLS = "nodus blob urls v1"
    SECRETS_AT_REST = "nodus secrets at rest v1"
    LOGIN_TICKETS = "nodus login tickets v1"
    SECRET_DIGESTS = "nodus secret digests v1"  # noqa: S105


def derive_key(secret_key: SecretStr, purpose: KeyPurpose) -> bytes:
    """The 32-byte key for a purpose; ValueError when `secret_key` is not at least 32 bytes in hex."""
    try:
        master = bytes.fromhex(secret_key.get_secret_value())
    except ValueError:
        raise ValueError("`secret_key` must be hexadecimal") from None
    if len(master) < KEY_BYTES:
        raise ValueError(f"`secret_key` must have at least {KEY_BYTES} bytes, that is {2 * KEY_BYTES} hex digits")
    return HKDF(SHA256(), KEY_BYTES, salt=None, info=purpose.encode()).derive(master)
