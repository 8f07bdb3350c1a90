from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Cause, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.meta import (
    ANNOTATIONS_BYTES_MAX,
    FINALIZERS_MAX,
    LABELS_MAX,
    OWNERS_MAX,
    metadata_for_create,
    metadata_for_update,
    select_fields,
)

FUNCTION, PROJECT = KINDS["Function"], KINDS["Project"]
OWNER = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": "a", "uid": "app_1"}
STORED = {
    "name": "a",
    "namespace": "default",
    "uid": "fn_1",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-11-29T11:00:00Z",
    "labels": {"nodus.dev/app": "x", "team": "red"},
    "annotations": {"nodus.dev/note": "x", "note": "y"},
    "finalizers": ["nodus.dev/workers", "acme.dev/hold"],
}


def created(raw: Any, project: str = "default") -> tuple[dict[str, Any], list[Cause]]:
    found: list[Cause] = []
    return metadata_for_create(FUNCTION, raw, project, found), found


def updated(raw: Any, **stored: Any) -> tuple[dict[str, Any], list[Cause]]:
    found: list[Cause] = []
    return metadata_for_update({**STORED, **stored}, raw, found), found


@pytest.mark.parametrize("name", ["a", "0", "a-b", "a" * 63, "0-0"])
def test_a_name_of_dns_characters_is_taken(name: str) -> None:
    metadata, found = created({"name": name})
    assert not found
    assert metadata == {"name": name, "namespace": "default"}


@pytest.mark.parametrize("name", ["A", "-a", "a-", "a.b", "a_b", "a" * 64, "a\n", "é", 1, ["a"], "a b"])
def test_other_names_are_invalid(name: Any) -> None:
    _, found = created({"name": name})
    assert [cause.field for cause in found] == ["metadata.name"]


def test_a_prefix_stands_in_for_a_name() -> None:
    metadata, found = created({"generateName": "square-"})
    assert not found
    assert metadata == {"generateName": "square-", "namespace": "default"}


@pytest.mark.parametrize("prefix", ["-a", "A", "a_", 1])
def test_a_prefix_that_begins_no_name_is_invalid(prefix: Any) -> None:
    _, found = created({"generateName": prefix})
    assert [cause.field for cause in found] == ["metadata.generateName"]


@pytest.mark.parametrize("raw", [None, {}, {"name": ""}, {"name": None, "generateName": ""}])
def test_an_object_needs_a_name_or_a_prefix(raw: Any) -> None:
    _, found = created(raw)
    assert [(cause.field, cause.reason) for cause in found] == [("metadata.name", "FieldValueRequired")]


def test_what_belongs_to_the_server_is_dropped_on_create() -> None:
    metadata, found = created(
        {
            "name": "a",
            "namespace": "default",
            "uid": "mine",
            "generation": 9,
            "creationTimestamp": None,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "managedFields": [{}],
            "selfLink": "/x",
            "resourceVersion": "",
            "labels": {"nodus.dev/app": "x", "sdk.nodus.dev/app": "y", "app": ""},
            "annotations": {"nodus.dev/last-applied": "{}", "nodus.dev/other": "x", "kubectl.kubernetes.io/x": "{}"},
        }
    )
    assert not found
    assert metadata == {
        "name": "a",
        "namespace": "default",
        "labels": {"sdk.nodus.dev/app": "y", "app": ""},
        "annotations": {"nodus.dev/last-applied": "{}", "kubectl.kubernetes.io/x": "{}"},
    }


def test_empty_lists_and_maps_leave_no_trace() -> None:
    metadata, found = created({"name": "a", "labels": {}, "annotations": None, "finalizers": [], "ownerReferences": []})
    assert not found
    assert metadata == {"name": "a", "namespace": "default"}


def test_an_object_to_be_created_must_have_no_version() -> None:
    with pytest.raises(ApiError) as error:
        created({"name": "a", "resourceVersion": "5"})
    assert error.value.reason is Reason.BAD_REQUEST


def test_the_namespace_must_be_that_of_the_path() -> None:
    with pytest.raises(ApiError) as error:
        created({"name": "a", "namespace": "other"})
    assert error.value.reason is Reason.BAD_REQUEST


def test_objects_of_the_organisation_have_no_namespace() -> None:
    assert metadata_for_create(PROJECT, {"name": "a", "namespace": ""}, "", []) == {"name": "a"}
    with pytest.raises(ApiError) as error:
        metadata_for_create(PROJECT, {"name": "a", "namespace": "default"}, "", [])
    assert error.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("raw", "fields"),
    [
        ({"labels": {"a": 1}}, ["metadata.labels[a]"]),
        ({"labels": {"a": None}}, ["metadata.labels[a]"]),
        ({"labels": ["a"]}, ["metadata.labels"]),
        ({"labels": "a"}, ["metadata.labels"]),
        ({"labels": []}, ["metadata.labels"]),
        ({"finalizers": {}}, ["metadata.finalizers"]),
        ({"annotations": ["a"]}, ["metadata.annotations"]),
        ({"labels": {"-a": "x"}}, ["metadata.labels"]),
        ({"labels": {"a/b/c": "x"}}, ["metadata.labels"]),
        ({"labels": {"A.b/c": "x"}}, ["metadata.labels"]),
        ({"labels": {"x" * 64: "x"}}, ["metadata.labels"]),
        ({"labels": {"a": "x y"}}, ["metadata.labels[a]"]),
        ({"labels": {"a": "x" * 64}}, ["metadata.labels[a]"]),
        ({"labels": {f"k{index}": "" for index in range(LABELS_MAX + 1)}}, ["metadata.labels"]),
        ({"annotations": {"a": "x" * ANNOTATIONS_BYTES_MAX}}, ["metadata.annotations"]),
        ({"annotations": {"a b": "x"}}, ["metadata.annotations"]),
        (
            {"annotations": {"nodus.dev/restart-requested-at": "soon"}},
            ["metadata.annotations[nodus.dev/restart-requested-at]"],
        ),
        ({"finalizers": "x"}, ["metadata.finalizers"]),
        ({"finalizers": [1]}, ["metadata.finalizers"]),
        ({"finalizers": ["a b"]}, ["metadata.finalizers"]),
        ({"finalizers": ["nodus.dev/workers"]}, ["metadata.finalizers"]),
        ({"finalizers": [f"acme.dev/{index}" for index in range(FINALIZERS_MAX + 1)]}, ["metadata.finalizers"]),
        ({"ownerReferences": [{**OWNER, "uid": None}]}, ["metadata.ownerReferences[0].uid"]),
        ({"ownerReferences": [{**OWNER, "owner": True}]}, ["metadata.ownerReferences[0].owner"]),
        ({"ownerReferences": [{**OWNER, "apiVersion": "v1"}]}, ["metadata.ownerReferences[0].apiVersion"]),
        ({"ownerReferences": [{**OWNER, "controller": True}] * 2}, ["metadata.ownerReferences"]),
        ({"ownerReferences": [OWNER] * (OWNERS_MAX + 1)}, ["metadata.ownerReferences"]),
        ({"lables": {}}, ["metadata.lables"]),
    ],
)
def test_each_problem_of_metadata_is_a_cause(raw: dict[str, Any], fields: list[str]) -> None:
    _, found = created({"name": "a", **raw})
    assert [cause.field for cause in found] == fields


def test_limits_of_metadata_can_be_reached() -> None:
    metadata, found = created(
        {
            "name": "a",
            "labels": {f"{'x' * 240}.dev/{index:063d}": "v" * 63 for index in range(LABELS_MAX)},
            "annotations": {"a": "x" * (ANNOTATIONS_BYTES_MAX - 1)},
            "finalizers": [f"acme.dev/{index}" for index in range(FINALIZERS_MAX)],
            "ownerReferences": [OWNER] * OWNERS_MAX,
        }
    )
    assert len(metadata["ownerReferences"]) == OWNERS_MAX
    assert found == []


def test_metadata_must_be_an_object() -> None:
    _, found = created([])
    assert found[0] == Cause("metadata", "must be an object", "FieldValueTypeInvalid")


def test_an_update_replaces_what_is_the_clients_and_keeps_what_is_the_servers() -> None:
    metadata, found = updated(
        {
            "name": "a",
            "uid": "other",
            "generation": 99,
            "labels": {"team": "blue"},
            "annotations": {"nodus.dev/restart-requested-at": "2026-11-29T11:00:00.123456Z"},
            "ownerReferences": [OWNER],
        }
    )
    assert not found
    assert metadata == {
        **{field: STORED[field] for field in ("name", "namespace", "uid", "resourceVersion", "generation")},
        "creationTimestamp": "2026-11-29T11:00:00Z",
        "labels": {"nodus.dev/app": "x", "team": "blue"},
        "annotations": {"nodus.dev/note": "x", "nodus.dev/restart-requested-at": "2026-11-29T11:00:00.123456Z"},
        "finalizers": ["nodus.dev/workers"],
        "ownerReferences": [OWNER],
    }


def test_sending_back_what_was_read_changes_nothing() -> None:
    metadata, found = updated(STORED)
    assert not found
    assert metadata == STORED


def test_labels_of_the_server_do_not_use_up_those_of_the_client() -> None:
    own = {f"k{index}": "" for index in range(LABELS_MAX)}
    metadata, found = updated({"labels": {**own, "nodus.dev/app": "x"}})
    assert not found
    assert len(metadata["labels"]) == LABELS_MAX + 1


@pytest.mark.parametrize(
    ("raw", "field"),
    [
        ({"labels": {"nodus.dev/app": "y"}}, "metadata.labels[nodus.dev/app]"),
        ({"labels": {"nodus.dev/new": "y"}}, "metadata.labels[nodus.dev/new]"),
        ({"annotations": {"nodus.dev/note": "y"}}, "metadata.annotations[nodus.dev/note]"),
        ({"finalizers": ["nodus.dev/other"]}, "metadata.finalizers"),
    ],
)
def test_what_is_the_servers_may_not_be_changed(raw: dict[str, Any], field: str) -> None:
    _, found = updated(raw)
    assert [(cause.field, cause.reason) for cause in found] == [(field, "FieldValueForbidden")]


def test_a_deletion_takes_no_new_finalizers_but_lets_old_ones_go() -> None:
    deleting = {"deletionTimestamp": "2026-11-29T12:00:00Z"}
    _, found = updated({"finalizers": ["acme.dev/late"]}, **deleting)
    assert [cause.field for cause in found] == ["metadata.finalizers"]
    metadata, found = updated({"finalizers": []}, **deleting)
    assert not found
    assert metadata["finalizers"] == ["nodus.dev/workers"]


def test_selectable_fields_are_read_as_text() -> None:
    call = KINDS["FunctionCall"]
    document = {
        "spec": {"function": "f", "mapId": "m", "session": None, "state": "Running"},
        "status": {"phase": "Queued"},
    }
    assert select_fields(call, document) == {
        "spec.function": "f",
        "spec.mapId": "m",
        "spec.state": "Running",
        "status.phase": "Queued",
    }
    assert select_fields(KINDS["App"], {"spec": {"ephemeral": True}}) == {"spec.ephemeral": "true"}
    assert select_fields(call, {"spec": {"function": {"a": 1}}, "status": "x"}) == {}
