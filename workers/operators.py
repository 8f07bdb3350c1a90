"""What an operator's command needs around it: an installation to work on, its name in the audit log, clear refusals.

`python -m workers ledger|admin|audit|switches|quotas` work on the database that the environment's settings name, or on
that of a running `up`, whose folder has them. Whose command it was is told to the audit log (decision 0041).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

import asyncpg
import typer

from controlplane.audit.requests import audited, command_request
from controlplane.identity.bootstrap import FIRST_ORG
from workers.configuration import PREFIX
from workers.engines.postgres import EmbeddedPostgres
from workers.state import StartError, StateFolder

_UNREACHABLE = (
    OSError,
    asyncpg.CannotConnectNowError,
    asyncpg.PostgresConnectionError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
)
_HOW_TO_REACH = (
    f"start it, name it in {PREFIX}DATABASE_URL, or name the folder of a running `up` with --data-dir",
    "run `python -m workers init` first, with the same settings",
)


def operators_command(words: Sequence[str]) -> AbstractContextManager[None]:
    """What is written inside the block was asked for by these words of `python -m workers …`."""
    return audited(command_request(words, org=FIRST_ORG, user=_user()))


@contextlib.contextmanager
def on_installation(data_dir: Path | None) -> Iterator[None]:
    """Let a command work on the installation that `up` keeps in a folder, or on that of the environment.

    The process ends with 1 and a sentence when there is none, or when its database does not answer or has no tables.
    """
    try:
        if data_dir is not None:
            os.environ |= _installation(data_dir)
        yield
    except StartError as error:
        _refuse(str(error))
    except _UNREACHABLE as error:
        _refuse(f"the database does not answer ({error}): {_HOW_TO_REACH[0]}")
    except asyncpg.UndefinedTableError:
        _refuse(f"the database is empty: {_HOW_TO_REACH[1]}")


def _installation(data_dir: Path) -> dict[str, str]:
    """The settings by which `up` runs in this folder, as far as commands need them."""
    folder = StateFolder(data_dir)
    secrets, ports = folder.recorded()
    postgres = EmbeddedPostgres(
        folder.postgres,
        port=ports["postgres"],
        password=secrets["database_password"],
        log=folder.logs / "postgres.log",
    )
    told = {"database_url": postgres.url, "secret_key": secrets["secret_key"], "data_dir": str(folder.path)}
    return {f"{PREFIX}{name.upper()}": value for name, value in told.items()}


def _refuse(told: str) -> None:
    typer.echo(told, err=True)
    sys.exit(1)


def _user() -> str:
    """The user of the host; a container may have given its number no name."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"
