"""The settings of an identity provider whose tokens are taken beside API keys; `settings.py` has all others and takes
these in.
"""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings

ASYMMETRIC = frozenset({"RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"})
"""Signatures that a public key verifies. Others either prove nothing or would take the public key for a secret."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_safe_url(url: str) -> bool:
    """Whether what comes from there is what the host of that name said: https, or the same machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)


class OidcSettings(BaseSettings):
    """Whose tokens are taken, and whom they name."""

    oidc_issuer: str = Field(
        default="", description="Identity provider whose tokens are taken, as it writes itself in `iss`; empty: none."
    )
    oidc_audience: str = Field(
        default="", description="What tokens must name in `aud`: the id of the client that people sign in with."
    )
    oidc_algorithms: tuple[str, ...] = Field(
        default=("RS256", "ES256"), description="Signatures that are taken, in a JSON list; public-key ones only."
    )
    oidc_member_claim: str = Field(
        default="email",
        description="Claim that names the person: compared with `spec.login` of Members, else their `spec.email`.",
    )
    oidc_member_prefix: str = Field(
        default="", description="Put before what that claim says, so that no other source of names can say the same."
    )
    oidc_groups_claim: str = Field(
        default="", description="Claim with the person's groups; empty: a token does what its Member's role allows."
    )
    oidc_roles: dict[str, str] = Field(
        default={},
        description="By group, the role it allows, in a JSON object; a token does what both this and its Member allow.",
    )
    oidc_new_members: bool = Field(
        default=False,
        description="Make a Member of the first organisation of whoever is none: by their groups, else a Viewer.",
    )
    oidc_skew_seconds: int = Field(
        default=60, ge=0, description="The provider's clock may differ this much: of two hosts with NTP, generously."
    )
    oidc_keys_seconds_max: float = Field(
        default=3_600.0,
        gt=0,
        description="The provider's keys are read again after this long, so that revoked ones go.",
    )
    oidc_keys_stale_seconds_max: float = Field(
        default=86_400.0, gt=0, description="While it does not answer, the last ones are used for this long."
    )
    oidc_refetch_seconds_min: float = Field(
        default=10.0,
        gt=0,
        description="Between two reads for a key that is not known: tokens with made-up ones are free.",
    )
    oidc_fetch_seconds_max: float = Field(
        default=5.0, gt=0, description="One document of the provider; requests with its tokens wait for the first ones."
    )
    oidc_token_bytes_max: int = Field(
        default=16_384, ge=1_024, description="A token; those with hundreds of groups have half of it."
    )

    @field_validator("oidc_issuer")
    @classmethod
    def _is_safe(cls, issuer: str) -> str:
        if issuer and not is_safe_url(issuer):
            raise ValueError("must be an https URL: whoever can change what it says can be anybody here")
        return issuer

    @field_validator("oidc_algorithms")
    @classmethod
    def _are_asymmetric(cls, algorithms: tuple[str, ...]) -> tuple[str, ...]:
        if not algorithms or not ASYMMETRIC.issuperset(algorithms):
            raise ValueError(f"must be some of {', '.join(sorted(ASYMMETRIC))}")
        return algorithms
