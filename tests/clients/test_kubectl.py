"""kubectl from six years, the oldest as Debian ships it: each of these takes a visibly different path through the API.

What all of them can do is told first; what only some can is the table ABILITIES.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from controlplane.calls.outcomes import CallRules
from controlplane.calls.recovery import LoseAttempt
from tests.api.test_access import key
from tests.fixtures.app import CALL, FUNCTION, listening
from tests.fixtures.calls import succeeded
from tests.fixtures.clients import CLIENT_SECONDS_MAX, SCRIPTS, ClientSide, Finished, fetched
from tests.fixtures.http_worker import start_worker
from workers.client_files import Access, write_kubeconfig
from workers.tls import TlsFiles

PROGRAMS: Mapping[int, str] = {20: "kubectl-debian", 28: "kubectl-v28", 34: "kubectl-v34", 37: ""}
"""The minor versions that are tried, and what tools/clients calls them; the newest comes with a Python package."""
NEWEST = max(PROGRAMS)


def program_of(minor: int) -> Path:
    return fetched(PROGRAMS[minor]) if PROGRAMS[minor] else SCRIPTS / "kubectl"


@dataclass(frozen=True, kw_only=True)
class Ability:
    """A command line that kubectl knows since the minor version `since`. It is run beside a Function f and its manifest
    f.json; what it prints matches `says`, and what an older kubectl has to say about it matches `older`."""

    line: str
    since: int
    says: str
    older: str = "unknown (flag|command)"


# Some are older in kubectl, but no version between two that are tried can be told from the later one.
ABILITIES: Mapping[str, Ability] = {
    "explain a kind": Ability(
        line="explain fn.spec.timeout", since=28, says="FIELD: timeout <string>", older="couldn't find resource"
    ),
    "explain it in openapi/v3 alone": Ability(
        line="explain fn --recursive", since=28, says="status", older="couldn't find resource"
    ),
    "rehearse a create": Ability(
        line="create --dry-run=server -f g.json", since=28, says="server dry run", older="doesn't support dry-run"
    ),
    "rehearse an apply": Ability(
        line="apply --server-side=false --dry-run=server -f f.json",
        since=28,
        says="server dry run",
        older="doesn't support dry-run",
    ),
    "tell what an apply would change": Ability(
        line="diff -f f.json", since=28, says="^$", older="doesn't support dry-run"
    ),
    "wait for a field": Ability(
        line="wait fn/f --for=jsonpath={.status.phase}=Running --timeout=60s",
        since=28,
        says="condition met",
        older="unrecognized condition",
    ),
    "wait for an object that is there": Ability(
        line="wait fn/f --for=create --timeout=60s", since=34, says="condition met", older="unrecognized condition"
    ),
    "read a subresource": Ability(line="get fn f --subresource=status", since=28, says=r"(?m)^f\s"),
    "show the events of an object": Ability(line="events --for function/f", since=28, says=""),
    "ask who one is": Ability(line="auth whoami", since=28, says="usr_"),
    "print what a category holds": Ability(
        line="api-resources --categories=nodus -o name", since=28, says="functions.nodus.dev"
    ),
    "apply on the server": Ability(line="apply --server-side -f g.json", since=20, says="serverside-applied"),
    "ask what one may do": Ability(line="auth can-i create functions", since=20, says="^yes$"),
    "list what one may do": Ability(line="auth can-i --list", since=20, says=r"functions\.nodus\.dev"),
    "read a path": Ability(line="get --raw /apis/nodus.dev/v1", since=20, says="APIResourceList"),
    "list events": Ability(line="get events", since=20, says=""),
    "read the audit log": Ability(
        line="get auditevents --field-selector verb=create,object.kind=Function -o wide",
        since=20,
        says=r"NAME +PRINCIPAL +VERB +OBJECT[^\n]*\naud_\w+ +usr_\w+ +create +function/",
    ),
}


@dataclass(frozen=True)
class Kubectl:
    """One kubectl in the hands of one user."""

    program: Path
    side: ClientSide

    async def __call__(self, line: str, *files: Path) -> str:
        """Run a command line and return what it printed; it must succeed."""
        return (await self.side.run(self.program, *shlex.split(line), *files)).stdout

    async def refused(self, line: str) -> Finished:
        """Run a command line that must fail."""
        done = await self.side.run(self.program, *shlex.split(line), check=False)
        assert done.code != 0, done
        return done

    def write(self, name: str, document: dict[str, Any]) -> Path:
        """A manifest of the user."""
        path = self.side.home / name
        path.write_text(json.dumps(document))
        return path


def manifest(name: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"team": "x"}}
    return {"apiVersion": "nodus.dev/v1", "kind": "App", "metadata": metadata, "spec": spec}


@pytest.fixture(params=PROGRAMS, ids=[f"1.{minor}" for minor in PROGRAMS])
def kubectl(request: pytest.FixtureRequest, client_side: ClientSide) -> Kubectl:
    return Kubectl(program_of(request.param), client_side)


@pytest.fixture
def newest(client_side: ClientSide) -> Kubectl:
    return Kubectl(program_of(NEWEST), client_side)


def rows(table: str) -> list[list[str]]:
    """A printed table without its heading, as words."""
    return [line.split() for line in table.splitlines()[1:]]


async def test_kinds_are_found_by_every_name(kubectl: Kubectl) -> None:
    listed = {row[0]: row for row in rows(await kubectl("api-resources"))}
    assert listed["functioncalls"][1:] == ["fc,call", "nodus.dev/v1", "true", "FunctionCall"]
    assert listed["namespaces"][1:] == ["ns", "v1", "false", "Namespace"]
    assert {"nodus.dev/v1", "authorization.k8s.io/v1", "v1"} <= set((await kubectl("api-versions")).split())
    await kubectl.side.api.function("f")
    for name in ("functions", "function", "fn", "functions.nodus.dev", "functions.v1.nodus.dev"):
        assert [row[0] for row in rows(await kubectl(f"get {name}"))] == ["f"]
    assert "function.nodus.dev/f" in await kubectl("get nodus -o name")
    assert kubectl.side.project in await kubectl("get ns")


async def test_lists_are_shown_in_every_form(kubectl: Kubectl) -> None:
    for name in ("a", "b", "c"):
        await kubectl.side.api.create("apps", {"metadata": {"name": name, "labels": {"n": name}}, "spec": {}})
    assert (await kubectl("get apps")).split("\n")[0].split()[:2] == ["NAME", "PHASE"]
    assert [row[0] for row in rows(await kubectl("get apps --chunk-size=1"))] == ["a", "b", "c"]
    assert [row[0] for row in rows(await kubectl("get apps -l 'n in (a,c)'"))] == ["a", "c"]
    assert [row[0] for row in rows(await kubectl("get apps --field-selector metadata.name!=a"))] == ["b", "c"]
    everywhere = rows(await kubectl("get apps -A -l n"))
    assert [kubectl.side.project, "a"] in [row[:2] for row in everywhere]
    assert await kubectl("get apps -o name") == "app.nodus.dev/a\napp.nodus.dev/b\napp.nodus.dev/c\n"
    assert await kubectl("get app a -o jsonpath={.metadata.labels.n}") == "a"
    assert (await kubectl("get apps -L n")).split("\n")[0].split()[-1] == "N"
    assert "n=b" in await kubectl("get apps --show-labels")
    by_age = "get apps --sort-by=.metadata.creationTimestamp -o custom-columns=NAME:.metadata.name"
    assert len(rows(await kubectl(by_age))) == 3
    assert len(json.loads(await kubectl("get apps -o json"))["items"]) == 3
    assert "kind: App" in await kubectl("get app a -o yaml")
    await kubectl.side.api.function("f")
    wide = (await kubectl("get fn -o wide")).split("\n")[0].split()
    assert wide[-5:] == ["APP", "IMAGE", "GPU", "MIN", "MAX"]


async def test_a_call_tells_why_it_waits_and_what_happened_to_it(kubectl: Kubectl) -> None:
    api = kubectl.side.api
    await api.function("f")
    name = (await api.create("functioncalls", {"metadata": {"generateName": "f-"}, "spec": CALL}))["metadata"]["name"]
    path = f"{api.path}/functioncalls/{name}"
    wait = json.loads(await kubectl(f"get --raw {path}/wait"))
    assert (wait["kind"], wait["status"]["waiting"]) == ("FunctionCallWait", True)
    timeline = json.loads(await kubectl(f"get --raw {path}/timeline"))
    assert [piece["type"] for piece in timeline["status"]["intervals"]] == ["Queued"]
    assert "no worker yet" in await kubectl(f"describe functioncall {name}")
    worker = await start_worker(api)
    assert [call["id"] for call in (await worker.claim())["calls"]] == [name]
    rules, now = CallRules.from_settings(api.core.settings), api.core.clock.now()
    await api.core.writer.write(LoseAttempt(worker.attempt, 1, now, rules))
    assert (await worker.post({"completed": [succeeded(name)]})).status_code == 404
    described = await kubectl(f"describe functioncall {name}")
    assert re.search(r"Warning +LateResultRefused +.*reported Succeeded of dispatch 1", described), described


async def test_objects_are_created_applied_changed_and_deleted(kubectl: Kubectl) -> None:
    first = kubectl.write("a.json", manifest("a"))
    assert "created" in await kubectl("create -f", first)
    taken = kubectl.write("taken.json", manifest("a", description="another"))
    assert "already exists" in (await kubectl.refused(f"create -f {taken}")).stderr
    second = kubectl.write("b.json", manifest("b", description="one"))
    assert "created" in await kubectl("apply -f", second)
    assert "unchanged" in await kubectl("apply -f", second)
    kubectl.write("b.json", manifest("b", description="two"))
    assert "configured" in await kubectl("apply -f", second)
    assert await kubectl("get app b -o jsonpath={.spec.description}") == "two"
    await kubectl("""patch app a --type=merge -p '{"spec":{"description":"merged"}}'""")
    await kubectl("""patch app a --type=json -p '[{"op":"replace","path":"/spec/description","value":"patched"}]'""")
    assert "415" in (await kubectl.refused("patch app a -v=6 -p '{}'")).stderr
    await kubectl("label app a tier=web")
    await kubectl("label app a team-")
    await kubectl("annotate app a note=hello")
    told = json.loads(await kubectl("get app a -o json"))
    assert (told["metadata"]["labels"]["tier"], told["spec"]["description"]) == ("web", "patched")
    assert "team" not in told["metadata"]["labels"]
    told["spec"]["description"] = "replaced"
    assert "replaced" in await kubectl("replace -f", kubectl.write("a.json", told))
    stale = {**told, "spec": {"description": "stale"}}
    assert "Conflict" in (await kubectl.refused(f"replace -f {kubectl.write('stale.json', stale)}")).stderr
    assert "deleted" in await kubectl("delete app a --wait=true --timeout=60s")
    assert "deleted" in await kubectl("delete apps --all")
    assert "not found" in (await kubectl.refused("get app a")).stderr
    assert await kubectl("get app a --ignore-not-found") == ""


async def test_a_missing_thing_is_told_in_the_words_users_know(kubectl: Kubectl) -> None:
    assert 'functions.nodus.dev "nope" not found' in (await kubectl.refused("get fn nope")).stderr
    assert 'namespaces "nope" not found' in (await kubectl.refused("get fn nope -n nope")).stderr
    refused = (await kubectl.refused("get apps --field-selector spec.nope=1")).stderr
    assert "field label not supported: spec.nope" in refused
    assert "doesn't have a resource type" in (await kubectl.refused("get pods")).stderr


async def test_describe_and_wait_see_an_object_and_its_end(kubectl: Kubectl) -> None:
    await kubectl.side.api.function("f")
    described = await kubectl("describe fn f")
    assert re.search(r"Name:\s+f\n", described)
    assert "Events:" in described
    assert "condition met" in await kubectl("wait fn/f --for=condition=Ready --timeout=60s")
    await kubectl.side.api.create("apps", manifest("a"))
    # It tells its requests as they are answered: once it watches, it has seen the object.
    waiting = await kubectl.side.start(kubectl.program, "wait", "app/a", "--for=delete", "--timeout=60s", "-v=6")
    assert waiting.stderr is not None
    async with asyncio.timeout(CLIENT_SECONDS_MAX):
        while b"watch=true" not in (line := await waiting.stderr.readline()):
            assert line, "it ended without a watch"
        await kubectl("delete app a")
        told, errors = await waiting.communicate()
    assert waiting.returncode == 0, (told, errors)
    assert (await kubectl.refused("wait fn/f --for=condition=Nothing --timeout=1s")).stderr


async def test_a_watch_shows_every_change_once(kubectl: Kubectl) -> None:
    api = kubectl.side.api
    await api.create("apps", manifest("a"))
    watching = await kubectl.side.start(kubectl.program, "get", "apps", "-w", "--output-watch-events")
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(CLIENT_SECONDS_MAX):
            heading = (await watching.stdout.readline()).split()
            assert heading[:2] == [b"EVENT", b"NAME"]
            assert (await watching.stdout.readline()).split()[:2] == [b"ADDED", b"a"]
            await api.create("apps", manifest("b"))
            assert (await watching.stdout.readline()).split()[:2] == [b"ADDED", b"b"]
            await kubectl("label app a seen=yes")
            assert (await watching.stdout.readline()).split()[:2] == [b"MODIFIED", b"a"]
            await kubectl("delete app b")
            assert (await watching.stdout.readline()).split()[:2] == [b"DELETED", b"b"]
    finally:
        watching.kill()
        await watching.wait()


@pytest.mark.parametrize("kind", ["app", "function", "functioncall", "attempt", "image", "secret", "project", "event"])
async def test_every_field_of_every_kind_is_explained(newest: Kubectl, kind: str) -> None:
    told = await newest(f"explain {kind} --recursive")
    assert "<empty>" not in told
    assert "metadata\t<ObjectMeta>" in told
    described = await newest(f"explain {kind}.metadata.resourceVersion")
    assert len(described.partition("DESCRIPTION:")[2].strip()) > 10


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("namespace", "phase"),
        ("namespace.status.phase", "Terminating"),
        ("selfsubjectaccessreview", "resourceAttributes"),
        ("selfsubjectaccessreview.status.allowed", "boolean"),
        ("selfsubjectrulesreview", "resourceRules"),
        ("selfsubjectreview", "userInfo"),
        ("tokenreview", "authenticated"),
        ("events", "involvedObject"),
    ],
)
async def test_what_is_served_of_kubernetes_own_groups_is_explained(newest: Kubectl, path: str, field: str) -> None:
    assert field in await newest(f"explain {path} --recursive")


async def test_the_input_of_a_call_is_explained_to_its_leaves(newest: Kubectl) -> None:
    told = await newest("explain functioncall.spec --recursive")
    assert re.search(r"input\t<Payload> -required-\n\s+blob\t<string>", told)
    assert "enum: Running, Cancelled" in told
    assert "DESCRIPTION" in await newest("explain fn.spec.scaling.maxWorkers")


async def test_the_newest_asks_in_protobuf_what_it_may_do(newest: Kubectl, tls_files: TlsFiles, https_url: str) -> None:
    assert (await newest("auth can-i create functions")).strip() == "yes"
    assert (await newest("auth can-i '*' '*'")).strip() == "yes"
    assert "usr_" in await newest("auth whoami")
    listed = await newest("auth can-i --list")
    assert re.search(r"functions\.nodus\.dev\s.*create get list watch", listed)

    scoped = (await key(newest.side.api, ["functions:read"], [newest.side.project]))["Authorization"]
    token = scoped.removeprefix("Bearer ")
    access = Access(api_url="", https_url=https_url, api_key=token, project=newest.side.project)
    write_kubeconfig(newest.side.kubeconfig, access, tls_files.authority)
    assert (await newest("auth can-i get functions")).strip() == "yes"
    for question in ("create functions", "get secrets", "get functions -n default", "delete projects"):
        assert (await newest.refused(f"auth can-i {question}")).stdout.startswith("no")


async def test_a_missing_permission_is_told_in_json_as_well(kubectl: Kubectl) -> None:
    assert (await kubectl.refused("auth can-i create attempts")).stdout.startswith("no")


@pytest.mark.parametrize("minor", PROGRAMS, ids=[f"1.{minor}" for minor in PROGRAMS])
async def test_each_version_can_do_what_it_knows_and_says_so_of_the_rest(client_side: ClientSide, minor: int) -> None:
    """One user runs them all, since what each command costs is mostly the first look at the server."""
    kubectl = Kubectl(program_of(minor), client_side)
    function = {"apiVersion": "nodus.dev/v1", "kind": "Function", "metadata": {"name": "f"}, "spec": FUNCTION}
    path = kubectl.write("f.json", function)
    kubectl.write("g.json", manifest("g"))
    await kubectl("apply -f", path)
    wrong = {}
    for name, ability in ABILITIES.items():
        line = re.sub(r"([fg])\.json", lambda found: str(kubectl.side.home / found[0]), ability.line)
        done = await kubectl.side.run(kubectl.program, *shlex.split(line), check=False)
        if minor >= ability.since:
            right = done.code == 0 and re.search(ability.says, done.stdout.strip())
        else:
            right = done.code != 0 and re.search(ability.older, done.stderr)
        if not right:
            wrong[name] = done
    assert wrong == {}


async def test_a_server_may_be_below_a_path_of_a_proxy(kubectl: Kubectl, tls_files: TlsFiles) -> None:
    """`server: https://host/team/nodus`: kubectl keeps the prefix in every path (R-AUTH-1)."""
    side = kubectl.side
    settings = side.api.deps.settings.model_copy(update={"public_url": "https://proxy/team/nodus/"})
    async with listening(replace(side.api.deps, settings=settings), tls_files) as url:
        access = Access(api_url="", https_url=f"{url}/team/nodus", api_key=side.api.key, project=side.project)
        write_kubeconfig(side.kubeconfig, access, tls_files.authority)
        file = kubectl.write("a.json", manifest("a"))
        assert "created" in await kubectl("apply -f", file)
        assert "unchanged" in await kubectl("apply -f", file)
        assert [row[0] for row in rows(await kubectl("get apps"))] == ["a"]
        assert "not found" in (await kubectl.refused("get fn nope")).stderr
        assert "deleted" in await kubectl("delete app a --timeout=60s")


async def test_a_password_stands_for_a_token_over_plain_http(client_side: ClientSide) -> None:
    """Go clients send no bearer token without TLS (R-AUTH-1)."""
    kubectl = Kubectl(SCRIPTS / "kubectl", client_side)
    await client_side.api.function("f")
    server = client_side.api.url.replace("://", f"://any:{client_side.api.key}@")
    client_side.kubeconfig.write_text("")
    assert "f" in await kubectl(f"get fn --server {server} -n {client_side.project} -o name")
