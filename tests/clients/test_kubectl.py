"""kubectl, the newest and the one of Debian: years apart, they take visibly different paths through the API."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.api.test_access import key
from tests.fixtures.app import FUNCTION
from tests.fixtures.clients import SCRIPTS, ClientSide, Finished, fetched
from tests.fixtures.eventually import eventually
from workers.client_files import Access, write_kubeconfig
from workers.tls import TlsFiles

NEWEST, DEBIAN = "newest", "debian"


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


@pytest.fixture(params=[NEWEST, DEBIAN])
def kubectl(request: pytest.FixtureRequest, client_side: ClientSide) -> Kubectl:
    return Kubectl(SCRIPTS / "kubectl" if request.param == NEWEST else fetched("kubectl-debian"), client_side)


@pytest.fixture
def newest(client_side: ClientSide) -> Kubectl:
    return Kubectl(SCRIPTS / "kubectl", client_side)


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
    assert "deleted" in await kubectl("delete app a --wait=true --timeout=20s")
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
    assert "condition met" in await kubectl("wait fn/f --for=condition=Ready --timeout=20s")
    await kubectl.side.api.create("apps", manifest("a"))
    watches = kubectl.side.api.core.feed.subscriptions
    before = len(watches)
    waiting = asyncio.create_task(kubectl("wait app/a --for=delete --timeout=30s"))
    await eventually(lambda: len(watches) > before)
    await kubectl("delete app a")
    await waiting
    assert (await kubectl.refused("wait fn/f --for=condition=Nothing --timeout=1s")).stderr


async def test_a_watch_shows_every_change_once(kubectl: Kubectl) -> None:
    api = kubectl.side.api
    await api.create("apps", manifest("a"))
    watching = await kubectl.side.start(kubectl.program, "get", "apps", "-w", "--output-watch-events")
    assert watching.stdout is not None
    try:
        async with asyncio.timeout(30):
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


async def test_debians_asks_in_json_what_it_may_do(client_side: ClientSide) -> None:
    kubectl = Kubectl(fetched("kubectl-debian"), client_side)
    assert (await kubectl("auth can-i create functions")).strip() == "yes"
    assert (await kubectl.refused("auth can-i create attempts")).stdout.startswith("no")
    assert "functions.nodus.dev" in await kubectl("auth can-i --list")


@pytest.mark.parametrize(
    "line",
    [
        "wait fn/f --for=jsonpath={.status.phase}=Running --timeout=20s",
        "get fn f --subresource=status",
        "diff -f f.json",
        "apply --server-side=false --dry-run=server -f f.json",
        "events --for function/f",
        "get --raw /apis/nodus.dev/v1",
        "api-resources --categories=nodus -o name",
        "get events",
    ],
)
async def test_what_only_the_newest_asks_for_is_served(newest: Kubectl, line: str) -> None:
    function = {"apiVersion": "nodus.dev/v1", "kind": "Function", "metadata": {"name": "f"}, "spec": FUNCTION}
    path = newest.write("f.json", function)
    await newest("apply -f", path)
    words: Sequence[str] = shlex.split(line.replace("f.json", str(path)))
    done = await newest.side.run(newest.program, *words)
    assert done.code == 0


async def test_a_password_stands_for_a_token_over_plain_http(client_side: ClientSide) -> None:
    """Go clients send no bearer token without TLS (R-AUTH-1)."""
    kubectl = Kubectl(SCRIPTS / "kubectl", client_side)
    await client_side.api.function("f")
    server = client_side.api.url.replace("://", f"://any:{client_side.api.key}@")
    client_side.kubeconfig.write_text("")
    assert "f" in await kubectl(f"get fn --server {server} -n {client_side.project} -o name")
