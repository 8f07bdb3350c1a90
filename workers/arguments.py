"""What operators type after a command, read the same way by all commands; what is wrong with it is told as usage."""

from __future__ import annotations

import re
from datetime import timedelta

import typer

from controlplane.identity.organizations import is_organization, is_project
from controlplane.machinery.grammar import NAME_PATTERN, SENTENCES
from controlplane.machinery.quantities import parse_duration
from controlplane.store.database import Database


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


async def require_holder(database: Database, org: str, project: str = "") -> None:
    """Refuse an organisation that does not exist, or a project that is none of it; "" is the whole organisation."""
    if not await is_organization(database, org):
        raise typer.BadParameter(f'there is no organisation "{org}"; `admin orgs` lists them')
    if project and not await is_project(database, org, project):
        told = f'there is no project "{project}" in the organisation "{org}"'
        raise typer.BadParameter(f"{told}; `nodus get projects` with a key of it lists them")
