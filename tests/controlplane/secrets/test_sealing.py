"""Keys of Secrets at rest that are changed while the values stay readable."""

from __future__ import annotations

import os

import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from pydantic import SecretStr

from controlplane.errors import ApiError, Reason
from controlplane.identity.keys import KeyPurpose, derive_key
from controlplane.secrets.environment import SecretReader
from controlplane.secrets.resealing import reseal
from controlplane.secrets.sealing import SecretSealer, secret_sealer
from controlplane.settings import Settings
from tests.fixtures.plane import Plane

FIRST, SECOND, THIRD = (SecretStr(digit * 64) for digit in "123")
VALUES = {"A": b"value"}


def test_the_newest_key_seals_and_all_of_them_open_and_recognise() -> None:
    before, both = SecretSealer(FIRST), SecretSealer(SECOND, FIRST)
    old = before.seal("sec_1", 1, VALUES)
    assert both.open("sec_1", 1, old) == VALUES
    assert both.recognises(VALUES, before.digest(VALUES))
    new = both.seal("sec_1", 1, VALUES)
    assert SecretSealer(SECOND).open("sec_1", 1, new) == VALUES
    assert not both.recognises(VALUES, SecretSealer(THIRD).digest(VALUES))
    for sealer, sealed in ((before, new), (SecretSealer(SECOND), old), (SecretSealer(THIRD), new)):
        with pytest.raises(ApiError) as error:
            sealer.open("sec_1", 1, sealed)
        assert error.value.reason is Reason.ENCRYPTION_FAILED


def test_what_was_sealed_before_keys_had_marks_is_opened() -> None:
    nonce = os.urandom(12)
    key = AESGCM(derive_key(FIRST, KeyPurpose.SECRETS_AT_REST))
    sealed = b"\x01" + nonce + key.encrypt(nonce, b'{"A":"dmFsdWU="}', b"sec_1/1")
    assert SecretSealer(SECOND, FIRST).open("sec_1", 1, sealed) == VALUES


def test_the_settings_name_the_keys() -> None:
    key = "a" * 64
    sealed = secret_sealer(Settings(secret_key=SecretStr(key))).seal("sec_1", 1, VALUES)
    changed = Settings(secret_key=SecretStr(key), secrets_key=SECOND, secrets_older_keys=(FIRST,))
    assert secret_sealer(changed).open("sec_1", 1, sealed) == VALUES
    assert secret_sealer(changed).open("sec_1", 1, SecretSealer(FIRST).seal("sec_1", 1, VALUES)) == VALUES
    assert SecretSealer(SECOND).open("sec_1", 1, secret_sealer(changed).seal("sec_1", 1, VALUES)) == VALUES


async def test_everything_is_sealed_anew_and_then_the_old_key_is_not_needed(plane: Plane) -> None:
    body = {"metadata": {"name": "a"}, "spec": {"stringData": {"A": "value"}}}
    await plane.create("Secret", body)
    await plane.create("Secret", {"metadata": {"name": "b"}, "spec": {"stringData": {"B": "other"}}})
    # One that nobody can open must not keep the others from being sealed.
    await plane.database.execute("UPDATE secret_versions SET ciphertext = '\\x0100' WHERE name = 'b'")
    sealer = SecretSealer(SECOND, plane.settings.secret_key)
    assert await reseal(plane.database, sealer) == 1
    assert await reseal(plane.database, sealer) == 0
    reader = SecretReader(plane.database, plane.core.cache, SecretSealer(SECOND))
    found = await reader.environment("default", "default", {"secrets": [{"name": "a"}]})
    assert found.variables == {"A": "value"}
    [row] = await plane.database.fetch("SELECT digest FROM secret_versions WHERE name = 'a'")
    assert row["digest"] == SecretSealer(SECOND).digest({"A": b"value"})
