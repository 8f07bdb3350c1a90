from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.table import (
    Include,
    human_duration,
    parse_include,
    partial_metadata_list,
    table,
    text_at,
)
from tests.fixtures.admission import NOW

CALL = {
    "apiVersion": "nodus.dev/v1",
    "kind": "FunctionCall",
    "metadata": {
        "name": "square-abcde",
        "namespace": "default",
        "labels": {"a": "b"},
        "creationTimestamp": "2026-11-29T11:12:42Z",
    },
    "spec": {"function": "square", "mapId": "m", "mapIndex": 0},
    "status": {
        "phase": "Failed",
        "reason": "RemoteError",
        "retries": 2,
        "costUSD": "0.01",
        "startTime": "2026-11-29T11:16:12Z",
        "completionTime": "2026-11-29T11:17:40Z",
        "worker": {"attempt": "att_1", "epoch": 1},
    },
}


def test_a_row_has_one_cell_for_each_column_in_order() -> None:
    rendered = table(KINDS["FunctionCall"], [CALL], now=NOW, metadata={"resourceVersion": "9", "continue": "t"})
    cells = dict(
        zip([column["name"] for column in rendered["columnDefinitions"]], rendered["rows"][0]["cells"], strict=True)
    )
    assert cells == {
        "Name": "square-abcde",
        "Function": "square",
        "Phase": "Failed",
        "Reason": "RemoteError",
        "Retries": 2,
        "Age": "5m",
        "Duration": "88s",
        "Session": "<none>",
        "Map": "m",
        "Index": 0,
        "Worker": "att_1",
        "Cost": "0.01",
    }
    assert rendered["kind"] == "Table"
    assert rendered["apiVersion"] == "meta.k8s.io/v1"
    assert rendered["metadata"] == {"resourceVersion": "9", "continue": "t"}
    assert [column["priority"] for column in rendered["columnDefinitions"]] == [0] * 7 + [1] * 5


@pytest.mark.parametrize(
    ("include", "shown"),
    [
        (Include.NONE, None),
        (
            Include.METADATA,
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1beta1", "metadata": CALL["metadata"]},
        ),
        (Include.OBJECT, CALL),
    ],
)
def test_a_row_carries_what_was_asked_for(include: Include, shown: Any) -> None:
    rendered = table(KINDS["FunctionCall"], [CALL], now=NOW, metadata={}, include=include, version="v1beta1")
    assert rendered["rows"][0].get("object") == shown
    assert rendered["apiVersion"] == "meta.k8s.io/v1beta1"


def test_later_events_of_a_watch_can_do_without_definitions() -> None:
    rendered = table(KINDS["FunctionCall"], [], now=NOW, metadata={}, definitions=False)
    assert rendered["columnDefinitions"] == []
    assert rendered["rows"] == []


def test_objects_can_be_reduced_to_their_metadata() -> None:
    reduced = partial_metadata_list([CALL], metadata={"resourceVersion": "9"})
    assert reduced == {
        "kind": "PartialObjectMetadataList",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": "9"},
        "items": [
            {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": CALL["metadata"]},
        ],
    }


def test_an_unknown_word_for_what_to_include_is_a_bad_request() -> None:
    assert parse_include("") is Include.METADATA
    assert parse_include("Object") is Include.OBJECT
    with pytest.raises(ApiError) as error:
        parse_include("Everything")
    assert error.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0, "0s"),
        (0.9, "0s"),
        (119, "119s"),
        (120, "2m"),
        (330, "5m30s"),
        (599, "9m59s"),
        (600, "10m"),
        (3_600 * 3 - 1, "179m"),
        (3_600 * 3, "3h"),
        (3_600 * 5 + 60 * 7, "5h7m"),
        (3_600 * 8, "8h"),
        (3_600 * 47, "47h"),
        (86_400 * 2 + 3_600, "2d1h"),
        (86_400 * 7, "7d"),
        (86_400 * 8, "8d"),
        (86_400 * 700, "700d"),
        (86_400 * 365 * 2, "2y"),
        (86_400 * 365 * 3 + 86_400 * 4, "3y4d"),
        (86_400 * 365 * 9, "9y"),
    ],
)
def test_ages_are_told_as_kubectl_tells_them(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "cell"),
    [("x", "x"), (0, 0), (True, "true"), ([], "-"), (["a", "b"], "a,b"), ({}, "-"), (None, "-"), ("", "-"), (1.5, "-")],
)
def test_a_cell_shows_any_value_as_text_or_number(value: Any, cell: str | int) -> None:
    assert text_at("a.b", "-")({"a": {"b": value}}, NOW) == cell
