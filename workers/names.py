"""The processes of the server, by the words operators use."""

from __future__ import annotations

from enum import StrEnum


class ProcessName(StrEnum):
    """One kind of process."""

    API = "api"
    CONTROL = "control"
    NODE = "node"
