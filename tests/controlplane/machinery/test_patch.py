from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ApiError, Reason
from controlplane.machinery.patch import COPIED_BYTES_MAX, OPERATIONS_MAX, json_patch, merge_patch


@pytest.mark.parametrize(
    ("document", "patch", "result"),
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b"}, {"a": None}, {}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": "c"}, {"a": ["b"]}, {"a": ["b"]}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
        ({"a": "text"}, {"a": {"b": None, "c": 1}}, {"a": {"c": 1}}),
    ],
)
def test_a_merge_patch_does_what_rfc_7386_says(document: Any, patch: Any, result: Any) -> None:
    before = copy.deepcopy(document)
    assert merge_patch(document, patch) == result
    assert document == before


@pytest.mark.parametrize("patch", [[], ["c"], None, "bar", 1])
def test_a_merge_patch_that_would_replace_the_object_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(ApiError) as error:
        merge_patch({"a": "b"}, patch)
    assert error.value.reason is Reason.BAD_REQUEST


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("abc"), inner, max_size=3)),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abc"), JSON, max_size=3)


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    return value


@given(OBJECTS, OBJECTS)
def test_applying_a_merge_patch_twice_changes_nothing_more(document: Any, patch: Any) -> None:
    once = merge_patch(document, patch)
    assert merge_patch(once, patch) == once


@given(OBJECTS)
def test_merging_an_object_into_nothing_gives_it_without_its_nulls(patch: Any) -> None:
    assert merge_patch({}, patch) == without_nulls(patch)


@pytest.mark.parametrize(
    ("document", "operations", "result"),
    [
        ({"foo": "bar"}, [{"op": "add", "path": "/baz", "value": "qux"}], {"baz": "qux", "foo": "bar"}),
        (
            {"foo": ["bar", "baz"]},
            [{"op": "add", "path": "/foo/1", "value": "qux"}],
            {"foo": ["bar", "qux", "baz"]},
        ),
        ({"baz": "qux", "foo": "bar"}, [{"op": "remove", "path": "/baz"}], {"foo": "bar"}),
        ({"foo": ["bar", "qux", "baz"]}, [{"op": "remove", "path": "/foo/1"}], {"foo": ["bar", "baz"]}),
        (
            {"baz": "qux", "foo": "bar"},
            [{"op": "replace", "path": "/baz", "value": "boo"}],
            {"baz": "boo", "foo": "bar"},
        ),
        (
            {"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}},
            [{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}],
            {"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}},
        ),
        (
            {"foo": ["all", "grass", "cows", "eat"]},
            [{"op": "move", "from": "/foo/1", "path": "/foo/3"}],
            {"foo": ["all", "cows", "eat", "grass"]},
        ),
        (
            {"baz": "qux", "foo": ["a", 2, "c"]},
            [{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2}],
            {"baz": "qux", "foo": ["a", 2, "c"]},
        ),
        (
            {"foo": "bar"},
            [{"op": "add", "path": "/child", "value": {"grandchild": {}}}],
            {"foo": "bar", "child": {"grandchild": {}}},
        ),
        (
            {"foo": "bar"},
            [{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}],
            {"foo": "bar", "baz": "qux"},
        ),
        ({"/": 9, "~1": 10}, [{"op": "test", "path": "/~01", "value": 10}], {"/": 9, "~1": 10}),
        (
            {"foo": ["bar"]},
            [{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}],
            {"foo": ["bar", ["abc", "def"]]},
        ),
        ({"a": {"b": [1]}}, [{"op": "copy", "from": "/a", "path": "/c"}], {"a": {"b": [1]}, "c": {"b": [1]}}),
        ({"a": 1}, [{"op": "add", "path": "/a", "value": None}], {"a": None}),
        ({"a": 1}, [{"op": "replace", "path": "", "value": {"b": 2}}], {"b": 2}),
        ({"": 1}, [{"op": "replace", "path": "/", "value": 2}], {"": 2}),
        ({"a": 1}, [{"op": "move", "from": "/a", "path": "/a"}], {"a": 1}),
        ({"a": 1}, [], {"a": 1}),
    ],
)
def test_a_json_patch_does_what_rfc_6902_says(document: Any, operations: Any, result: Any) -> None:
    before = copy.deepcopy(document)
    assert json_patch(document, operations) == result
    assert document == before


@pytest.mark.parametrize(
    ("value", "tested"),
    [("qux", "bar"), (10, "10"), (1, True), (0, False), ([1], [True]), ({"a": 1}, {"a": 1, "b": 2}), (None, False)],
)
def test_a_failed_test_is_invalid_and_nothing_is_applied(value: Any, tested: Any) -> None:
    document = {"a": value, "b": 1}
    with pytest.raises(ApiError) as error:
        json_patch(document, [{"op": "remove", "path": "/b"}, {"op": "test", "path": "/a", "value": tested}])
    assert error.value.reason is Reason.INVALID
    assert [cause.field for cause in error.value.causes] == ["[1]"]
    assert document == {"a": value, "b": 1}


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "add", "path": "/missing/bat", "value": 1},
        {"op": "remove", "path": "/missing"},
        {"op": "replace", "path": "/missing", "value": 1},
        {"op": "test", "path": "/missing", "value": 1},
        {"op": "move", "from": "/missing", "path": "/a"},
        {"op": "copy", "from": "/missing", "path": "/a"},
        {"op": "add", "path": "/list/3", "value": 1},
        {"op": "add", "path": "/list/01", "value": 1},
        {"op": "add", "path": "/list/x", "value": 1},
        {"op": "remove", "path": "/list/-"},
        {"op": "remove", "path": "/list/2"},
        {"op": "remove", "path": ""},
        {"op": "add", "path": "/text/x", "value": 1},
        {"op": "move", "from": "/object", "path": "/object/inside"},
        {"op": "replace", "path": "", "value": []},
    ],
)
def test_a_path_that_does_not_fit_the_object_is_invalid(operation: Any) -> None:
    document = {"list": [1, 2], "text": "x", "object": {"a": 1}}
    with pytest.raises(ApiError) as error:
        json_patch(document, [operation])
    assert error.value.reason is Reason.INVALID


@pytest.mark.parametrize(
    "operations",
    [
        {},
        "x",
        None,
        [1],
        [{}],
        [{"op": "spam", "path": "/a"}],
        [{"op": ["add"], "path": "/a"}],
        [{"op": "add", "value": 1}],
        [{"op": "add", "path": "a", "value": 1}],
        [{"op": "add", "path": "/a~2", "value": 1}],
        [{"op": "add", "path": "/a~", "value": 1}],
        [{"op": "add", "path": "/a"}],
        [{"op": "move", "path": "/a"}],
        [{"op": "test", "path": "/a"}],
    ],
)
def test_a_malformed_json_patch_is_a_bad_request(operations: Any) -> None:
    with pytest.raises(ApiError) as error:
        json_patch({"a": 1}, operations)
    assert error.value.reason is Reason.BAD_REQUEST


def test_a_json_patch_has_at_most_so_many_operations() -> None:
    test = {"op": "test", "path": "/a", "value": 1}
    assert json_patch({"a": 1}, [test] * OPERATIONS_MAX) == {"a": 1}
    with pytest.raises(ApiError) as error:
        json_patch({"a": 1}, [test] * (OPERATIONS_MAX + 1))
    assert error.value.reason is Reason.REQUEST_ENTITY_TOO_LARGE


def test_copies_that_double_the_object_end_at_a_limit() -> None:
    doubling = [{"op": "copy", "from": "", "path": f"/a{index}"} for index in range(OPERATIONS_MAX)]
    with pytest.raises(ApiError) as error:
        json_patch({"text": "x" * (COPIED_BYTES_MAX // 50)}, doubling)
    assert error.value.reason is Reason.REQUEST_ENTITY_TOO_LARGE


def test_a_patch_cannot_nest_an_object_deeper_than_a_body_may() -> None:
    moves = []
    for index in range(100):
        moves += [{"op": "add", "path": f"/b{index}", "value": {}}]
        moves += [{"op": "move", "from": "/a", "path": f"/b{index}/a"}]
        moves += [{"op": "move", "from": f"/b{index}", "path": "/a"}]
    with pytest.raises(ApiError) as error:
        json_patch({"a": 1}, moves)
    assert error.value.reason is Reason.BAD_REQUEST
