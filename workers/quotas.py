"""The operator's quotas: `python -m workers quotas list|set|clear`.

They need PostgreSQL and nothing else of the server, and hold from the next create on. Setting one twice changes
nothing, so a command whose answer was lost is repeated without harm.
"""

from __future__ import annotations

from typing import Annotated

import typer

from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.limits.quotas import Counter, Quota, clear_quota, holder, read_quotas, set_quota, unit_of
from controlplane.store.database import Database
from workers.arguments import require_holder
from workers.switches import run_on_database
from workers.tables import show_table

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Bound what organisations and their projects may have."
)

AMOUNT_MAX = 1 << 60
"""Beyond whatever anybody has, in bytes as well, and sums of some fit the database's integers."""

Counted = Annotated[Counter, typer.Argument(help="What is counted.")]
Org = Annotated[str, typer.Option(help="The organisation.")]
Project = Annotated[str, typer.Option(help="One project of it; without one the whole organisation is bounded.")]


@app.command("list")
def list_quotas(org: Org = FIRST_ORG) -> None:
    """Tell the quotas of an organisation and its projects."""
    found = run_on_database(lambda database: read_quotas(database, org))
    show_table(
        ("Counter", "At most", "Of"),
        [(each.counter, unit_of(each.counter).text(each.amount_max), holder(org, each.project)) for each in found],
    )


@app.command("set")
def set_(
    counter: Counted,
    amount: Annotated[str, typer.Argument(help="The most that there may be: a number, or 500m cpus, or 64Gi memory.")],
    org: Org = FIRST_ORG,
    project: Project = "",
) -> None:
    """Let there be no more than this (QuotaExceeded); what there is stays."""
    amount_max = _amount(counter, amount)
    quota = Quota(org=org, project=project, counter=counter, amount_max=amount_max)

    async def bound(database: Database) -> None:
        await require_holder(database, org, project)
        await set_quota(database, quota)

    run_on_database(bound)
    typer.echo(f"{counter}: at most {unit_of(counter).text(amount_max)}")


@app.command()
def clear(counter: Counted, org: Org = FIRST_ORG, project: Project = "") -> None:
    """Count no longer."""
    was_set = run_on_database(lambda database: clear_quota(database, org, project, counter))
    typer.echo(f"{counter}: no quota" if was_set else f"{counter}: there was no quota")


def _amount(counter: Counter, text: str) -> int:
    try:
        amount = unit_of(counter).parse(text)
    except ValueError:
        amount = -1
    if not 0 <= amount <= AMOUNT_MAX:
        raise typer.BadParameter('must be a number, or a quantity such as "500m" or "64Gi", and not negative')
    return amount
