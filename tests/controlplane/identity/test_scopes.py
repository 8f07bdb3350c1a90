"""The grammar of scopes as a table."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.identity.scopes import (
    require,
    require_claim,
    require_download,
    require_node,
    require_upload,
    require_worker,
)
from controlplane.machinery.kind import Verb
from tests.fixtures.principals import BINDING, WORKER, user

NODE = Principal(kind=PrincipalKind.NODE, org="", id="node", label="node", scopes=frozenset({"nodes:connect"}))


@pytest.mark.parametrize(
    ("scope", "resource", "verb", "allowed"),
    [
        ("*", "functions", Verb.DELETE, True),
        ("*", None, Verb.DELETE, True),
        ("*:read", "functions", Verb.WATCH, True),
        ("*:read", "functions", Verb.CREATE, False),
        ("*:read", "auditevents", Verb.LIST, False),
        ("auditevents:read", "auditevents", Verb.LIST, True),
        ("functions:read", "functions", Verb.GET, True),
        ("functions:read", "functions", Verb.LIST, True),
        ("functions:read", "apps", Verb.GET, False),
        ("functions:read", "functions", Verb.PATCH, False),
        ("functions:write", "functions", Verb.CREATE, True),
        ("functions:write", "functions", Verb.DELETE_COLLECTION, True),
        ("functions:write", "functions", Verb.GET, False),
        ("functions:claim", "functions", Verb.GET, False),
        ("apps:read", None, Verb.LIST, True),
        ("apps:write", None, Verb.DELETE, False),
        ("functions", "functions", Verb.GET, False),
    ],
)
def test_a_scope_covers_what_the_grammar_says(scope: str, resource: str | None, verb: Verb, allowed: bool) -> None:
    if allowed:
        require(user(scope), resource, verb, "default")
    else:
        with pytest.raises(ApiError) as refused:
            require(user(scope), resource, verb, "default")
        assert refused.value.reason is Reason.FORBIDDEN
        wanted = "read" if verb in (Verb.GET, Verb.LIST, Verb.WATCH) else "write"
        assert refused.value.details["missingScope"] == f"{resource or '*'}:{wanted}"


def test_another_project_is_forbidden_whatever_the_scopes() -> None:
    require(user("*", projects=("a", "b")), "functions", Verb.GET, "b")
    with pytest.raises(ApiError) as refused:
        require(user("*", projects=("a", "b")), "functions", Verb.GET, "c")
    assert refused.value.reason is Reason.FORBIDDEN


def test_a_list_over_all_projects_asks_for_the_scope_only() -> None:
    require(user("*:read", projects=("a",)), "functions", Verb.LIST, None)


@pytest.mark.parametrize(
    ("resource", "verb", "allowed"),
    [
        ("functions", Verb.GET, True),
        ("functions", Verb.PATCH, False),
        ("functioncalls", Verb.CREATE, True),
        ("functioncalls", Verb.WATCH, True),
        ("apps", Verb.GET, True),
        ("apps", Verb.DELETE, False),
        ("secrets", Verb.GET, False),
        ("projects", Verb.GET, False),
        (None, Verb.LIST, False),
    ],
)
def test_a_worker_may_do_what_a_worker_does_and_nothing_else(resource: str | None, verb: Verb, allowed: bool) -> None:
    if allowed:
        require(WORKER, resource, verb, "default")
    else:
        with pytest.raises(ApiError):
            require(WORKER, resource, verb, "default")
    with pytest.raises(ApiError):
        require(WORKER, resource, verb, "other")


def test_a_worker_stores_and_reads_blobs_of_its_project() -> None:
    require_upload(WORKER, "default")
    require_download(WORKER, "default")
    for ask in (require_upload, require_download):
        with pytest.raises(ApiError):
            ask(WORKER, "other")


def test_blobs_need_a_scope_on_something_that_refers_to_blobs() -> None:
    require_upload(user("apps:write"), "default")
    require_download(user("functioncalls:read"), "default")
    with pytest.raises(ApiError) as refused:
        require_upload(user("secrets:write", "*:read"), "default")
    assert refused.value.details["missingScope"] == "functioncalls:write"


def test_only_a_functions_own_worker_may_claim_its_calls() -> None:
    assert require_claim(WORKER, "default", "f") == BINDING
    for principal, project, function in (
        (WORKER, "default", "g"),
        (WORKER, "other", "f"),
        (user("*"), "default", "f"),
        (NODE, "default", "f"),
    ):
        with pytest.raises(ApiError) as refused:
            require_claim(principal, project, function)
        assert refused.value.reason is Reason.WORKER_NOT_ALLOWED


def test_a_revoked_worker_may_still_be_told_so_on_claims_and_gets_401_elsewhere() -> None:
    revoked = replace(WORKER, revoked=True)
    assert require_claim(revoked, "default", "f") == BINDING
    for ask in (
        lambda: require(revoked, "functions", Verb.GET, "default"),
        lambda: require_upload(revoked, "default"),
        lambda: require_worker(revoked),
    ):
        with pytest.raises(ApiError) as refused:
            ask()
        assert refused.value.reason is Reason.UNAUTHORIZED


def test_routes_of_workers_and_nodes_answer_nobody_else() -> None:
    require_node(NODE)
    assert require_worker(WORKER) == BINDING
    for principal in (user("*"), WORKER):
        with pytest.raises(ApiError):
            require_node(principal)
    for principal in (user("*"), NODE):
        with pytest.raises(ApiError):
            require_worker(principal)
    with pytest.raises(ApiError):
        require(NODE, None, Verb.LIST, None)
