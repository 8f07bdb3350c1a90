from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.selectors import (
    TERMS_MAX,
    VALUES_MAX,
    FieldTerm,
    LabelOperator,
    LabelTerm,
    by_labels,
    matches,
    matches_fields,
    matches_labels,
    parse_fields,
    parse_labels,
)

IN, NOT_IN, EXISTS, NOT_EXISTS = (
    LabelOperator.IN,
    LabelOperator.NOT_IN,
    LabelOperator.EXISTS,
    LabelOperator.NOT_EXISTS,
)
CALL = KINDS["FunctionCall"]


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("   ", ()),
        ("app=a", (LabelTerm("app", IN, ("a",)),)),
        ("app==a", (LabelTerm("app", IN, ("a",)),)),
        ("app = a", (LabelTerm("app", IN, ("a",)),)),
        ("app!=a", (LabelTerm("app", NOT_IN, ("a",)),)),
        ("app=", (LabelTerm("app", IN, ("",)),)),
        ("app!=,b", (LabelTerm("app", NOT_IN, ("",)), LabelTerm("b", EXISTS))),
        ("app", (LabelTerm("app", EXISTS),)),
        ("!app", (LabelTerm("app", NOT_EXISTS),)),
        ("! app", (LabelTerm("app", NOT_EXISTS),)),
        ("app in (b, a,b)", (LabelTerm("app", IN, ("a", "b")),)),
        ("app notin (a)", (LabelTerm("app", NOT_IN, ("a",)),)),
        ("app in ()", (LabelTerm("app", IN, ("",)),)),
        ("app in (a,)", (LabelTerm("app", IN, ("", "a")),)),
        ("in in (in)", (LabelTerm("in", IN, ("in",)),)),
        ("nodus.dev/app=a,x-y_z.1", (LabelTerm("nodus.dev/app", IN, ("a",)), LabelTerm("x-y_z.1", EXISTS))),
    ],
)
def test_a_label_selector_is_read_as_kubernetes_reads_it(text: str, terms: tuple[LabelTerm, ...]) -> None:
    assert parse_labels(text) == terms


@pytest.mark.parametrize(
    "text",
    [
        ",",
        "a,",
        "a,,b",
        "a b",
        "a=b=c",
        "a in b",
        "a in (b",
        "a in b)",
        "a in (b))",
        "!a=b",
        "!!a",
        "a>1",
        "a<1",
        "/a",
        "A.b/c",
        "a/",
        "-a",
        "a-",
        "a/b/c",
        "a=b/c",
        "a=" + "x" * 64,
        "x" * 64,
        "x" * 254 + "/a",
        "a=(b)",
        "in (a)",
        ",".join(f"k{i}" for i in range(TERMS_MAX + 1)),
        f"k in ({','.join(map(str, range(VALUES_MAX + 1)))})",
        "a=" + "b" * 20_000,
    ],
)
def test_an_unreadable_label_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_labels(text)
    assert error.value.reason is Reason.BAD_REQUEST


KEY_TEXT = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=8)
KEYS = st.one_of(KEY_TEXT, st.builds(lambda prefix, name: f"{prefix}.dev/{name}", KEY_TEXT, KEY_TEXT))
VALUES = st.one_of(st.just(""), KEY_TEXT)
TERMS = st.one_of(
    st.builds(lambda key, operator: LabelTerm(key, operator), KEYS, st.sampled_from([EXISTS, NOT_EXISTS])),
    st.builds(
        lambda key, operator, values: LabelTerm(key, operator, tuple(sorted(values))),
        KEYS,
        st.sampled_from([IN, NOT_IN]),
        st.sets(VALUES, min_size=1, max_size=4),
    ),
)


def written(term: LabelTerm, *, short: bool) -> str:
    if term.operator is EXISTS:
        return term.key
    if term.operator is NOT_EXISTS:
        return f"!{term.key}"
    if short and len(term.values) == 1:
        return f"{term.key}{'=' if term.operator is IN else '!='}{term.values[0]}"
    return f"{term.key} {term.operator.value} ({','.join(term.values)})"


@given(st.lists(TERMS, max_size=5), st.booleans())
def test_a_written_label_selector_reads_back_as_the_same_terms(terms: list[LabelTerm], short: bool) -> None:
    assert parse_labels(",".join(written(term, short=short) for term in terms)) == tuple(terms)


@pytest.mark.parametrize(
    ("text", "labels", "holds"),
    [
        ("a=1", {"a": "1"}, True),
        ("a=1", {"a": "2"}, False),
        ("a=1", {}, False),
        ("a!=1", {}, True),
        ("a!=1", {"a": "2"}, True),
        ("a!=1", {"a": "1"}, False),
        ("a notin (1,2)", {}, True),
        ("a notin (1,2)", {"a": "2"}, False),
        ("a", {"a": ""}, True),
        ("a", {}, False),
        ("!a", {}, True),
        ("!a", {"a": ""}, False),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a=1,b=2", {"a": "1", "b": "2"}, True),
        ("a=1,b=2", {"a": "1"}, False),
    ],
)
def test_a_term_holds_as_in_kubernetes(text: str, labels: dict[str, str], holds: bool) -> None:
    assert matches_labels(parse_labels(text), labels) is holds


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", ()),
        ("metadata.name=a", (FieldTerm("metadata.name", True, "a"),)),
        ("metadata.name=a,metadata.name=a", (FieldTerm("metadata.name", True, "a"),) * 2),
        ("metadata.namespace!=p", (FieldTerm("metadata.namespace", False, "p"),)),
        ("status.phase==Failed,", (FieldTerm("status.phase", True, "Failed"),)),
        ("status.reason=", (FieldTerm("status.reason", True, ""),)),
        (r"spec.session=a\,b\=c\\d", (FieldTerm("spec.session", True, r"a,b=c\d"),)),
    ],
)
def test_a_field_selector_is_read_as_kubernetes_reads_it(text: str, terms: tuple[FieldTerm, ...]) -> None:
    assert parse_fields(text, CALL) == terms


@pytest.mark.parametrize(
    "text",
    [
        "metadata.name",
        "=a",
        "status.phase=a=b",
        ",".join(["metadata.name=a"] * (TERMS_MAX + 1)),
        r"status.phase=a\b",
        "status.phase=a\\",
    ],
)
def test_an_unreadable_field_selector_is_a_bad_request(text: str) -> None:
    with pytest.raises(ApiError) as error:
        parse_fields(text, CALL)
    assert error.value.reason is Reason.BAD_REQUEST


def test_a_field_that_the_kind_lacks_is_a_bad_request_that_lists_those_it_has() -> None:
    with pytest.raises(ApiError) as error:
        parse_fields("spec.input=a", CALL)
    assert error.value.reason is Reason.BAD_REQUEST
    assert error.value.message == "field label not supported: spec.input"
    assert "spec.mapId" in error.value.fix


def test_a_field_that_the_object_lacks_equals_the_empty_text() -> None:
    terms = parse_fields("status.reason=", CALL)
    assert matches_fields(terms, {}, name="a", namespace="p")
    assert not matches_fields(terms, {"status.reason": "RemoteError"}, name="a", namespace="p")
    assert matches_fields(parse_fields("status.reason!=RemoteError", CALL), {}, name="a", namespace="p")


def test_name_and_namespace_are_compared_beside_the_fields_of_the_kind() -> None:
    terms = parse_fields("metadata.name=a,metadata.namespace=p,status.phase=Queued", CALL)
    fields = {"status.phase": "Queued"}
    assert matches((), terms, labels={}, fields=fields, name="a", namespace="p")
    assert not matches((), terms, labels={}, fields=fields, name="b", namespace="p")
    assert not matches((), terms, labels={}, fields=fields, name="a", namespace="q")


@pytest.mark.parametrize("value", ["m-1", "f", "a.b_c", "x" * 63])
@pytest.mark.parametrize("path", CALL.labelled_fields)
def test_a_field_that_the_server_repeats_as_a_label_is_looked_up_by_the_label(path: str, value: str) -> None:
    before = (LabelTerm("tier", IN, ("a",)),)
    labels, fields = by_labels(CALL, before, (FieldTerm(path, True, value), FieldTerm("status.phase", True, "Failed")))
    assert labels == (*before, LabelTerm(CALL.labelled_fields[path], IN, (value,)))
    assert fields == (FieldTerm("status.phase", True, "Failed"),)


@pytest.mark.parametrize(
    "term",
    [
        FieldTerm("spec.mapId", True, ""),
        FieldTerm("spec.mapId", False, "m-1"),
        FieldTerm("spec.mapId", True, "x" * 64),
        FieldTerm("spec.mapId", True, "no label\0"),
        FieldTerm("spec.session", True, "s"),
    ],
)
def test_a_term_that_no_label_can_answer_stays_a_field(term: FieldTerm) -> None:
    assert by_labels(CALL, (), (term,)) == ((), (term,))
