from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.validation import (
    CAUSES_MAX,
    DEPTH_MAX,
    decode_json,
    decode_object,
    decode_yaml,
    judged_spec,
    validated_spec,
)
from tests.fixtures.admission import causes, function_spec

FUNCTION = KINDS["Function"]


def nested(depth: int, opening: bytes, closing: bytes) -> bytes:
    return opening * depth + b"1" + closing * depth


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"  ",
        b"{",
        b"{'a': 1}",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": "\\ud800"}',
        b'{"a": "\xff"}',
        b'{"a": 1,}',
        b'{"a": 1} x',
        nested(DEPTH_MAX + 1, b"[", b"]"),
        nested(100_000, b"[", b"]"),
        nested(DEPTH_MAX + 1, b'{"a":', b"}"),
    ],
)
def test_a_body_that_is_not_plain_json_is_a_bad_request(content: bytes) -> None:
    with pytest.raises(ApiError) as error:
        decode_json(content)
    assert error.value.reason is Reason.BAD_REQUEST


def test_a_body_may_nest_as_deep_as_the_limit() -> None:
    assert decode_json(nested(DEPTH_MAX, b"[", b"]"))
    assert decode_yaml(nested(DEPTH_MAX, b"[", b"]"))


def test_text_with_a_null_character_survives() -> None:
    assert decode_json(b'{"a": "\\u0000"}') == {"a": "\0"}


@pytest.mark.parametrize("value", [[], "x", 1, None, True])
def test_a_body_that_is_no_object_is_a_bad_request(value: Any) -> None:
    with pytest.raises(ApiError) as error:
        decode_object(value)
    assert error.value.reason is Reason.BAD_REQUEST


def test_yaml_means_the_json_that_it_looks_like() -> None:
    content = b"kind: App\nspec:\n  renewTime: 2026-11-29T11:17:42Z\n  ephemeral: true\n  list: [1, 2.5, null]\n"
    assert decode_yaml(content) == {
        "kind": "App",
        "spec": {"renewTime": "2026-11-29T11:17:42Z", "ephemeral": True, "list": [1, 2.5, None]},
    }


@pytest.mark.parametrize(
    "content",
    [
        b"a: &x 1\nb: *x\n",
        b"a: &x 1\n",
        b"a: 1\na: 2\n",
        b"1: a\n",
        b"a: .nan\n",
        b"a: !!python/object:os.system x\n",
        b"a: !!binary aGk=\n",
        b"a: 99999999999999999999999\n",
        b"a: [\n",
        b"a: 1\n---\nb: 2\n",
        nested(DEPTH_MAX + 1, b"[", b"]"),
        nested(100_000, b"[", b"]"),
    ],
)
def test_yaml_that_json_could_not_say_is_a_bad_request(content: bytes) -> None:
    with pytest.raises(ApiError) as error:
        decode_yaml(content)
    assert error.value.reason is Reason.BAD_REQUEST


def test_every_problem_of_a_spec_is_told_at_once_with_its_path() -> None:
    raw = {
        "code": {"module": "1a", "cls": {"name": "x", "method": []}},
        "python": "3.9",
        "timeout": 300,
        "scaling": {"minWorkers": True, "maxWorkers": 1.5},
        "env": [{"name": "A"}, {"name": 1}, "B"],
        "secrets": {"a": 1},
        "labels": {},
    }
    with pytest.raises(ApiError) as error:
        validated_spec(FUNCTION, raw, name="square")
    told = {field: (cause.reason, cause.message) for field, cause in causes(error).items()}
    assert told == {
        "spec.code.module": ("FieldValueInvalid", "must be Python names joined by dots"),
        "spec.code.qualname": ("FieldValueRequired", "must be specified"),
        "spec.code.cls.method": ("FieldValueUnknown", "is not a known field; did you mean `methods`?"),
        "spec.python": ("FieldValueNotSupported", 'must be one of "3.10", "3.11", "3.12" or "3.13"'),
        "spec.timeout": ("FieldValueTypeInvalid", "must be a string"),
        "spec.scaling.minWorkers": ("FieldValueTypeInvalid", "must be an integer"),
        "spec.scaling.maxWorkers": ("FieldValueTypeInvalid", "must be an integer"),
        "spec.env[1].name": ("FieldValueTypeInvalid", "must be a string"),
        "spec.env[2]": ("FieldValueTypeInvalid", "must be an object"),
        "spec.secrets": ("FieldValueTypeInvalid", "must be a list"),
        "spec.labels": ("FieldValueUnknown", "is not a known field"),
    }
    assert error.value.message.startswith('functions.nodus.dev "square" is invalid: spec.code.module: ')
    assert error.value.message.endswith("; and 6 more")


@pytest.mark.parametrize("raw", [[], "x", 1])
def test_a_spec_that_is_no_object_is_one_problem(raw: Any) -> None:
    _, found = judged_spec(FUNCTION, raw)
    assert [cause.field for cause in found] == ["spec"]


def test_a_missing_spec_lacks_what_is_required() -> None:
    _, found = judged_spec(FUNCTION, None)
    assert {cause.field for cause in found} == {"spec.code", "spec.python"}


def test_the_number_of_causes_is_bounded() -> None:
    _, found = judged_spec(FUNCTION, function_spec(**{f"field{index}": 1 for index in range(500)}))
    assert len(found) == CAUSES_MAX


def test_values_do_not_appear_in_the_problems_they_have() -> None:
    secret = KINDS["Secret"]
    _, found = judged_spec(secret, {"data": {"KEY": "hunter2!"}, "stringData": {"KEY": ["hunter2!"]}})
    assert {cause.field for cause in found} == {"spec.data.KEY", "spec.stringData.KEY"}
    assert "hunter2" not in repr(found)


def test_fields_that_are_null_count_as_absent() -> None:
    spec = validated_spec(FUNCTION, function_spec(timeout=None, network=None, scaling={"maxWorkers": None}))
    assert spec == validated_spec(FUNCTION, function_spec())


def test_a_required_field_that_is_null_is_missing() -> None:
    with pytest.raises(ApiError) as error:
        validated_spec(FUNCTION, function_spec(python=None))
    assert causes(error)["spec.python"].reason == "FieldValueRequired"


FOREIGN = {"name": "a", "command": ["b"], "image": "docker.io/library/redis"}


def test_what_is_not_offered_is_unsupported_with_advice_for_each_part() -> None:
    with pytest.raises(ApiError) as error:
        validated_spec(FUNCTION, function_spec(args=["a"], resources={"gpu": "H100"}, sidecars=[FOREIGN]), name="f")
    found = causes(error, Reason.UNSUPPORTED)
    assert set(found) == {"spec.args", "spec.resources.gpu", "spec.sidecars.image"}
    assert "Leave `gpu` out" in found["spec.resources.gpu"].message
