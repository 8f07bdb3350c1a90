"""Whose command this process runs, for the audit log (decision 0041)."""

from __future__ import annotations

import getpass
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager

from controlplane.audit.requests import audited, command_request
from controlplane.identity.bootstrap import FIRST_ORG


def operators_command(words: Sequence[str]) -> AbstractContextManager[None]:
    """What is written inside the block was asked for by these words of `python -m workers …`."""
    return audited(command_request(words, org=FIRST_ORG, user=_user()))


def _user() -> str:
    """The user of the host; a container may have given its number no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
