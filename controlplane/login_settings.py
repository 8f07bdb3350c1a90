"""The settings of logins by which a person gives a program a key; `settings.py` has all others and takes these in."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class LoginSettings(BaseSettings):
    """Codes that are shown and typed, and the keys that come of them."""

    login_seconds_max: int = Field(
        default=600, ge=30, description="Codes of a login work for this long: time to find the other device."
    )
    login_poll_seconds: int = Field(
        default=5, ge=1, description="A program waits this long between two questions about its login (RFC 8628)."
    )
    logins_open_max: int = Field(
        default=1_000, ge=1, description="Logins that wait for a person; anybody may begin one, so more get 429."
    )
    logins_open_per_address_max: int = Field(
        default=50, ge=1, description="Of these from one address, so that one cannot keep all others from logging in."
    )
    login_key_days: int = Field(
        default=90, ge=1, description="The key of a login ends after this long, as `nodus login` tells its user."
    )
    login_attempts_per_second: float = Field(
        default=0.5,
        gt=0,
        description="Codes asked for, typed or redeemed from one address at a process: guessing one of 10^10 codes in "
        "its ten minutes needs more by seven orders. Behind a proxy that does not tell addresses all clients are one.",
    )
    login_attempts_burst_max: int = Field(
        default=60, ge=1, description="Of these at once: a class of people behind one address who begin together."
    )
    login_polls_per_second: float = Field(
        default=20, gt=0, description="Questions about logins from one address at a process; a hundred that wait."
    )
