"""Every route asked by every kind of caller, and the exact code that each must get (docs/decisions/0029).

What a request needs and what a role has are written down here once more, by hand: a table that were derived from the
one it tests could not fail.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import pytest
from starlette.routing import Route

from api.app import create_app
from controlplane.identity.tokens import INSERT_API_KEY, TokenHasher, new_api_key
from controlplane.kinds.registry import KINDS
from controlplane.kinds.roles import Role
from controlplane.machinery.discovery import REVIEWS
from controlplane.machinery.kind import Kind, Scope, Verb
from tests.fixtures.app import ROOT, ServedApi
from tests.fixtures.http_worker import start_worker

WORDS = {
    "apps": "apps",
    "functions": "functions",
    "functioncalls": "functioncalls",
    "attempts": None,
    "images": "images",
    "secrets": "secrets",
    "projects": "projects",
    "events": None,
    "offerings": None,
    "organizations": "organizations",
    "members": "members",
    "invites": "members",
    "apikeys": "apikeys",
    "serviceaccounts": "serviceaccounts",
    "sshkeys": "sshkeys",
    "quotas": "quotas",
    "budgets": "billing",
    "billingaccounts": "billing",
    "creditgrants": "billing",
    "topups": "billing",
    "transactions": "billing",
    "usagerecords": "billing",
    "auditevents": "auditevents",
}
"""The resource word of each kind's scopes; None for what every key of the organisation may read and none may write."""
OTHER_SCOPES = {
    ("functions", "calls"): "functioncalls:write",
    ("functions", "claims"): "claim",
    ("functions", "cancels"): "claim",
}
"""What subresources need that differs from their kind."""
_OWN = ("apikeys", "sshkeys")
_WORK = ("apps", "functions", "functioncalls", "images", "secrets", *_OWN)
WRITES = {
    Role.VIEWER: _OWN,
    Role.MEMBER: _WORK,
    Role.ADMIN: (*_WORK, "projects", "members", "serviceaccounts", "billing"),
    Role.OWNER: (*_WORK, "projects", "members", "serviceaccounts", "billing", "organizations"),
}
WHOLE_ORGANISATION = {
    "projects": ("create",),
    "organizations": ("patch", "update"),
    "members": ("create", "patch", "update", "delete"),
    "invites": ("create", "delete"),
    "apikeys": ("get", "list", "watch", "patch", "update"),
    "budgets": ("create", "patch", "update", "delete", "deletecollection"),
    "billingaccounts": ("list", "patch"),
    "creditgrants": ("get", "list"),
    "topups": ("create",),
}
"""What a key for some projects may not do, whatever its scopes."""
WORKER_SCOPES = ("functions:read", "functioncalls:read", "functioncalls:write", "apps:read")
BLOBS = ("functioncalls", "apps", "functions", "images")
UNPAID = 503
"""What needs a card is answered so once the caller's right to it was looked at."""
ANSWERS = {
    ("billingaccounts", "patch"): UNPAID,
    ("billingaccounts", "sessions"): UNPAID,
    ("billingaccounts", "redemptions"): UNPAID,
    ("billingaccounts", "deals"): UNPAID,
    ("topups", "create"): UNPAID,
}
READS = ("get", "list", "watch")
JUDGED = ("apikeys", "invites", "members", "sshkeys")
"""Kinds of which each object is judged: whoever may not read them learns from no write whether it is there."""


@dataclass(frozen=True)
class Asked:
    """One request: what it needs, and what it is answered when nothing is missing, which harms nothing.

    `needs` is a scope, or one of: public, any (credential), key (of the organisation), claim, worker, node, and
    blobs:read or blobs:write.
    """

    route: str
    method: str
    path: str
    needs: str
    answer: int
    project: bool = False
    """Whether it is about the project of the test."""
    whole_org: bool = False
    body: Any = None
    judged: str = ""
    """The plural of an object that is judged before it is written."""


def of_kind(kind: Kind) -> Iterator[Asked]:
    word, is_project = WORDS[kind.plural], kind.plural == "projects"
    below = f"{ROOT}/namespaces/{{project}}" if kind.scope is Scope.PROJECT else ROOT
    shape = "namespaces/{project}/{plural}" if kind.scope is Scope.PROJECT else "{plural}"
    path, inside = f"{below}/{kind.plural}", kind.scope is Scope.PROJECT

    def needs(verb: str) -> str:
        access = "read" if verb in READS else "write"
        return f"{word}:{access}" if word else ("key" if access == "read" else "*")

    requests = {
        "create": ("POST", path, {"kind": "Wrong"}, 400, "{plural}"),
        "list": ("GET", path, None, 200, "{plural}"),
        "watch": ("GET", f"{path}?watch=true&timeoutSeconds=soon", None, 400, "{plural}"),
        "deletecollection": ("DELETE", f"{path}?labelSelector=no%3Dsuch", None, 200, "{plural}"),
        "get": ("GET", f"{path}/absent", None, 404, "{plural}/{name}"),
        "patch": ("PATCH", f"{path}/absent", {}, 404, "{plural}/{name}"),
        "update": ("PUT", f"{path}/absent", {}, 404, "{plural}/{name}"),
        "delete": ("DELETE", f"{path}/absent", None, 404, "{plural}/{name}"),
    }
    for verb in Verb:
        method, where, body, answer, _ = requests[verb.value]
        served = verb in kind.verbs
        one = verb.value in ("get", "patch", "update", "delete")
        yield Asked(
            f"{shape}{'/{name}' if one else ''}",
            method,
            where,
            needs(verb.value) if served else "any",
            ANSWERS.get((kind.plural, verb.value), answer) if served else 405,
            project=served and (inside or (is_project and one)),
            whole_org=served and verb.value in WHOLE_ORGANISATION.get(kind.plural, ()),
            body=body,
            judged=kind.plural if served and one and kind.plural in JUDGED and verb.value not in READS else "",
        )
    if inside:
        yield Asked("{plural}", "GET", f"{ROOT}/{kind.plural}", needs("list"), 200)
    methods = {"get": "GET", "create": "POST", "patch": "PATCH", "update": "PUT"}
    for sub in kind.served_subresources:
        for word_of_verb in sub.verbs:
            wanted = OTHER_SCOPES.get((kind.plural, sub.name)) or needs(word_of_verb)
            sent: Any = {"items": [{}]} if sub.name == "calls" else None if word_of_verb == "get" else {}
            yield Asked(
                f"{shape}/{{name}}/{{subresource}}",
                methods[word_of_verb],
                f"{path}/absent/{sub.name}",
                wanted,
                ANSWERS.get((kind.plural, sub.name), 404),
                project=inside or is_project,
                whole_org=word_of_verb in WHOLE_ORGANISATION.get(kind.plural, ()),
                body=sent,
                judged=kind.plural if kind.plural in JUDGED and word_of_verb not in READS else "",
            )


DIGEST = "0" * 64
BESIDE = [
    Asked("/healthz", "GET", "/healthz", "public", 200),
    Asked("/readyz", "GET", "/readyz", "public", 200),
    Asked("/version", "GET", "/version", "public", 200),
    Asked("/docs/errors/{code}", "GET", "/docs/errors/NotFound", "public", 200),
    Asked("/blobs/v1/data/{org}/{project}/{digest}", "GET", f"/blobs/v1/data/o/p/{DIGEST}", "public", 403),
    Asked("/blobs/v1/data/{org}/{project}/{digest}", "PUT", f"/blobs/v1/data/o/p/{DIGEST}", "public", 403),
    Asked("/.well-known/nodus-configuration", "GET", "/.well-known/nodus-configuration", "public", 200),
    Asked("/auth/device", "GET", "/auth/device", "public", 200),
    # What the body lacks is a credential, a code, or what the link must name.
    Asked("/auth/device", "POST", "/auth/device", "public", 401, body={}),
    Asked("/cli-auth", "GET", "/cli-auth", "public", 400),
    Asked("/cli-auth", "POST", "/cli-auth", "public", 400, body={}),
    Asked("/auth/device/code", "POST", "/auth/device/code", "public", 422, body={}),
    Asked("/auth/device/token", "POST", "/auth/device/token", "public", 400, body={}),
    Asked("/auth/cli-keys/redeem", "POST", "/auth/cli-keys/redeem", "public", 422, body={}),
    Asked("/auth/whoami", "GET", "/auth/whoami", "any", 200),
    Asked("/self", "GET", "/self", "worker", 200),
    Asked("/api/v1/namespaces", "GET", "/api/v1/namespaces", "projects:read", 200),
    Asked("/api/v1/namespaces/{project}", "GET", "/api/v1/namespaces/absent", "projects:read", 404, project=True),
    Asked("/api/v1/events", "GET", "/api/v1/events", "key", 200),
    Asked("/api/v1/namespaces/{project}/events", "GET", "/api/v1/namespaces/{project}/events", "key", 200, True),
    *(
        Asked("/metrics/v1/namespaces/{project}/api/v1/query", method, path, "functions:read", 200, True)
        for method in ("GET", "POST")
        for path in ("/metrics/v1/namespaces/{project}/api/v1/query",)
    ),
    *(
        Asked(path, "POST", path, "any", 400, body=[])
        for path in (f"/apis/{review.group_version}/{review.plural}" for review in REVIEWS)
    ),
    Asked(
        "/blobs/v1/namespaces/{project}/uploads",
        "POST",
        "/blobs/v1/namespaces/{project}/uploads",
        "blobs:write",
        400,
        True,
        body=[],
    ),
    Asked(
        "/blobs/v1/namespaces/{project}/blobs/{digest}",
        "GET",
        f"/blobs/v1/namespaces/{{project}}/blobs/sha256:{DIGEST}",
        "blobs:read",
        404,
        True,
    ),
]


def everything(served: list[Route]) -> list[Asked]:
    found = [*BESIDE, *(asked for kind in KINDS.values() for asked in of_kind(kind))]
    known = {asked.route for asked in found}
    for route in served:
        if route.path.startswith("/node/"):
            path = route.path.replace("{uid}", "absent").replace("{name}", "absent")
            found.append(Asked(route.path, "POST", path, "node", 400, body=[]))
        elif "{" not in route.path and route.path not in known:
            # Discovery and OpenAPI tell everybody the same.
            found.append(Asked(route.path, "GET", route.path, "any", 200))
    return found


@dataclass(frozen=True)
class Caller:
    """A kind of caller. `role` and `scopes` for keys; the rest says what it is instead."""

    role: Role | None = None
    scopes: tuple[str, ...] = ("*",)
    org: str = "default"
    projects: tuple[str, ...] = ("*",)
    is_known: bool = True
    is_process: bool = False
    """A worker or a node: `scopes` are all that it has."""

    def expected(self, asked: Asked) -> int:
        """The code, in the order of the rule."""
        if asked.needs == "public":
            return asked.answer
        if not self.is_known:
            return 401
        if not self.has(asked.needs):
            return 403
        if "*" not in self.projects and (asked.project or asked.whole_org):
            return 403
        if asked.judged and not self.reads(asked.judged):
            return 403
        if self.org != "default" and asked.project and asked.answer != 405:
            return 404 if asked.needs != "key" or "events" not in asked.path else 200
        return asked.answer

    def reads(self, plural: str) -> bool:
        is_limited = "*" not in self.projects and "get" in WHOLE_ORGANISATION.get(plural, ())
        return self.has(f"{WORDS[plural]}:read") and not is_limited

    def has(self, needs: str) -> bool:
        if needs in ("claim", "worker", "node") or self.is_process:
            return needs in self.scopes
        if needs in ("any", "key"):
            return True
        if needs.startswith("blobs:"):
            return any(self.has(needs.replace("blobs", word)) for word in BLOBS)
        word, _, access = needs.partition(":")
        if needs == "auditevents:read" and self.role not in (Role.ADMIN, Role.OWNER):
            return False
        reads = access == "read" and needs != "auditevents:read"
        by_scope = "*" in self.scopes or needs in self.scopes or (reads and "*:read" in self.scopes)
        return by_scope and (access == "read" or (self.role is not None and word in WRITES[self.role]))


CALLERS = {
    "without a credential": Caller(is_known=False),
    "with a wrong key": Caller(is_known=False),
    "with an expired key": Caller(Role.OWNER, is_known=False),
    "with a revoked key": Caller(Role.OWNER, is_known=False),
    "a Viewer": Caller(Role.VIEWER),
    "a Member": Caller(Role.MEMBER),
    "an Admin": Caller(Role.ADMIN),
    "an Owner": Caller(Role.OWNER),
    "an Owner's key to read": Caller(Role.OWNER, ("*:read",)),
    "an Owner's key to write Functions": Caller(Role.OWNER, ("functions:write",)),
    "a Viewer's key to write Functions": Caller(Role.VIEWER, ("functions:write",)),
    "an Owner's key to claim": Caller(Role.OWNER, ("functions:claim",)),
    "an Owner's key to write keys": Caller(Role.OWNER, ("apikeys:write", "sshkeys:write")),
    "a Member's key to write keys": Caller(Role.MEMBER, ("apikeys:write", "sshkeys:write")),
    "an Admin's key to write Members": Caller(Role.ADMIN, ("members:write",)),
    "an Owner's key of another project": Caller(Role.OWNER, projects=("elsewhere",)),
    "an Owner of another organisation": Caller(Role.OWNER, org="another"),
}


async def header(project: ServedApi, name: str, caller: Caller) -> dict[str, str]:
    if name == "without a credential":
        return {"Authorization": ""}
    token = new_api_key()
    if caller.role is not None:
        now = project.core.clock.now()
        hashed = TokenHasher(project.core.settings.secret_key).hash(token)
        await project.core.database.execute(
            INSERT_API_KEY, hashed, caller.org, str(uuid.uuid4()), "k", list(caller.scopes), list(caller.projects),
            now, now - timedelta(seconds=1) if "expired" in name else None, caller.role, None,
        )  # fmt: skip
        if "revoked" in name:
            await project.core.database.execute("UPDATE tokens SET revoked_at = $2 WHERE hash = $1", hashed, now)
    return {"Authorization": f"Bearer {token}"}


async def ask(project: ServedApi, asked: Asked, headers: dict[str, str]) -> int:
    kind = {"Content-Type": "application/merge-patch+json"} if asked.method == "PATCH" else {}
    path = asked.path.replace("{project}", project.project_name)
    response = await project.client.request(asked.method, path, json=asked.body, headers={**headers, **kind})
    if response.status_code == 403 and asked.needs.count(":") == 1 and "blobs" not in asked.needs:
        word, _, _ = asked.needs.partition(":")
        assert response.json()["details"]["missingScope"] in {asked.needs, f"{word}:read" if asked.judged else ""}
    return response.status_code


def routes(project: ServedApi) -> list[Route]:
    app: Any = create_app(project.deps)
    return [route for route in app._app.router.routes if isinstance(route, Route)]


async def differing(project: ServedApi, caller: Caller, headers: dict[str, str]) -> list[tuple[str, str, int, int]]:
    found = []
    for asked in everything(routes(project)):
        code, expected = await ask(project, asked, headers), caller.expected(asked)
        if code != expected:
            found.append((asked.method, asked.path, code, expected))
    return found


@pytest.mark.parametrize(("name", "caller"), CALLERS.items())
async def test_every_route_answers_a_caller_as_the_table_says(project: ServedApi, name: str, caller: Caller) -> None:
    wrong = await differing(project, caller, await header(project, name, caller))
    assert wrong == [], "\n".join(map(str, wrong))


WORKER = Caller(
    scopes=("any", "worker", "blobs:read", "blobs:write", *WORKER_SCOPES), projects=("its own",), is_process=True
)


async def test_every_route_answers_a_worker_as_the_table_says(project: ServedApi) -> None:
    await project.function()
    worker = await start_worker(project)
    headers = {"Authorization": f"Bearer {worker.token}"}
    its_own = replace(WORKER, projects=("*",))
    assert await differing(project, its_own, headers) == []
    elsewhere = await project.client.post(f"{ROOT}/projects", json={"metadata": {"generateName": "other-"}})
    other = replace(project, project_name=elsewhere.json()["metadata"]["name"])
    assert await differing(other, WORKER, headers) == []


@pytest.mark.parametrize("change", ["finished_at = now()", "epoch = epoch + 1"])
async def test_a_worker_whose_attempt_ended_or_was_replaced_is_told_so_by_its_claims_alone(
    project: ServedApi, change: str
) -> None:
    await project.function()
    worker = await start_worker(project)
    await project.core.database.execute(f"UPDATE attempts SET {change} WHERE uid = $1", worker.attempt)
    headers = {"Authorization": f"Bearer {worker.token}"}
    found = {
        (asked.method, asked.path): await ask(project, asked, headers)
        for asked in everything(routes(project))
        if asked.needs not in ("public", "claim", "node") and asked.answer != 405
    }
    discovery = {path for (_, path), code in found.items() if code == 200}
    assert {path.split("/")[1] for path in discovery} <= {"api", "apis", "openapi"}, discovery
    assert {code for (_, path), code in found.items() if path not in discovery} == {401}
    for plural in ("claims", "cancels"):
        answer = await project.client.post(f"{project.path}/functions/f/{plural}", json={}, headers=headers)
        assert answer.status_code == 404


async def test_every_route_answers_a_node_as_the_table_says(project: ServedApi) -> None:
    node = Caller(scopes=("any", "node"), projects=("*",), is_process=True)
    token = project.core.settings.node_token.get_secret_value()
    assert await differing(project, node, {"Authorization": f"Bearer {token}"}) == []


async def test_the_walk_leaves_out_no_route_and_no_kind(project: ServedApi) -> None:
    served = routes(project)
    asked = everything(served)
    walked = {one.route if one.route.startswith("/") else f"{ROOT}/{one.route}" for one in asked}
    deeper = {path for path in (route.path for route in served) if path.endswith("/{rest:path}")}
    assert {route.path for route in served} - deeper - walked == set()
    assert {kind.plural for kind in KINDS.values()} == WORDS.keys()
