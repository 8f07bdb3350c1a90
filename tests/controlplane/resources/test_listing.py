"""What the parameters of a list mean together, and the tokens that carry it from page to page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ApiError, Reason
from controlplane.machinery.selectors import parse_labels
from controlplane.resources.listing import ListOptions, Start, decode_token, encode_token, start
from controlplane.store.contract import Key, Selection

APPS = Selection("App", "acme", "default")
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=80)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (ListOptions(), Start(100)),
        (ListOptions(limit="0"), Start(100)),
        (ListOptions(limit="7"), Start(7)),
        (ListOptions(limit="700"), Start(100)),
        (ListOptions(resource_version="0", limit="7"), Start(7)),
        (ListOptions(resource_version="9"), Start(100, not_before_rv=9)),
        (ListOptions(resource_version="9", limit="7"), Start(7, at_rv=9)),
        (
            ListOptions(resource_version="9", limit="7", resource_version_match="NotOlderThan"),
            Start(7, not_before_rv=9),
        ),
        (ListOptions(resource_version="9", resource_version_match="Exact"), Start(100, at_rv=9)),
    ],
)
def test_parameters_decide_the_snapshot_and_the_size(options: ListOptions, expected: Start) -> None:
    assert start(APPS, options, 100) == expected


@given(project=NAMES, name=NAMES, rv=st.integers(0, 10**15))
def test_a_token_leads_back_to_where_its_page_ended(project: str, name: str, rv: int) -> None:
    last = Key("App", "acme", project, name)
    assert decode_token(encode_token(APPS, rv, last), APPS) == (last, rv)


@given(token=st.text(max_size=200))
def test_no_text_is_a_fault(token: str) -> None:
    with pytest.raises(ApiError) as refused:
        decode_token(token, APPS)
    assert refused.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    "other",
    [
        Selection("App", "acme", "other"),
        Selection("App", "acme", None),
        Selection("Function", "acme", "default"),
        Selection("App", "rival", "default"),
        Selection("App", "acme", "default", labels=parse_labels("a=b")),
        Selection("App", "acme", None, projects=frozenset({"default"})),
    ],
)
def test_a_token_is_refused_for_any_other_list(other: Selection) -> None:
    token = encode_token(APPS, 5, Key("App", "acme", "default", "a"))
    with pytest.raises(ApiError) as refused:
        decode_token(token, other)
    assert refused.value.reason is Reason.BAD_REQUEST
