"""The operator's switches: `python -m workers switches list|pause|resume|suspend|restore`.

They need PostgreSQL and nothing else of the server, and work in every process within a second. Turning a switch twice
changes nothing but its reason, so a command whose answer was lost is repeated without harm.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Annotated, TypeVar

import typer

from controlplane.clock import format_time
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.kinds.registry import BY_PLURAL, KINDS
from controlplane.limits.switches import Switch, read_switches, turn_off, turn_on
from controlplane.machinery.kind import Verb
from controlplane.store.database import Database
from workers.arguments import require_holder
from workers.configuration import read_settings
from workers.tables import show_table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Stop new objects of a kind, or the compute of an organisation."
)

Result = TypeVar("Result")

KindName = Annotated[str, typer.Argument(help='The kind, such as FunctionCall or "functioncalls".')]
OrgName = Annotated[str, typer.Argument(help="The organisation.")]
Reason = Annotated[str, typer.Option(help="Why, told to everybody who meets it.")]


@app.command("list")
def list_switches() -> None:
    """Tell which switches are on."""
    show_table(
        ("Switch", "Of", "Since", "Reason"),
        [(each.switch, each.subject, format_time(each.since), each.reason) for each in run_on_database(read_switches)],
    )


@app.command()
def pause(kind: KindName, reason: Reason = "maintenance") -> None:
    """Refuse new objects of a kind with AdmissionsPaused; what exists goes on."""
    name = _kind(kind)
    run_on_database(lambda database: turn_on(database, Switch.PAUSE, name, reason))
    typer.echo(f"new {KINDS[name].plural} are paused")


@app.command()
def resume(kind: KindName) -> None:
    """Take new objects of a kind again."""
    name = _kind(kind)
    was_on = run_on_database(lambda database: turn_off(database, Switch.PAUSE, name))
    typer.echo(f"new {KINDS[name].plural} are admitted" if was_on else f"new {KINDS[name].plural} were not paused")


@app.command()
def suspend(org: OrgName = FIRST_ORG, reason: Reason = "suspended by an operator") -> None:
    """Run nothing for an organisation: its calls wait, its workers leave, new work gets ComputeSuspended."""

    async def turn(database: Database) -> None:
        await require_holder(database, org)
        await turn_on(database, Switch.SUSPEND, org, reason)

    run_on_database(turn)
    typer.echo(f"the compute of {org} is suspended")


@app.command()
def restore(org: OrgName = FIRST_ORG) -> None:
    """Run what an organisation asks for again."""
    was_on = run_on_database(lambda database: turn_off(database, Switch.SUSPEND, org))
    typer.echo(f"the compute of {org} is restored" if was_on else f"the compute of {org} was not suspended")


def run_on_database(do: Callable[[Database], Awaitable[Result]]) -> Result:
    """What `do` gives on the database of this installation."""

    async def run() -> Result:
        database = Database(read_settings().database_url, pool_size=1)
        await database.open()
        try:
            return await do(database)
        finally:
            await database.close()

    return asyncio.run(run())


def _kind(word: str) -> str:
    """The kind behind its name or plural; only what clients create can be paused."""
    found = KINDS.get(word) or BY_PLURAL.get(word)
    if found is None or Verb.CREATE not in found.verbs:
        offered = ", ".join(kind.kind for kind in KINDS.values() if Verb.CREATE in kind.verbs)
        raise typer.BadParameter(f"must be one of {offered}")
    return found.kind
