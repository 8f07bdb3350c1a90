"""The settings of this process: the only place that reads them from the environment."""

from __future__ import annotations

from controlplane.operator_settings import OperatorSettings
from controlplane.settings import Settings

PREFIX = "NODUS_SERVER_"
"""Of every setting's name in the environment."""


def read_settings(**decided: str) -> Settings:
    """The settings of the environment; `decided` ones count more."""
    return Settings(**decided)  # type: ignore[arg-type]  # text, as the environment has it


def read_operator_key() -> str | None:
    """The operator's key of the environment or of the file that it names; ValueError for one of the wrong form."""
    return OperatorSettings().key()
