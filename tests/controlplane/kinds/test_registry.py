from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from controlplane.kinds.registry import BY_PLURAL, KINDS
from controlplane.machinery.kind import ALL_VERBS, READ_VERBS, Kind, Scope, Verb
from controlplane.machinery.meta import is_reserved, select_fields
from tests.fixtures.admission import NOW, ProjectInMemory, call_body, function_body

ROWS = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
ABOUT_PEOPLE = {"Organization", "Member", "Invite", "APIKey", "SSHKey"}
ABOUT_NO_PROJECT = ABOUT_PEOPLE | {"Offering", "BillingAccount", "CreditGrant", "TopUp"}
ABOUT_MONEY = {"BillingAccount", "Budget", "CreditGrant", "TopUp", "Transaction", "UsageRecord"}
SCOPE_WORDS = {**dict.fromkeys(ABOUT_MONEY, "billing"), "Invite": "members"}
"""Of kinds whose scopes are not called as they are."""
ONE_OR_NONE = {"BillingAccount", "TopUp"}
"""Kinds with at most one object, which is named and not selected."""
READABLE_BY_ALL = {"Attempt", "Event", "Offering"}
VERBS = {
    # Made by operators.
    "Organization": READ_VERBS | {Verb.PATCH, Verb.UPDATE},
    # Each delete is judged by the object.
    "Member": ALL_VERBS - {Verb.DELETE_COLLECTION},
    "APIKey": ALL_VERBS - {Verb.DELETE_COLLECTION},
    "SSHKey": ALL_VERBS - {Verb.DELETE_COLLECTION},
    # Another one is made instead of changing it.
    "Invite": READ_VERBS | {Verb.CREATE, Verb.DELETE},
    # No object of these is stored, so none is watched; some verbs answer that no payment is taken.
    "BillingAccount": {Verb.GET, Verb.LIST, Verb.PATCH},
    "CreditGrant": {Verb.GET, Verb.LIST},
    "TopUp": {Verb.GET, Verb.LIST, Verb.CREATE},
    "Quota": {Verb.GET, Verb.LIST},
    "Transaction": {Verb.GET, Verb.LIST},
    "UsageRecord": {Verb.GET, Verb.LIST},
    # Written by the server alone, and too much for a watch of it to be of use to anybody.
    "AuditEvent": {Verb.GET, Verb.LIST},
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "App": {"metadata": {"name": "hello"}, "spec": {}},
    "Function": function_body(),
    "FunctionCall": call_body(),
    "Image": {"metadata": {"name": "img-1"}, "spec": {"base": "nodus/python:3.11"}},
    "Secret": {"metadata": {"name": "hf"}, "spec": {}},
    "Project": {"metadata": {"name": "default"}, "spec": {}},
    "Organization": {"metadata": {"name": "acme"}, "spec": {}},
    "ServiceAccount": {"metadata": {"name": "ci"}, "spec": {"description": "builds"}},
    "Member": {"metadata": {"name": "ada"}, "spec": {"email": "ada@example.com"}},
    "Budget": {"metadata": {"name": "team"}, "spec": {"limitUSD": "50"}},
}
WRITTEN_BY_THE_SERVER: dict[str, dict[str, Any]] = {
    "Attempt": {
        "metadata": {
            "name": "att_1",
            "creationTimestamp": "2026-11-29T11:17:42Z",
            "ownerReferences": [{"kind": "Function", "name": "square"}],
        },
        "spec": {"slot": "0", "epoch": 1},
        "status": {"phase": "Running"},
    },
    "APIKey": {
        "metadata": {"name": "ci", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"scopes": ["apps:read"]},
        "status": {"phase": "Ready", "prefix": "nodus_abcdef", "scopes": ["apps:read"], "projects": ["*"]},
    },
    "Quota": {
        "metadata": {"name": "project-ml", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"project": "ml", "limits": {"workers": "4"}},
        "status": {"used": {"workers": "1"}},
    },
    "Invite": {
        "metadata": {"name": "ada", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"email": "ada@example.com", "role": "Member"},
        "status": {"phase": "Pending", "expirationTime": "2026-12-06T11:17:42Z"},
    },
    "SSHKey": {
        "metadata": {"name": "laptop", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"publicKey": "ssh-ed25519 AAAA"},
        "status": {"user": "usr_1", "fingerprint": "SHA256:abc"},
    },
    "Event": {
        "metadata": {"name": "evt_1", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "type": "Normal",
        "reason": "Started",
        "message": "a worker started",
        "involvedObject": {"kind": "Function", "namespace": "default", "name": "square"},
        "lastTime": "2026-11-29T11:17:42Z",
    },
    "BillingAccount": {
        "metadata": {"name": "default", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"autoRecharge": {"enabled": False}},
        "status": {"availableUSD": "5.00", "monthToDate": {"spentUSD": "1.00"}},
    },
    "CreditGrant": {
        "metadata": {"name": "welcome", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"amountUSD": "5.00", "source": "Operator"},
        "status": {"spentUSD": "1.00", "remainingUSD": "4.00"},
    },
    "TopUp": {
        "metadata": {"name": "top", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"amountUSD": "5.00"},
        "status": {},
    },
    "Transaction": {
        "metadata": {"name": "txn_1", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "time": "2026-11-29T11:17:42Z",
        "type": "Capture",
        "amountUSD": "-0.02",
        "reference": {"kind": "FunctionCall", "name": "c"},
        "project": "default",
    },
    "UsageRecord": {
        "metadata": {"name": "use_1", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "periodStartTime": "2026-11-29T11:17:42Z",
        "object": {"kind": "Function", "name": "square"},
        "meter": "ComputeSeconds",
        "project": "default",
    },
    "AuditEvent": {
        "metadata": {"name": "aud_1", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "time": "2026-11-29T11:17:42Z",
        "verb": "create",
        "principal": {"kind": "User", "name": "usr_1"},
        "object": {"kind": "Function", "name": "square"},
        "outcome": {"code": 201, "reason": "Created"},
        "project": "default",
    },
    "Offering": {
        "metadata": {"name": "l4-24g-x1-us", "creationTimestamp": "2026-11-29T11:17:42Z"},
        "spec": {"count": 1, "interruptible": False, "host": {"cpu": "8", "memory": "32Gi"}},
        "status": {"availability": "Unavailable", "availableNow": 0, "priceUSDPerHour": {"from": "0.80"}},
    },
}


@ROWS
def test_a_row_names_its_kind_consistently(kind: Kind) -> None:
    assert KINDS[kind.kind] is BY_PLURAL[kind.plural] is kind
    assert re.fullmatch(r"[A-Z][A-Za-z]+", kind.kind)
    assert kind.plural == f"{kind.singular}s"
    assert kind.list_kind == f"{kind.kind}List"
    assert kind.description.endswith(".")
    assert kind.categories == ("nodus",)


def test_names_that_commands_take_are_unambiguous() -> None:
    names = [name for kind in KINDS.values() for name in {kind.plural, kind.singular, *kind.short_names}]
    assert len(names) == len(set(names))
    prefixes = [kind.uid_prefix for kind in KINDS.values()]
    assert len(prefixes) == len(set(prefixes))


@ROWS
def test_a_row_says_who_may_read_it(kind: Kind) -> None:
    word = SCOPE_WORDS.get(kind.kind, kind.plural)
    assert kind.scope_resource == (None if kind.kind in READABLE_BY_ALL else word)
    assert kind.verbs == VERBS.get(kind.kind, READ_VERBS if kind.kind in READABLE_BY_ALL else ALL_VERBS)


@ROWS
def test_a_row_has_a_name_column_an_age_column_and_a_way_to_select(kind: Kind) -> None:
    names = [column.name for column in kind.columns]
    assert {"Name", "Age"} <= set(names)
    assert len(names) == len(set(names))
    assert all(column.description.endswith(".") for column in kind.columns)
    assert kind.selectable_fields or kind.kind in ONE_OR_NONE


@ROWS
def test_a_row_has_models_for_everything_it_holds(kind: Kind) -> None:
    assert (kind.flat is None) is (kind.spec is not None)
    assert (kind.spec is None) is (kind.status is None)


@ROWS
def test_paths_in_a_row_lead_to_fields_of_its_models(kind: Kind) -> None:
    models = {"spec": kind.spec, "status": kind.status}
    for path in (*kind.selectable_fields, *kind.immutable_fields, *kind.quiet_fields):
        root, *steps = path.split(".")
        model = models.get(root, kind.flat)
        assert model is not None
        first = steps[0] if root in models else root
        assert first in {field.alias for field in model.model_fields.values()}, path
    for entry in kind.unoffered:
        assert entry.field.startswith("spec.")
        assert entry.advice.endswith(".")


@ROWS
async def test_every_cell_of_a_new_object_can_be_shown(kind: Kind, memory: ProjectInMemory) -> None:
    if kind.kind in WRITTEN_BY_THE_SERVER:
        document = WRITTEN_BY_THE_SERVER[kind.kind]
    else:
        await memory.create("Function", function_body())
        document = await memory.create(kind.kind, EXAMPLES[kind.kind])
    for column in kind.columns:
        cell = column.read(document, NOW + timedelta(minutes=5))
        assert isinstance(cell, (str, int)), column.name
        assert not isinstance(cell, bool), column.name
        if column.type == "integer":
            assert isinstance(cell, int), column.name
    assert bool(select_fields(kind, document)) is bool(kind.selectable_fields)


def test_every_kind_has_an_example_here() -> None:
    assert EXAMPLES.keys() | WRITTEN_BY_THE_SERVER.keys() == KINDS.keys()


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_status_of_a_new_object_is_one_of_its_model(name: str, memory: ProjectInMemory) -> None:
    await memory.create("Function", function_body())
    document = await memory.create(name, EXAMPLES[name])
    kind = KINDS[name]
    assert kind.status is not None
    assert kind.status.model_validate(document["status"]).to_wire() == document["status"]


def test_what_is_about_no_single_project_belongs_to_the_organisation() -> None:
    of_org = {kind.kind for kind in KINDS.values() if kind.scope is Scope.ORG}
    assert of_org == {"Project", "Event", "Offering", "Quota", "AuditEvent", *ABOUT_PEOPLE, *ABOUT_MONEY}


def test_what_outlives_its_delete_is_held_by_a_finalizer() -> None:
    held = {kind.kind: kind.deletion_finalizer for kind in KINDS.values() if kind.deletion_finalizer}
    assert held == {"Function": "nodus.dev/workers", "Project": "nodus.dev/contents"}


def test_what_is_served_below_an_object_only_is_named_and_has_a_model() -> None:
    views = [item for kind in KINDS.values() for item in kind.subresources if item.status is not None]
    assert {item.kind for item in views} == {
        "FunctionCallWait",
        "FunctionCallTimeline",
        "FunctionCallCharges",
        "FunctionCharges",
    }
    assert not {item.kind for item in views} & KINDS.keys()
    assert {item.verbs for item in views} == {("get",)}


def test_logs_are_served_where_something_prints() -> None:
    served = {kind.kind for kind in KINDS.values() for item in kind.subresources if item.name == "log"}
    assert served == {"App", "Function", "FunctionCall", "Attempt", "Image"}
    for kind in KINDS.values():
        for subresource in kind.subresources:
            assert {*subresource.verbs} <= {verb.value for verb in Verb}


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
def test_every_object_tells_the_project_that_limited_keys_are_judged_by(kind: Kind) -> None:
    own = {"metadata.namespace"} if kind.scope is Scope.PROJECT else {"metadata.name", *kind.selectable_fields}
    assert kind.project_field in ({""} if kind.kind in ABOUT_NO_PROJECT else own)


@ROWS
def test_a_field_repeated_as_a_label_can_be_selected_and_the_label_is_the_servers(kind: Kind) -> None:
    assert set(kind.labelled_fields) <= set(kind.selectable_fields)
    assert all(is_reserved(label) for label in kind.labelled_fields.values())


@ROWS
def test_a_key_of_some_projects_writes_nothing_that_is_the_organisations(kind: Kind) -> None:
    writes = kind.verbs - READ_VERBS
    # Projects are judged by their name, keys by what they are given and whose they are.
    judged = {
        "Project": writes - {Verb.CREATE},
        "APIKey": {Verb.CREATE, Verb.DELETE},
        "SSHKey": writes,
    }.get(kind.kind, set())
    if kind.scope is Scope.ORG:
        assert writes - judged <= kind.verbs_of_all_projects
