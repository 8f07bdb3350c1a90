"""Which grant pays: whatever was granted, charged and has lapsed, each micro-USD is paid by one of them at most."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import hypothesis.strategies as st
from hypothesis import given

from controlplane.ledger.grants import Grant, allotted

NOW = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def grant(number: int, micro_usd: int, expires_in_hours: int | None = None, lapsed: int = 0) -> Grant:
    return Grant(
        id=f"grant/acme/g{number}", org="acme", seq=number, amount_micro_usd=micro_usd, reason="", created_at=NOW,
        expires_at=None if expires_in_hours is None else NOW + timedelta(hours=expires_in_hours),
        lapsed_micro_usd=lapsed, lapses=0,
    )  # fmt: skip


def test_those_that_expire_sooner_pay_first_and_of_those_that_never_do_the_oldest() -> None:
    grants = [grant(1, 10), grant(2, 10), grant(3, 10, 5), grant(4, 10, 2)]
    shares = allotted(grants, 33, 5)
    told = [(share.grant.seq, share.spent_micro_usd, share.held_micro_usd) for share in shares]
    assert told == [(4, 10, 0), (3, 10, 0), (1, 10, 0), (2, 3, 5)]


def test_a_grant_whose_time_is_over_lapses_but_for_what_is_held() -> None:
    [expired, other] = allotted([grant(1, 10, -1), grant(2, 10)], 3, 4)
    assert (expired.due_micro_usd(NOW), other.due_micro_usd(NOW)) == (3, 0)
    # Once it has lapsed it is worth what it paid and what is held, and the next look finds nothing.
    [expired, other] = allotted([grant(1, 10, -1, lapsed=3), grant(2, 10)], 3, 4)
    assert (expired.spent_micro_usd, expired.held_micro_usd, expired.due_micro_usd(NOW)) == (3, 4, 0)
    assert (other.spent_micro_usd, other.held_micro_usd) == (0, 0)


AMOUNTS = st.integers(min_value=0, max_value=1_000)
GRANTS = st.lists(st.tuples(st.integers(1, 500), st.none() | st.integers(-3, 3), st.integers(0, 500)), max_size=8)


@given(GRANTS, AMOUNTS, AMOUNTS)
def test_no_grant_pays_more_than_it_is_worth_and_nothing_is_paid_twice(
    made: list[tuple[int, int | None, int]], spent: int, held: int
) -> None:
    grants = [grant(n, amount, hours, min(lapsed, amount)) for n, (amount, hours, lapsed) in enumerate(made)]
    shares = allotted(grants, spent, held)
    worth = sum(each.amount_micro_usd - each.lapsed_micro_usd for each in grants)
    assert sum(share.spent_micro_usd for share in shares) == min(spent, worth)
    assert sum(share.held_micro_usd for share in shares) == min(held, worth - min(spent, worth))
    for share in shares:
        assert share.spent_micro_usd >= 0
        assert 0 <= share.held_micro_usd <= share.remaining_micro_usd
        assert 0 <= share.due_micro_usd(NOW) <= share.remaining_micro_usd
