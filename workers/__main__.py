"""The operator's command: `python -m workers up|api|control|node|init|health|ledger|admin|audit|switches|quotas`.

Each command imports only what it runs, since a process should not pay for the others' libraries.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Annotated

import typer
import uvloop

from workers.configuration import read_operator_key, read_settings
from workers.heap import loading
from workers.logs import configure_logging
from workers.names import ProcessName

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,  # a log wants the traceback itself
    help="Run nodus-server, whole or one process of it.",
)


@app.command()
def up(
    data_dir: Annotated[Path, typer.Option(help="Where all state lives; made when it does not exist.")],
    port: Annotated[int | None, typer.Option(help="Port of the http API; a free one when not given.")] = None,
    example: Annotated[Path | None, typer.Option(help="Run this file with `nodus run` once everything is up.")] = None,
    tls: Annotated[
        bool, typer.Option("--tls", help="Tell the SDK and CLI the https address, with whom to trust.")
    ] = False,
) -> None:
    """Run everything on this machine, in the foreground, on embedded engines."""
    with loading():
        from workers.up import UpOptions, run_up

    sys.exit(run_up(UpOptions(data_dir=data_dir, port=port, example=example, tls=tls)))


@app.command()
def api() -> None:
    """Run one API process; settings come from the environment."""
    with loading():
        from workers.api import serve_api
        from workers.state import StartError

    configure_logging()
    try:
        uvloop.run(serve_api(read_settings()))
    except StartError as error:
        typer.echo(str(error), err=True)
        sys.exit(1)


@app.command()
def control() -> None:
    """Run one control process: workflows, and the activities that touch SQL."""
    with loading():
        from workers.control import run_control

    configure_logging()
    uvloop.run(run_control(read_settings()))


@app.command()
def node() -> None:
    """Run the node of this host: it starts and watches sandboxed workers."""
    with loading():
        from workers.node import run_node

    configure_logging()
    uvloop.run(run_node(read_settings()))


@app.command()
def init(
    key_file: Annotated[
        Path | None, typer.Option(help="Keep the admin key in this file instead of printing it.")
    ] = None,
) -> None:
    """Bring the database to the current schema; at the first start make the admin key and print it once."""
    with loading():
        from workers.initialise import initialise

    try:
        operator_key = read_operator_key()
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    token = asyncio.run(initialise(read_settings(), key_file, operator_key))
    if token is not None and key_file is None:
        typer.echo(f"NODUS_API_KEY={token}")


_PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}
"""Of commands whose own words are the business of another module."""
DataDir = Annotated[
    Path | None, typer.Option(help="The folder of a running `up`, to work on it; else what the environment names.")
]


@app.command(context_settings=_PASSED_ON)
def ledger(context: typer.Context, data_dir: DataDir = None) -> None:
    """Look after money: verify, balance, grant, limit, refund."""
    with loading():
        from workers.ledger import app as commands

    _run(commands, "ledger", context.args, data_dir)


@app.command(context_settings=_PASSED_ON)
def admin(context: typer.Context, data_dir: DataDir = None) -> None:
    """Look after organisations, members and keys."""
    with loading():
        from workers.admin import app as commands

    _run(commands, "admin", context.args, data_dir)


@app.command(context_settings=_PASSED_ON)
def audit(context: typer.Context, data_dir: DataDir = None) -> None:
    """Look after the audit log: verify, head."""
    with loading():
        from workers.audit import app as commands

    _run(commands, "audit", context.args, data_dir)


@app.command(context_settings=_PASSED_ON)
def switches(context: typer.Context, data_dir: DataDir = None) -> None:
    """Stop new objects of a kind, or an organisation's compute: list, pause, resume, suspend, restore."""
    with loading():
        from workers.switches import app as commands

    _run(commands, "switches", context.args, data_dir)


@app.command(context_settings=_PASSED_ON)
def quotas(context: typer.Context, data_dir: DataDir = None) -> None:
    """Bound what organisations and their projects may have: list, set, clear."""
    with loading():
        from workers.quotas import app as commands

    _run(commands, "quotas", context.args, data_dir)


@app.command()
def health(process: ProcessName) -> None:
    """Exit 0 when the process of this host works, 1 when it does not."""
    from workers.health import is_healthy

    sys.exit(0 if asyncio.run(is_healthy(process, read_settings())) else 1)


def _run(commands: typer.Typer, name: str, words: list[str], data_dir: Path | None) -> None:
    """Run commands that may change something; the audit log tells whose they were."""
    from workers.operators import on_installation, operators_command

    with on_installation(data_dir), operators_command([name, *words]):
        commands(words, prog_name=f"python -m workers {name}")


if __name__ == "__main__":
    app()
