from __future__ import annotations

import copy
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.documents import document_for_create, document_for_update, value_at
from controlplane.machinery.kind import Document
from tests.fixtures.admission import (
    PROJECT,
    ProjectInMemory,
    call_body,
    causes,
    function_body,
    function_spec,
)

FUNCTION, CALL, APP = KINDS["Function"], KINDS["FunctionCall"], KINDS["App"]


def stored_function(**fields: Any) -> Document:
    return ProjectInMemory().add(
        {**document_for_create(FUNCTION, function_body(**fields), project=PROJECT), "status": {"phase": "Running"}}
    )


def stored_call(**fields: Any) -> Document:
    return ProjectInMemory().add(
        {**document_for_create(CALL, call_body(timeout="300s", **fields), project=PROJECT), "status": {}}
    )


def test_a_new_object_says_what_it_is_and_has_no_status() -> None:
    body = {**function_body(), "status": {"phase": "Failed"}, "kind": "Function", "apiVersion": "nodus.dev/v1"}
    document = document_for_create(FUNCTION, body, project=PROJECT)
    assert list(document) == ["apiVersion", "kind", "metadata", "spec"]
    assert document["kind"] == "Function"


@pytest.mark.parametrize(
    "field", [{"kind": "App"}, {"apiVersion": "nodus.dev/v1beta1"}, {"apiVersion": "v1"}, {"kind": 1}]
)
def test_a_body_of_another_kind_is_a_bad_request(field: dict[str, Any]) -> None:
    with pytest.raises(ApiError) as error:
        document_for_create(FUNCTION, {**function_body(), **field}, project=PROJECT)
    assert error.value.reason is Reason.BAD_REQUEST


def test_problems_of_metadata_spec_and_top_level_are_told_together() -> None:
    body = {"metadata": {"name": "A"}, "spec": function_spec(python="2.7"), "data": {}}
    with pytest.raises(ApiError) as error:
        document_for_create(FUNCTION, body, project=PROJECT)
    assert set(causes(error)) == {"metadata.name", "spec.python", "data"}


def test_sending_back_what_was_read_makes_the_same_object() -> None:
    stored = stored_function(timeout="1m", secrets=["hf"], maxCostUSD="5")
    assert document_for_update(FUNCTION, stored, copy.deepcopy(stored)) == stored


def test_equal_values_in_another_spelling_are_no_change() -> None:
    stored = stored_function(timeout="90s", secrets=["hf"], maxCostUSD="5", resources={"memory": "1Gi", "cpu": "1"})
    body = function_body(
        timeout="1m30s",
        secrets=[{"name": "hf"}],
        maxCostUSD="5.000",
        resources={"memory": "1024Mi", "cpu": 1, "disk": "10Gi"},
        retries={"backoffCoefficient": 2},
    )
    assert document_for_update(FUNCTION, stored, body) == stored


def test_a_changed_spec_is_a_new_generation_and_changed_metadata_is_not() -> None:
    stored = stored_function()
    changed = document_for_update(FUNCTION, stored, function_body(timeout="10s"))
    assert changed["metadata"]["generation"] == 2
    labelled = {**function_body(), "metadata": {"name": "square", "labels": {"a": "b"}}}
    assert document_for_update(FUNCTION, stored, labelled)["metadata"]["generation"] == 1
    assert stored["metadata"]["generation"] == 1


def test_status_in_a_body_is_ignored() -> None:
    stored = stored_function()
    body = {**function_body(), "status": {"phase": "Failed"}}
    assert document_for_update(FUNCTION, stored, body)["status"] == {"phase": "Running"}


def test_a_renewal_alone_is_no_new_generation() -> None:
    app = {"metadata": {"name": "hello"}, "spec": {"ephemeral": True, "renewTime": "2026-11-29T11:17:42Z"}}
    stored = ProjectInMemory().add({**document_for_create(APP, app, project=PROJECT), "status": {}})
    renewed = copy.deepcopy(stored)
    renewed["spec"]["renewTime"] = "2026-11-29T11:18:12Z"
    new = document_for_update(APP, stored, renewed)
    assert new["spec"]["renewTime"] == "2026-11-29T11:18:12Z"
    assert new["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("function", "cube"),
        ("input", {"inline": "eA=="}),
        ("session", "s2"),
        ("mapId", "m2"),
        ("mapIndex", 2),
        ("timeout", "1s"),
    ],
)
def test_everything_but_the_state_of_a_call_is_immutable(field: str, value: Any) -> None:
    stored = stored_call(session="s", mapId="m", mapIndex=1)
    body = copy.deepcopy(stored)
    body["spec"][field] = value
    with pytest.raises(ApiError) as error:
        document_for_update(CALL, stored, body)
    assert set(causes(error, Reason.FIELD_IMMUTABLE)) == {f"spec.{field}"}
    assert error.value.details == {"diff": [f"spec.{field}"]}


def test_an_immutable_field_may_not_be_added_later() -> None:
    stored = stored_call()
    body = copy.deepcopy(stored)
    body["spec"] |= {"session": "s", "mapId": "m"}
    with pytest.raises(ApiError) as error:
        document_for_update(CALL, stored, body)
    assert error.value.details == {"diff": ["spec.session", "spec.mapId"]}


def test_leaving_an_immutable_field_out_keeps_it() -> None:
    stored = stored_call(session="s")
    new = document_for_update(CALL, stored, {"metadata": {"name": "square-abcde"}, "spec": {"state": "Cancelled"}})
    assert new["spec"] == {**stored["spec"], "state": "Cancelled"}
    assert document_for_update(CALL, stored, {}) == stored


@pytest.mark.parametrize(
    ("metadata", "reason"),
    [
        ({"name": "other"}, Reason.BAD_REQUEST),
        ({"namespace": "other"}, Reason.BAD_REQUEST),
        ({"uid": "fn_other"}, Reason.CONFLICT),
    ],
)
def test_a_body_that_means_another_object_is_refused(metadata: dict[str, Any], reason: Reason) -> None:
    with pytest.raises(ApiError) as error:
        document_for_update(FUNCTION, stored_function(), {**function_body(), "metadata": metadata})
    assert error.value.reason is reason


def test_what_is_not_offered_cannot_be_reached_by_an_update() -> None:
    with pytest.raises(ApiError) as error:
        document_for_update(FUNCTION, stored_function(), function_body(connections=["db"]))
    assert set(causes(error, Reason.UNSUPPORTED)) == {"spec.connections"}


def test_a_value_is_found_by_its_path_or_is_none() -> None:
    document = {"a": {"b": [1], "c": None}}
    assert value_at(document, "a.b") == [1]
    assert value_at(document, "a.c") is None
    assert value_at(document, "a.b.c") is None
    assert value_at(document, "x") is None
