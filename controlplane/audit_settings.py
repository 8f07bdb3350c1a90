"""The settings of the audit log; `settings.py` has all others and takes these in."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class AuditSettings(BaseSettings):
    """How soon events are written and sealed, and for how long they are kept."""

    audit_queue_max: int = Field(
        default=10_000, ge=1, description="Refusals that may wait to be written, in each API process; more are counted."
    )
    audit_flush_seconds: float = Field(
        default=1.0, gt=0, description="Refusals are written this often; those of so long are lost in a crash."
    )
    audit_seal_seconds: float = Field(
        default=5.0, gt=0, description="Events are sealed this often; one that is younger can be removed unnoticed."
    )
    audit_retention_days: int = Field(
        default=400, ge=1, description="Sealed events are kept this long: a year, and the time to look at it."
    )
