"""The operator's commands about money: `python -m workers ledger verify|balance|grant|limit|refund`.

They need PostgreSQL and nothing else of the server. What moves money goes through the one write path, so it may be done
while everything runs, and every command that moves some takes a name for it: the same name again changes nothing, so a
command whose answer was lost is repeated without harm; a grant of the same name that is another is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Annotated

import typer

from controlplane.audit.commands import tell_refusal
from controlplane.errors import ApiError
from controlplane.identity.bootstrap import FIRST_ORG
from controlplane.kinds.registry import KINDS
from controlplane.ledger.accounts import Balance, read_balance, set_floor
from controlplane.ledger.credits import GrantCredit, RefundCharge
from controlplane.ledger.invariants import Breach, verify
from controlplane.machinery.quantities import format_money, parse_money
from controlplane.store.changes import ChangeFeed
from controlplane.store.database import Database
from controlplane.store.server_clock import DatabaseClock
from controlplane.store.writer import Writer
from workers.arguments import check_name, duration, require_holder
from workers.configuration import read_settings

app = typer.Typer(
    no_args_is_help=True, add_completion=False, help="Look after the money that the server keeps account of."
)

Org = Annotated[str, typer.Option(help="The organisation.")]
Amount = Annotated[str, typer.Argument(help='Decimal USD such as "25.00".')]


@app.command("verify")
def verify_ledger() -> None:
    """Recount everything; exit 1 and tell what does not balance."""
    breaches = asyncio.run(_verify())
    for breach in breaches:
        typer.echo(f"{breach.rule}, but {breach.told}", err=True)
    if breaches:
        raise typer.Exit(1)
    typer.echo("the ledger balances")


@app.command()
def balance(org: Org = FIRST_ORG) -> None:
    """What an organisation was granted, was charged, has on hold and has left."""
    typer.echo(_told(asyncio.run(_balance(org))))


@app.command()
def grant(
    amount: Amount,
    name: Annotated[str, typer.Option(help="Names this grant for good.")],
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "granted by an operator",
    expires: Annotated[str | None, typer.Option(help="How long it is good, such as 720h; by default for ever.")] = None,
    org: Org = FIRST_ORG,
) -> None:
    """Give an organisation credit. `nodus get creditgrants` then tells what became of it."""
    micro_usd = _micro_usd(amount)
    check_name(name)
    lifetime = None if expires is None else duration(expires)
    typer.echo(_told(asyncio.run(_write(GrantCredit(org, name, micro_usd, reason, lifetime), org))))


@app.command()
def refund(
    charge: Annotated[str, typer.Argument(help="The id of the transaction that charged it.")],
    amount: Amount,
    name: Annotated[str, typer.Option(help="Names this refund of the charge for good.")],
    reason: Annotated[str, typer.Option(help="Why, for people.")] = "given back by an operator",
    org: Org = FIRST_ORG,
) -> None:
    """Give back a charge, or a part of it."""
    micro_usd = _micro_usd(amount)
    typer.echo(_told(asyncio.run(_write(RefundCharge(charge, name, micro_usd, reason), org))))


@app.command()
def limit(
    org: Org = FIRST_ORG,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Let it hold whatever it wants.")] = False,
) -> None:
    """Let an organisation hold no more than it has credit for; the first start leaves it unlimited."""
    typer.echo(_told(asyncio.run(_limit(org, None if unlimited else 0))))


async def _verify() -> list[Breach]:
    async with _database() as database:
        return await verify(database)


async def _balance(org: str) -> Balance:
    async with _database() as database:
        await require_holder(database, org)
        return await read_balance(database, org)


async def _limit(org: str, floor_micro_usd: int | None) -> Balance:
    async with _database() as database:
        await require_holder(database, org)
        await set_floor(database, org, floor_micro_usd)
        return await read_balance(database, org)


async def _write(mutation: GrantCredit | RefundCharge, org: str) -> Balance:
    settings = read_settings()
    async with contextlib.AsyncExitStack() as closing:
        database = await closing.enter_async_context(_database())
        await require_holder(database, org)
        clock, feed = DatabaseClock(database), ChangeFeed(database, settings)
        writer = Writer(database=database, clock=clock, kinds=KINDS, feed=feed, settings=settings)
        for part in (clock, feed, writer):
            await part.start()
            closing.push_async_callback(part.stop)
        try:
            await writer.write(mutation)
        except ApiError as error:
            await tell_refusal(writer, clock, error)
            typer.echo(f"{error.message}\nfix: {error.fix}", err=True)
            raise typer.Exit(1) from None
        return await read_balance(database, org)


@contextlib.asynccontextmanager
async def _database() -> AsyncIterator[Database]:
    database = Database(read_settings().database_url, pool_size=2)
    await database.open()
    try:
        yield database
    finally:
        await database.close()


def _micro_usd(amount: str) -> int:
    try:
        micro_usd = parse_money(amount)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if micro_usd == 0:
        raise typer.BadParameter("must be more than zero")
    return micro_usd


def _told(balance: Balance) -> str:
    limit = "none" if balance.floor_micro_usd is None else format_money(balance.floor_micro_usd)
    return "\n".join(
        f"{name:<10} {value}"
        for name, value in (
            ("granted", format_money(balance.granted_micro_usd)),
            ("charged", format_money(balance.charged_micro_usd)),
            ("held", format_money(balance.held_micro_usd)),
            ("available", format_money(balance.available_micro_usd)),
            ("floor", limit),
        )
    )
