"""What was created bound to a quote is charged at that rate and a tenth at most, whatever prices do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.kinds.quotes import QUOTED_RATE, bound_as, quote_of, quoted, within_quote, without_quote
from controlplane.kinds.registry import KINDS
from controlplane.resources.mutations import Create, Creation
from controlplane.store.contract import Key
from tests.fixtures.calls import ORG, PROJECT, Calls, PutObject, call, succeeded
from tests.fixtures.inspecting import Inspecting

UNBOUND: dict[str, Any] = {"metadata": {"name": "o"}}
rates = st.integers(0, 10**9)


@pytest.mark.parametrize(
    ("bound", "now", "charged"),
    [
        (None, 72_000, 72_000),
        (36_000, 36_000, 36_000),
        (36_000, 20_000, 20_000),
        (36_000, 39_600, 39_600),
        (36_000, 39_601, 39_600),
        (36_000, 72_000, 39_600),
        (0, 72_000, 0),
        # A tenth of what is not divided by ten is rounded down: never above.
        (3, 72_000, 3),
    ],
)
def test_a_bound_object_is_charged_at_its_quote_and_a_tenth_at_most(bound: int | None, now: int, charged: int) -> None:
    assert within_quote(UNBOUND if bound is None else quoted(UNBOUND, bound), now) == charged


@given(rates, rates)
def test_no_price_brings_a_bound_object_above_its_quote_and_a_tenth(bound: int, now: int) -> None:
    charged = within_quote(quoted(UNBOUND, bound), now)
    assert charged <= now
    assert 10 * charged <= 11 * bound


def test_a_quote_is_read_as_it_was_written_and_taken_off_without_a_trace() -> None:
    assert quote_of(quoted(UNBOUND, 1_234_567)) == 1_234_567
    assert (quote_of(UNBOUND), quote_of(None)) == (None, None)
    assert without_quote(quoted(UNBOUND, 1)) == UNBOUND
    kept = {"metadata": {"name": "o", "annotations": {"a": "b"}}}
    assert without_quote(quoted(kept, 1)) == kept


@pytest.mark.parametrize(
    ("owner", "own", "bound"), [(None, None, None), (5, None, 5), (None, 5, 5), (5, 7, 5), (7, 5, 5)]
)
def test_of_the_quotes_of_a_call_and_its_function_the_lower_one_holds(
    owner: int | None, own: int | None, bound: int | None
) -> None:
    def object_of(rate: int | None) -> dict[str, Any]:
        return UNBOUND if rate is None else quoted(UNBOUND, rate)

    assert quote_of(bound_as(object_of(owner), object_of(own))) == bound


async def create(calls: Calls, name: str, rate_micro_usd_per_hour: int | None = None) -> None:
    document = call(name, "f", "")
    if rate_micro_usd_per_hour is not None:
        document = quoted(document, rate_micro_usd_per_hour)
    creation = Creation(Key("FunctionCall", ORG, PROJECT, name), document)
    await calls.writer.write(Create(KINDS["FunctionCall"], [creation], calls.hooks, None, as_list=False))


async def ran_ten_seconds(calls: Calls, name: str) -> str:
    worker = await calls.worker()
    assert await worker.take() == [name]
    calls.clock.advance(10)
    await worker.claim(succeeded(name), take=0)
    return str((await calls.status(name))["costUSD"])


async def test_a_call_is_charged_by_its_quote_and_the_audit_agrees(calls: Calls, inspecting: Inspecting) -> None:
    # The price has doubled since the quote: 20 instead of 10 micro-USD a second.
    calls.price = replace(calls.price, rate_micro_usd_per_hour=72_000)
    await create(calls, "free")
    await create(calls, "bound", 36_000)
    assert await ran_ten_seconds(calls, "free") == "0.0002"
    assert await ran_ten_seconds(calls, "bound") == "0.00011"
    told = await inspecting.charges("bound")
    assert (told["equal"], told["ledgerUSD"], told["charges"][0]["rateUSDPerHour"]) == (True, "0.00011", "0.0396")
    # A price that fell is the caller's.
    calls.price = replace(calls.price, rate_micro_usd_per_hour=18_000)
    await create(calls, "cheaper", 36_000)
    assert await ran_ten_seconds(calls, "cheaper") == "0.00005"


async def test_calls_of_a_bound_function_are_bound_as_it_is(calls: Calls) -> None:
    bound = quoted(await calls.function("f"), 36_000)
    await calls.writer.write(PutObject(Key("Function", ORG, PROJECT, "f"), bound))
    calls.price = replace(calls.price, rate_micro_usd_per_hour=72_000)
    await create(calls, "a")
    await create(calls, "b", 39_600)
    await create(calls, "c", 10_000)
    assert [await ran_ten_seconds(calls, name) for name in "abc"] == ["0.00011", "0.00011", "0.000031"]
    assert (await calls.get("FunctionCall", "b"))["metadata"]["annotations"] == {QUOTED_RATE: "0.036"}
