"""The settings of this process: the only place that reads them from the environment."""

from __future__ import annotations

from controlplane.settings import Settings


def read_settings(**decided: str) -> Settings:
    """The settings of the environment; `decided` ones count more."""
    return Settings(**decided)  # type: ignore[arg-type]  # text, as the environment has it
