"""The operator's commands about the audit log: `python -m workers audit verify|head`.

They need PostgreSQL and nothing else of the server. The log shows that it was tampered with as long as one head of its
chain is kept where whoever can write to the database cannot: `head` prints the newest, control processes log each.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated

import typer

from controlplane.audit.chain import Head, newest_head
from controlplane.audit.verification import Verdict, verify
from controlplane.clock import format_time
from workers.configuration import read_settings
from workers.switches import run_on_database

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look after the audit log.")

PROBLEMS_MAX = 100
"""Told of one verification; where there are more, more telling helps nobody."""


@app.command("verify")
def verify_log(
    head: Annotated[str | None, typer.Option(help="A head that was kept elsewhere and must still be there.")] = None,
) -> None:
    """Recompute the whole chain; exit 1 and tell what was changed, deleted, added, reordered or cut off."""
    try:
        expected = None if head is None else Head.parsed(head)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    kept_for = timedelta(days=read_settings().audit_retention_days)
    verdict = run_on_database(lambda database: verify(database, expected, PROBLEMS_MAX, kept_for=kept_for))
    for found in verdict.tamperings:
        typer.echo(f"{found.where}: {found.told}", err=True)
    if verdict.tamperings:
        typer.echo("the audit log was tampered with: restore it from a backup and compare", err=True)
        raise typer.Exit(1)
    typer.echo(_told(verdict, expected))


@app.command("head")
def print_head() -> None:
    """Print the newest head of the chain, to be kept elsewhere and given to `verify`."""
    typer.echo(str(run_on_database(newest_head)))


def _told(verdict: Verdict, expected: Head | None) -> str:
    lines = [
        f"{verdict.events} events under {verdict.seals} seals are as they were written",
        f"{verdict.unsealed} newer ones are not sealed yet",
    ]
    if verdict.removed_at is not None:
        removed = f"what seal {verdict.checkpoint_seal} and those before it cover is no longer kept"
        lines.append(f"{removed}, since {format_time(verdict.removed_at)}")
    if expected is not None and expected.number < verdict.checkpoint_seal:
        lines.append(f"the head that was given is of seal {expected.number}, which was due to go: keep a newer one")
    return "\n".join([*lines, f"head {verdict.head}"])
