"""What operators type after a command, read the same way by all commands; what is wrong with it is told as usage."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

from controlplane.machinery.grammar import NAME_PATTERN, SENTENCES
from controlplane.machinery.quantities import parse_duration


def check_name(name: str) -> None:
    """Refuse what is no name."""
    if not re.fullmatch(NAME_PATTERN, name):
        raise typer.BadParameter(SENTENCES[NAME_PATTERN])


def duration(text: str) -> timedelta:
    """A duration such as `720h`."""
    try:
        return timedelta(seconds=parse_duration(text))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
