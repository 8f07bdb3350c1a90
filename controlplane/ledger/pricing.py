"""What running costs: whole worker-seconds times a rate, rounded once.

The only rounding of money in the project is `call_charge_micro_usd`. Amounts are integer micro-USD, durations whole
seconds taken from one pair of server times. What counts as time of a call, when workers are lost, cancels ignored and
reports repeated, is the table of docs/decisions/0024-what-a-call-costs.md. `calls/outcomes.py` charges every dispatch
with it, in the transaction that records how the dispatch ended.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache

from controlplane.machinery.quantities import parse_money

_MICROSECOND = timedelta(microseconds=1)
SECONDS_PER_HOUR = 3_600


LOCAL = "local"
"""The offering of this server's own hosts, at the flat rate."""


@dataclass(frozen=True, kw_only=True)
class WorkerPrice:
    """What a worker costs. It is agreed when the worker starts and holds until its end, for its calls as well; the
    fields are columns of workers, of the calls they hold and of their accounts."""

    rate_micro_usd_per_hour: int = 0
    pricebook: str = ""
    """Version of the book that has the rate."""
    offering: str = ""
    """What it runs on."""


FREE = WorkerPrice()


@dataclass(frozen=True, kw_only=True)
class Billing:
    """How the time of one worker is rounded up, once, when it has ended (decision 0038); the plain one charges the
    whole seconds that it took."""

    increment_seconds: int = 1
    minimum_seconds: int = 1

    def billed_seconds(self, seconds: int) -> int:
        """What is charged of a worker that took so many whole seconds: whole increments and the minimum at least, and
        nothing of one that took none."""
        if seconds <= 0:
            return 0
        return max(-(-seconds // self.increment_seconds) * self.increment_seconds, self.minimum_seconds)

    def held_seconds(self, lived_seconds: int, window_seconds: int) -> int:
        """What is held for the next window of a worker that has lived so long, so that its rounding is paid for
        whenever within it that ends."""
        return self.billed_seconds(lived_seconds + window_seconds) - lived_seconds

    def window_seconds(self, lived_seconds: int, payable_seconds: int) -> int:
        """The longest window for which no more than that is held, nothing or less where none is."""
        billed = lived_seconds + payable_seconds
        if billed < self.minimum_seconds:
            return 0
        return billed // self.increment_seconds * self.increment_seconds - lived_seconds


PER_SECOND = Billing()


@lru_cache(maxsize=16)
def flat_price(rate_usd_per_hour: str) -> WorkerPrice:
    """The price of that setting, a decimal string: of every worker where no price book offers the hosts."""
    return WorkerPrice(
        rate_micro_usd_per_hour=parse_money(rate_usd_per_hour),
        pricebook=f"flat-{rate_usd_per_hour}",
        offering=LOCAL,
    )


def worker_seconds(started_at: datetime, ended_at: datetime) -> int:
    """Whole seconds a dispatch is charged for: begun seconds count, and a call that ran counts at least one.

    A clock that was set back between the two gives one second, never a negative amount.
    """
    microseconds = (ended_at - started_at) // _MICROSECOND
    return max(1, -(-microseconds // 1_000_000))


def most_micro_usd(timeout_seconds: float, grace_seconds: float, rate_micro_usd_per_hour: int, shares: int) -> int:
    """The most that a dispatch can be charged, in micro-USD: what is reserved for it. No dispatch is charged for more
    than its timeout and the grace after it (`calls/outcomes.py`)."""
    return call_charge_micro_usd(math.ceil(timeout_seconds + grace_seconds), rate_micro_usd_per_hour, shares)


def call_charge_micro_usd(seconds: int, rate_micro_usd_per_hour: int, target_concurrency: int) -> int:
    """The charge in micro-USD for `seconds` of one of `target_concurrency` places on a worker, rounded up once.

    Raises ValueError for a negative duration or rate and for a concurrency below one.
    Source: API reference, FunctionCall `status.costUSD`.
    """
    if seconds < 0 or rate_micro_usd_per_hour < 0 or target_concurrency < 1:
        raise ValueError(
            f"cannot price {seconds} s at {rate_micro_usd_per_hour} micro-USD an hour shared by {target_concurrency}"
        )
    return -(-(seconds * rate_micro_usd_per_hour) // (SECONDS_PER_HOUR * target_concurrency))
