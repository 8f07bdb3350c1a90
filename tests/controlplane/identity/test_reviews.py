"""What a caller is told that it may do, beside what it then may."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.errors import ApiError
from controlplane.identity.principal import Principal
from controlplane.identity.reviews import Attributes, decide, decide_url, rules, user_info
from controlplane.identity.scopes import require_object
from controlplane.kinds.registry import BY_PLURAL
from controlplane.machinery.kind import GROUP, Kind, Scope, Verb
from tests.fixtures.principals import WORKER, user

ADMIN = user("*")
READER = user("functions:read", projects=("default",))


def asked(text: str, namespace: str = "default", name: str = "") -> Attributes:
    """`get functions.nodus.dev/log` as attributes."""
    verb, _, thing = text.partition(" ")
    resource, _, subresource = thing.partition("/")
    plural, dot, group = resource.partition(".")
    return Attributes(
        verb=verb,
        group=group if dot else GROUP,
        resource=plural,
        subresource=subresource,
        namespace=namespace,
        name=name,
    )


@pytest.mark.parametrize(
    ("caller", "attributes", "allowed"),
    [
        (ADMIN, asked("create functions"), True),
        (ADMIN, asked("* *"), True),
        (ADMIN, asked("* *.*", namespace=""), True),
        (ADMIN, asked("create attempts"), False),
        (ADMIN, asked("fly functions"), False),
        (ADMIN, asked("get pods."), False),
        (ADMIN, asked("get functions.apps"), False),
        (ADMIN, asked("get functions.*"), True),
        (ADMIN, asked("get functions/log"), True),
        (ADMIN, asked("get functions/nothing"), False),
        (ADMIN, asked("create functions/claims", name="f"), False),
        (ADMIN, asked("create projects", namespace=""), True),
        (ADMIN, asked("get namespaces."), True),
        (ADMIN, asked("delete namespaces."), False),
        (ADMIN, asked("create selfsubjectreviews.authentication.k8s.io"), True),
        (ADMIN, asked("get selfsubjectreviews.authentication.k8s.io"), False),
        (READER, asked("get functions"), True),
        (READER, asked("watch functions"), True),
        (READER, asked("* functions"), False),
        (READER, asked("get *"), False),
        (READER, asked("patch functions"), False),
        (READER, asked("get functions/status"), True),
        (READER, asked("create functions/calls"), False),
        (READER, asked("get functions", namespace="other"), False),
        (READER, asked("list functions", namespace=""), True),
        (READER, asked("get functions", namespace=""), False),
        (READER, asked("get attempts"), True),
        (user("*", projects=("default",)), asked("create projects"), False),
        (user("*", projects=("default",)), asked("delete projects"), False),
        (user("*", projects=("default",)), asked("delete projects", name="default"), True),
        (user("*", projects=("default",)), asked("delete projects", name="other"), False),
        (user("*", projects=("default",)), asked("list projects"), True),
        (user("functioncalls:write"), asked("create functions/calls"), True),
        # The audit log is not among what a scope for all reads covers.
        (user("*:read"), asked("get *"), False),
        (user("*:read", "auditevents:read"), asked("get *"), True),
        (user("*:read"), asked("list auditevents"), False),
        (user("*:read"), asked("list events."), True),
        (WORKER, asked("create functions/claims", name="f"), True),
        (WORKER, asked("create functions/claims", name="g"), False),
        (WORKER, asked("get attempts"), False),
        (replace(WORKER, revoked=True), asked("get functions"), False),
    ],
)
def test_reviews_know_scopes_projects_kinds_and_verbs(caller: Principal, attributes: Attributes, allowed: bool) -> None:
    decision = decide(caller, attributes, BY_PLURAL)
    assert decision.allowed is allowed, decision.reason
    assert decision.reason


@pytest.mark.parametrize("kind", BY_PLURAL.values(), ids=lambda kind: kind.plural)
@pytest.mark.parametrize("caller", [ADMIN, READER, user("*:read"), user("secrets:write"), WORKER])
def test_a_review_says_what_the_request_would_meet(caller: Principal, kind: Kind) -> None:
    for verb in Verb:
        for project in ("default", "other"):
            try:
                require_object(caller, kind, verb, project if kind.scope is Scope.PROJECT else "", project)
                met = verb in kind.verbs
            except ApiError:
                met = False
            told = decide(caller, asked(f"{verb.value} {kind.plural}", project, project), BY_PLURAL)
            assert told.allowed is met, (verb, project, told)


def test_the_rules_of_a_project_are_what_each_question_would_answer() -> None:
    for caller in (ADMIN, READER, WORKER):
        for rule in rules(caller, "default", BY_PLURAL):
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    [group] = rule["apiGroups"]
                    [name] = rule.get("resourceNames", [""])
                    question = asked(f"{verb} {resource}", name=name)
                    assert decide(caller, replace(question, group=group), BY_PLURAL).allowed
    told = rules(READER, "default", BY_PLURAL)
    assert {
        "verbs": ["get", "list", "watch"],
        "apiGroups": [GROUP],
        "resources": ["functions", "attempts", "events", "offerings"],
    } in [rule | {"resources": rule["resources"]} for rule in told]
    assert {
        "verbs": ["create"],
        "apiGroups": [GROUP],
        "resources": ["functions/claims"],
        "resourceNames": ["f"],
    } in rules(WORKER, "default", BY_PLURAL)
    assert not [rule for rule in rules(READER, "other", BY_PLURAL) if "functions" in rule["resources"]]


@pytest.mark.parametrize(
    ("path", "verb", "allowed"),
    [("/apis", "get", True), ("/apis/nodus.dev/v1", "get", True), ("/logs", "get", False), ("/apis", "post", False)],
)
def test_paths_outside_of_objects_can_be_read(path: str, verb: str, allowed: bool) -> None:
    assert decide_url(path, verb).allowed is allowed


def test_a_caller_is_told_its_name_scopes_and_projects() -> None:
    info = user_info(READER)
    assert (info["username"], info["uid"]) == ("usr_u", "u")
    assert info["extra"]["nodus.dev/scopes"] == ["functions:read"]
    assert info["extra"]["nodus.dev/projects"] == ["default"]
