"""Tokens of the identity provider: what is verified of one, and what it says of its holder.

Only what the provider has signed for this server is believed, and every refusal says which of that is not so. Times are
judged by the server's clock. Who the holder is here is for `people.py`; `oidc_keys.py` has the keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt

from controlplane.clock import Clock, format_time
from controlplane.errors import ApiError, Reason
from controlplane.identity.oidc_keys import IssuerKeys
from controlplane.kinds.member import login_of
from controlplane.oidc_settings import OidcSettings

GROUPS_MAX = 1_000
"""Groups of one person that are looked at; providers cut off at a few hundred."""
_QUOTED_LENGTH_MAX = 100
_DOTS_OF_TOKEN = 2
_TIME_MAX = 1 << 40
"""Seconds since 1970, in the year 36812; beyond, dates have no name in Python."""
_FIX = (
    "Get a new token of the identity provider that this server names, and send it as `Authorization: Bearer <token>`."
)
_SIGNED_CLAIMS = ("exp", "iss", "aud", "sub")


def is_user_token(credential: bytes) -> bool:
    """Whether a credential has the form of a signed token. Keys of ours have no dots, which tells them apart."""
    return credential.count(b".") == _DOTS_OF_TOKEN


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a verified token, in the words of the provider."""

    login: str
    """What Members are compared with."""
    email: str | None
    """Their address, if the provider vouches for it."""
    groups: frozenset[str]
    good_until: datetime
    """When the token ends for this server, whose clock the provider's may be behind."""


class TokenVerifier:
    """Verifies tokens of one provider."""

    def __init__(self, settings: OidcSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._keys = IssuerKeys(settings)

    async def holder(self, token: str) -> Holder:
        """Who holds this token; Unauthorized with what is wrong with it, Unavailable when it cannot be judged."""
        try:
            header = jwt.get_unverified_header(token)
            # Read before it is verified, so that a token of somebody else is refused for what it is.
            issuer = jwt.decode(token, options={"verify_signature": False}).get("iss")
        except jwt.PyJWTError:
            raise _refused("it is no signed token that can be read") from None
        settings, algorithm = self._settings, header.get("alg")
        if algorithm not in settings.oidc_algorithms:
            raise _refused(f"it is signed with {_quoted(algorithm)}, and {_listed(settings.oidc_algorithms)} are taken")
        if issuer != settings.oidc_issuer:
            raise _refused(f"it was issued by {_quoted(issuer)}, and tokens of {settings.oidc_issuer} are taken")
        key = await self._keys.key(str(header.get("kid", "")), algorithm)
        if key is None:
            raise _refused(f"the identity provider has no key {_quoted(header.get('kid', ''))} for {algorithm}")
        return self._judged(self._verified(token, key, algorithm))

    def _verified(self, token: str, key: jwt.PyJWK, algorithm: str) -> dict[str, Any]:
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._settings.oidc_audience,
                issuer=self._settings.oidc_issuer,
                # Times are judged below, by the clock of the server.
                options={
                    "require": list(_SIGNED_CLAIMS),
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                },
            )
        except jwt.PyJWTError as error:
            raise _refused(next(say(error) for kind, say in _WRONG if isinstance(error, kind))) from None
        return claims

    def _judged(self, claims: Mapping[str, Any]) -> Holder:
        settings, now = self._settings, self._clock.now()
        skew = timedelta(seconds=settings.oidc_skew_seconds)
        if (ends := _time(claims, "exp")) + skew <= now:
            raise _refused(f"it expired at {format_time(ends)}")
        if "nbf" in claims and (begins := _time(claims, "nbf")) - skew > now:
            raise _refused(f"it is not valid before {format_time(begins)}")
        name = claims.get(settings.oidc_member_claim)
        if not isinstance(name, str) or not name:
            raise _refused(f"it does not say who its holder is: it has no claim `{settings.oidc_member_claim}`")
        verified = claims.get("email_verified", True) is True
        if settings.oidc_member_claim == "email" and not verified:
            raise _refused("the identity provider does not vouch for the e-mail address in it (`email_verified`)")
        email = claims.get("email")
        return Holder(
            login=login_of(f"{settings.oidc_member_prefix}{name}"),
            email=email.lower() if isinstance(email, str) and claims.get("email_verified") is True else None,
            groups=_groups(claims.get(settings.oidc_groups_claim)),
            good_until=ends + skew,
        )


def _groups(claim: object) -> frozenset[str]:
    told = [claim] if isinstance(claim, str) else claim if isinstance(claim, list) else []
    return frozenset(group for group in told[:GROUPS_MAX] if isinstance(group, str))


def _time(claims: Mapping[str, Any], name: str) -> datetime:
    seconds = claims[name]
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _TIME_MAX:
        raise _refused(f"its `{name}` is no time")
    return datetime.fromtimestamp(seconds, UTC)


def _refused(why: str) -> ApiError:
    return ApiError(Reason.UNAUTHORIZED, f"the token is not taken: {why}", fix=_FIX)


def _quoted(claim: object) -> str:
    """What a token says of itself, for its own holder."""
    return f'"{str(claim)[:_QUOTED_LENGTH_MAX]}"'


def _listed(words: tuple[str, ...]) -> str:
    return ", ".join(words)


_WRONG: tuple[tuple[type[jwt.PyJWTError], Callable[[Any], str]], ...] = (
    (jwt.InvalidSignatureError, lambda _: "its signature is wrong"),
    (jwt.InvalidAudienceError, lambda _: "it is for somebody else: its `aud` does not name this server"),
    (jwt.MissingRequiredClaimError, lambda error: f"it has no claim `{error.claim}`"),
    (jwt.PyJWTError, lambda _: "it cannot be verified"),
)
"""What PyJWT finds, from the special to the general, in our words."""
