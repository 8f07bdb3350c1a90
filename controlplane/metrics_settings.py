"""Where a process tells Prometheus about itself; `settings.py` has all other settings and takes these in."""

from __future__ import annotations

from pydantic import Field
from pydantic_settings import BaseSettings


class MetricsSettings(BaseSettings):
    """The address of `/metrics`, apart from the API: it has no credentials, and is for whoever runs the server."""

    metrics_host: str = Field(
        default="127.0.0.1", description="Address of /metrics; whoever reaches it may read how busy the server is."
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65_534,
        description="Port of /metrics of this process, 0 for none; `up` gives it to api and the next one to control.",
    )
