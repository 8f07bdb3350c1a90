"""The public keys of the identity provider: found by discovery, kept for an hour, read again for one that is unknown.

The provider is asked by whichever request needs it and by one at a time; how often is bounded, whatever tokens come.
While it does not answer, the keys that are known are used. `oidc.py` verifies tokens with them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx
import jwt
import orjson
import structlog

from controlplane.errors import ApiError, Reason
from controlplane.oidc_settings import OidcSettings, is_safe_url

log = structlog.get_logger("identity")

DISCOVERY = "/.well-known/openid-configuration"
DOCUMENT_BYTES_MAX = 262_144
"""Of what the provider says; the largest of the known ones have a tenth."""
KEYS_MAX = 100
"""Keys of a provider; more are not looked at."""
_SYMMETRIC = "oct"


class ProviderError(Exception):
    """The provider did not say what it must; the text says what."""


class IssuerKeys:
    """The keys of one provider."""

    def __init__(self, settings: OidcSettings) -> None:
        self._settings = settings
        self._keys: Mapping[str, dict[str, Any]] = {}
        self._read_at: float | None = None
        self._tried_at: float | None = None
        self._reading = asyncio.Lock()
        self._renewal: asyncio.Task[None] | None = None
        self._made: dict[tuple[str, str], jwt.PyJWK] = {}

    async def key(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        """The key of this id for this algorithm; None when the provider has none.

        Raises Unavailable when no keys are known and the provider cannot be asked.
        """
        age = self._age(self._read_at)
        if kid not in self._keys or age >= self._settings.oidc_keys_stale_seconds_max:
            await self._read()
        elif age >= self._settings.oidc_keys_seconds_max and (self._renewal is None or self._renewal.done()):
            # Nobody waits for it: open streams are rechecked through here.
            self._renewal = asyncio.create_task(self._read(), name="oidc-keys")
        if self._age(self._read_at) >= self._settings.oidc_keys_stale_seconds_max:
            raise ApiError(
                Reason.UNAVAILABLE,
                "the token cannot be checked now: the identity provider does not answer",
                retry_after_seconds=max(int(self._settings.oidc_refetch_seconds_min), 1),
            )
        return self._of(kid, algorithm)

    def _of(self, kid: str, algorithm: str) -> jwt.PyJWK | None:
        found = self._keys.get(kid)
        if found is None or found.get("alg", algorithm) != algorithm:
            return None
        if (kid, algorithm) not in self._made:
            try:
                self._made[kid, algorithm] = jwt.PyJWK(found, algorithm)
            except (jwt.PyJWTError, ValueError):
                return None
        return self._made[kid, algorithm]

    async def _read(self) -> None:
        """Ask the provider, unless that was done a moment ago; what is known stays if it does not answer."""
        tried_at = self._tried_at
        async with self._reading:
            # Whoever waited here has what the one before has read.
            if self._tried_at != tried_at or self._age(tried_at) < self._settings.oidc_refetch_seconds_min:
                return
            try:
                keys = await self._fetched()
            except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, ProviderError) as error:
                log.warning("the identity provider does not answer", error=repr(error))
            else:
                self._keys, self._made, self._read_at = keys, {}, time.monotonic()
            self._tried_at = time.monotonic()

    async def _fetched(self) -> Mapping[str, dict[str, Any]]:
        issuer = self._settings.oidc_issuer
        async with httpx.AsyncClient(timeout=self._settings.oidc_fetch_seconds_max) as client:
            discovered = await self._document(client, f"{issuer.rstrip('/')}{DISCOVERY}")
            where = discovered.get("jwks_uri")
            if discovered.get("issuer") != issuer or not isinstance(where, str) or not is_safe_url(where):
                raise ProviderError("its configuration names another issuer, or no https address of its keys")
            found = (await self._document(client, where)).get("keys")
        if not isinstance(found, list):
            raise ProviderError("its keys are no list")
        signing = [key for key in found[:KEYS_MAX] if isinstance(key, dict) and _is_for_signatures(key)]
        return {str(key.get("kid", "")): key for key in signing}

    async def _document(self, client: httpx.AsyncClient, url: str) -> dict[str, Any]:
        content = b""
        async with (
            asyncio.timeout(self._settings.oidc_fetch_seconds_max),
            client.stream("GET", url) as answer,
        ):
            async for piece in answer.aiter_bytes():
                content += piece
                if len(content) > DOCUMENT_BYTES_MAX:
                    raise ProviderError(f"{url} is larger than {DOCUMENT_BYTES_MAX} bytes")
        if answer.status_code != httpx.codes.OK:
            raise ProviderError(f"{url} answers {answer.status_code}")
        try:
            document = orjson.loads(content)
        except orjson.JSONDecodeError:
            raise ProviderError(f"{url} is no JSON") from None
        if not isinstance(document, dict):
            raise ProviderError(f"{url} is no object")
        return document

    @staticmethod
    def _age(moment: float | None) -> float:
        return float("inf") if moment is None else time.monotonic() - moment


def _is_for_signatures(key: Mapping[str, Any]) -> bool:
    return key.get("kty") != _SYMMETRIC and key.get("use", "sig") == "sig"
