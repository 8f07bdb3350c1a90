"""The operator's commands about who may do what: `python -m workers admin …`.

They need PostgreSQL and nothing else of the server, and go through the one write path with the checks of the API, so
they may be used while everything runs; what they make is what the API shows and changes. Only making and deleting an
organisation is for operators alone: whoever asks the API belongs to one already. Keys are told once, on standard
output.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Annotated, Any

import orjson
import typer

from controlplane.audit.commands import tell_refusal
from controlplane.clock import format_time
from controlplane.errors import ApiError
from controlplane.identity.bootstrap import FIRST_MEMBER, FIRST_ORG, bootstrap
from controlplane.identity.ending import counts
from controlplane.identity.organizations import organizations
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.kinds.api_key import API_KEY
from controlplane.kinds.member import MEMBER
from controlplane.kinds.roles import Role
from controlplane.machinery.kind import Document, Kind
from controlplane.resources.answers import CreateOptions, DeleteOptions
from controlplane.resources.organization_end import OrganizationEnd, was_deleted
from controlplane.store.contract import Key, Selection
from workers.arguments import check_name, duration, require_holder
from workers.configuration import read_settings
from workers.tables import show_table
from workers.wiring import Core, open_core

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Look after organisations, members and keys.")

Org = Annotated[str, typer.Option(help="The organisation.")]
Name = Annotated[str, typer.Argument(help="A name of lower case letters, digits and '-'.")]
_PAGE, _PAGE_BYTES = 500, 8 << 20
"""What is read at once."""
_LOOK_SECONDS = 0.5
"""Between two looks at what is left of an organisation."""


@app.command("create-org")
def create_org(name: Name) -> None:
    """Make an organisation with a project `default` and a Member `admin`, and tell the key of that Owner once."""
    check_name(name)

    async def make(core: Core) -> str:
        if await was_deleted(core.database, name):
            raise typer.BadParameter(
                f'the name "{name}" was of an organisation that was deleted, whose ledger and audit log the new one '
                f"would show: choose another, or let it go on with them after `switches restore {name}`"
            )
        made = await bootstrap(core.writer, core.settings, core.clock, name)
        if made.token is None:
            raise typer.BadParameter(f'the organisation "{name}" exists already')
        return made.token

    typer.echo(f"NODUS_API_KEY={_run(make)}")


@app.command("orgs")
def orgs() -> None:
    """List the organisations."""

    async def read(core: Core) -> list[str]:
        return await organizations(core.database)

    show_table(("Organisation",), [(name,) for name in _run(read)])


@app.command("delete-org")
def delete_org(
    name: Annotated[str, typer.Argument(help="The organisation.")],
    yes: Annotated[bool, typer.Option("--yes", help="Do it; without this, tell what would go.")] = False,
    wait: Annotated[str, typer.Option(help="How long to wait for running calls and workers to end.")] = "10m",
) -> None:
    """Delete an organisation with everything in it. Its ledger and audit log stay, and so does the suspension of its
    name. A run that was cut short is repeated and goes on."""
    if name == FIRST_ORG:
        raise typer.BadParameter(f'"{name}" is the operator\'s own organisation, without which the server does not run')
    wait_seconds = duration(wait).total_seconds()

    async def what_goes(core: Core) -> Sequence[tuple[str, int]]:
        await require_holder(core.database, name)
        return await counts(core.database, name)

    async def end(core: Core) -> Sequence[Key]:
        await require_holder(core.database, name)
        ending = OrganizationEnd(core.database, core.writer, core.resources.deleter, name)
        await ending.begin()
        until = time.monotonic() + wait_seconds
        while left := await ending.go_on():
            if time.monotonic() > until:
                return left
            await asyncio.sleep(_LOOK_SECONDS)
        await ending.finish()
        return ()

    if not yes:
        show_table(("Kind", "Objects"), [(kind, str(count)) for kind, count in _run(what_goes)])
        typer.echo(
            f'this and all blobs of "{name}" would go; its ledger and audit log stay: add --yes to do it', err=True
        )
        raise typer.Exit(1)
    if left := _run(end):
        told = ", ".join(f"{key.kind} {key.project or name}/{key.name}" for key in left)
        typer.echo(f"not everything is gone after {wait}: {told}. Run it again; it goes on from here", err=True)
        raise typer.Exit(1)
    typer.echo(f"{name} is deleted; its ledger and audit log stay, and its name is suspended")


@app.command("create-member")
def create_member(
    name: Name,
    role: Annotated[Role, typer.Option(help="What they may do.")] = Role.MEMBER,
    email: Annotated[str | None, typer.Option(help="Where they are reached.")] = None,
    org: Org = FIRST_ORG,
) -> None:
    """Make a Member; `create-key --member` then makes their first key."""
    spec = {"role": role.value} | ({"email": email} if email else {})
    made = _run(lambda core: _create(core, MEMBER, org, name, spec))
    typer.echo(f"{made['metadata']['name']} {made['spec']['role']} {made['status']['user']}")


@app.command("set-role")
def set_role(name: Name, role: Role, org: Org = FIRST_ORG) -> None:
    """Change the role of a Member; it reaches all their keys within a second."""

    def changed(stored: Document) -> Document:
        return {**stored, "spec": {**stored["spec"], "role": role.value}}

    async def change(core: Core) -> None:
        await require_holder(core.database, org)
        key = Key(MEMBER.kind, org, "", name)
        await core.resources.changer.change(key, changed, _operator(org), body=None, dry_run=False)

    _run(change)
    typer.echo(f"{name} {role.value}")


@app.command("members")
def members(org: Org = FIRST_ORG) -> None:
    """List the members of an organisation."""
    found = _run(lambda core: _list(core, MEMBER, org))
    show_table(
        ("Name", "Role", "Email", "User"),
        [
            (each["metadata"]["name"], each["spec"]["role"], each["spec"].get("email", ""), each["status"]["user"])
            for each in found
        ],
    )


@app.command("create-key")
def create_key(
    name: Name,
    member: Annotated[str, typer.Option(help="The Member it belongs to, whose role bounds it.")] = FIRST_MEMBER,
    scope: Annotated[list[str] | None, typer.Option(help="What it may do; by default whatever the role may.")] = None,
    project: Annotated[list[str] | None, typer.Option(help="Projects it may reach; by default all.")] = None,
    expires: Annotated[str | None, typer.Option(help="How long it lives, such as 720h; by default for ever.")] = None,
    org: Org = FIRST_ORG,
) -> None:
    """Make a key of a Member and tell it once."""
    lifetime = None if expires is None else duration(expires)

    async def make(core: Core) -> Document:
        spec: Document = {"member": member}
        spec |= {"scopes": scope} if scope else {}
        spec |= {"projects": project} if project else {}
        spec |= {"expirationTime": format_time(core.clock.now() + lifetime)} if lifetime else {}
        return await _create(core, API_KEY, org, name, spec)

    made = _run(make)
    if "token" not in made["status"]:
        raise typer.BadParameter(f'the key "{name}" exists already; its token cannot be told again')
    typer.echo(f"NODUS_API_KEY={made['status']['token']}")


@app.command("keys")
def keys(org: Org = FIRST_ORG) -> None:
    """List the keys of an organisation, without what opens anything."""
    show_table(
        ("Name", "Prefix", "Scopes", "Projects", "Expires", "Created", "Last used"),
        [_key_row(found) for found in _run(lambda core: _list(core, API_KEY, org))],
    )


def _key_row(key: Document) -> tuple[str, ...]:
    metadata, spec, status = key["metadata"], key["spec"], key["status"]
    return (
        metadata["name"],
        status.get("prefix", ""),
        ",".join(status["scopes"]),
        ",".join(status["projects"]),
        spec.get("expirationTime", "never"),
        metadata["creationTimestamp"],
        status.get("lastUsedTime", "never"),
    )


@app.command("revoke-key")
def revoke_key(name: Name, org: Org = FIRST_ORG) -> None:
    """End a key, and within a second whatever it has open."""

    async def end(core: Core) -> None:
        await require_holder(core.database, org)
        await core.resources.deleter.delete(Key(API_KEY.kind, org, "", name), DeleteOptions())

    _run(end)
    typer.echo(f"{name} is revoked")


def _run(do: Callable[[Core], Coroutine[Any, Any, Any]]) -> Any:  # noqa: ANN401 - what `do` returns
    """Do it on an open core; a refusal is told as the API would tell it."""

    async def run() -> Any:  # noqa: ANN401
        async with _core() as core:
            try:
                return await do(core)
            except ApiError as error:
                await tell_refusal(core.writer, core.clock, error)
                raise

    try:
        return asyncio.run(run())
    except ApiError as error:
        typer.echo(f"{error.message}\nfix: {error.fix}", err=True)
        raise typer.Exit(1) from None


@contextlib.asynccontextmanager
async def _core() -> AsyncIterator[Core]:
    async with open_core(read_settings()) as core:
        yield core


async def _create(core: Core, kind: Kind, org: str, name: str, spec: Document) -> Document:
    await require_holder(core.database, org)
    body = {"metadata": {"name": name}, "spec": spec}
    answer = await core.resources.creator.create(kind, "", body, _operator(org), CreateOptions())
    made: Document = orjson.loads(answer.body)
    return made


async def _list(core: Core, kind: Kind, org: str) -> list[Document]:
    await require_holder(core.database, org)
    found: list[Document] = []
    selection = Selection(kind=kind.kind, org=org, project="")
    after: Key | None = None
    while True:
        page = await core.objects.list_page(selection, limit=_PAGE, bytes_max=_PAGE_BYTES, after=after)
        found += [orjson.loads(document) for document in page.documents]
        if page.next_key is None:
            return found
        after = page.next_key


def _operator(org: str) -> Principal:
    """Whoever can reach the database with the server's settings may do everything."""
    everything = frozenset({"*"})
    return Principal(
        kind=PrincipalKind.USER, org=org, id="operator", label="operator", scopes=everything, projects=everything
    )
