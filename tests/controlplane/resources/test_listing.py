"""What the parameters of a list mean together, and the tokens that carry it from page to page."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from controlplane.errors import ApiError, Reason
from controlplane.machinery.selectors import parse_labels
from controlplane.resources.continuation import ContinueTokens
from controlplane.resources.listing import ListOptions, Start, start
from controlplane.store.contract import Key, Selection

TOKENS = ContinueTokens(SecretStr("5e" * 32))
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
    assert start(APPS, options, 100, TOKENS) == expected


@given(project=NAMES, name=NAMES, rv=st.integers(0, 10**15) | st.none())
def test_a_token_leads_back_to_where_its_page_ended(project: str, name: str, rv: int | None) -> None:
    last = Key("App", "acme", project, name)
    assert TOKENS.decode(TOKENS.encode(APPS, rv, last), APPS) == (last, rv)


@given(token=st.text(max_size=200))
def test_no_text_is_a_fault(token: str) -> None:
    with pytest.raises(ApiError) as refused:
        TOKENS.decode(token, APPS)
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
    token = TOKENS.encode(APPS, 5, Key("App", "acme", "default", "a"))
    with pytest.raises(ApiError) as refused:
        TOKENS.decode(token, other)
    assert refused.value.reason is Reason.BAD_REQUEST


@given(at=st.integers(0, 10_000), bit=st.integers(0, 5))
def test_a_token_that_was_changed_or_made_elsewhere_is_refused(at: int, bit: int) -> None:
    token = TOKENS.encode(APPS, 5, Key("App", "acme", "default", "a"))
    position = at % len(token)
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    forged = alphabet[alphabet.index(token[position]) ^ (1 << bit)]
    # The last character has bits that mean nothing.
    changed = token[:position] + forged + token[position + 1 :]
    elsewhere = ContinueTokens(SecretStr("7e" * 32)).encode(APPS, 5, Key("App", "acme", "default", "a"))
    for wrong in (elsewhere, changed) if position < len(token) - 1 else (elsewhere,):
        with pytest.raises(ApiError) as refused:
            TOKENS.decode(wrong, APPS)
        assert refused.value.reason is Reason.BAD_REQUEST
