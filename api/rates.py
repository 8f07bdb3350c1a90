"""How often one credential may ask, by class of request; `middleware.Edge` asks here before a route is tried.

A bucket of tokens for each credential and class, in the memory of the process: n processes together allow n times as
much, which is what n processes can serve. Workers' claims have buckets of their own, so nothing else that a worker or
its project does makes them wait; nodes belong to the installation and are not counted. What is not authenticated is
counted by address: keys that turn out to be nobody's, each of which costs a look-up
(`controlplane/identity/authenticator.py`), and logins (`api/login_pages.py`).

A bucket is one number, the time at which it will be full again: a request moves it on by the time one token takes to
come, and is refused when that is further off than a whole bucket takes.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum

from starlette.types import Scope

from controlplane.edge_settings import EdgeSettings
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal, PrincipalKind

ALLOWANCE = "nodus.allowance"
"""Key of the `Allowance` of a request in the ASGI scope."""
_READS = frozenset({"GET", "HEAD", "OPTIONS"})
_OF_WORKERS = ("/claims", "/cancels")
_STREAMS = (b"watch=", b"follow=")


class RequestClass(StrEnum):
    """What is counted together."""

    READ = "read"
    WRITE = "write"
    WATCH = "watch"
    CLAIM = "claim"


@dataclass(frozen=True, slots=True)
class Rate:
    """How fast a bucket fills, and how much it holds."""

    per_second: float
    burst: int


class Allowance:
    """What came of a request: whether it may go on, and what its answer tells of the bucket."""

    __slots__ = ("_class", "_full_seconds", "_rate", "allowed")

    def __init__(self, request_class: RequestClass, rate: Rate, *, allowed: bool, full_seconds: float) -> None:
        self._class = request_class
        self._rate = rate
        self.allowed = allowed
        self._full_seconds = full_seconds

    @property
    def remaining(self) -> int:
        """Requests that would be allowed at once."""
        return max(self._rate.burst - math.ceil(self._full_seconds * self._rate.per_second - _TOLERANCE), 0)

    def headers(self) -> list[tuple[bytes, bytes]]:
        """The state of the bucket; its reset is the time until it is full."""
        return [
            (b"ratelimit-limit", b"%d" % self._rate.burst),
            (b"ratelimit-remaining", b"%d" % self.remaining),
            (b"ratelimit-reset", b"%d" % math.ceil(self._full_seconds)),
        ]

    def refusal(self) -> ApiError:
        """The 429 of a request that was not allowed."""
        rate = self._rate
        until_next = max(self._full_seconds - (rate.burst - 1) / rate.per_second, 0.0)
        return ApiError(
            Reason.TOO_MANY_REQUESTS,
            f"this credential has used up its {rate.burst} {self._class} requests, and gets {rate.per_second:g} "
            "more a second",
            details={"rate": self._class.value},
            retry_after_seconds=max(math.ceil(until_next), 1),
        )


_TOLERANCE = 1e-6
"""Of a request; times are sums of fractions."""


class Buckets:
    """Buckets by whatever is counted, as many as fit; the one asked for least recently goes first."""

    def __init__(self, buckets_max: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._full_at: OrderedDict[Hashable, float] = OrderedDict()
        self._buckets_max = buckets_max
        self._clock = clock

    def take(self, bucket: Hashable, rate: Rate) -> tuple[bool, float]:
        """Take a token: whether there was one, and in how many seconds the bucket will be full."""
        now = self._clock()
        full_at = max(self._full_at.get(bucket, now), now)
        with_this = full_at + 1 / rate.per_second
        allowed = (with_this - now) * rate.per_second <= rate.burst + _TOLERANCE
        if allowed:
            self._full_at[bucket] = full_at = with_this
            self._full_at.move_to_end(bucket)
            if len(self._full_at) > self._buckets_max:
                self._full_at.popitem(last=False)
        return allowed, full_at - now

    def give_back(self, bucket: Hashable, rate: Rate) -> None:
        """Put a token that was taken back."""
        if bucket in self._full_at:
            self._full_at[bucket] -= 1 / rate.per_second


class Rates:
    """The buckets of a process, by credential and class."""

    def __init__(self, settings: EdgeSettings, clock: Callable[[], float] = time.monotonic) -> None:
        rates = {
            RequestClass.READ: Rate(settings.rate_read_per_second, settings.rate_read_burst_max),
            RequestClass.WRITE: Rate(settings.rate_write_per_second, settings.rate_write_burst_max),
            RequestClass.WATCH: Rate(settings.rate_watch_per_second, settings.rate_watch_burst_max),
            RequestClass.CLAIM: Rate(settings.rate_claim_per_second, settings.rate_claim_burst_max),
        }
        self._rates = {request_class: rate for request_class, rate in rates.items() if rate.per_second > 0}
        self._buckets = Buckets(settings.rate_buckets_max, clock)

    def take(self, credential: bytes, caller: Principal, scope: Scope) -> Allowance | None:
        """Take a token for the request; None when requests of its class are not counted."""
        if caller.kind is PrincipalKind.NODE:
            return None
        request_class = class_of(scope, caller)
        rate = self._rates.get(request_class)
        if rate is None:
            return None
        allowed, full_seconds = self._buckets.take((credential, request_class), rate)
        return Allowance(request_class, rate, allowed=allowed, full_seconds=full_seconds)


class GuessRates:
    """How many keys of nobody each address may try at this process. Keys that were good here go on working, whoever
    guesses beside them."""

    def __init__(self, settings: EdgeSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = Rate(settings.guess_per_second, settings.guess_burst_max)
        self._buckets = Buckets(settings.rate_buckets_max, clock)

    def of(self, source: str) -> Guessing:
        """The part of one address."""
        return Guessing(self._buckets, self._rate, source)


class Guessing:
    """Look-ups of one address."""

    __slots__ = ("_buckets", "_rate", "_source")

    def __init__(self, buckets: Buckets, rate: Rate, source: str) -> None:
        self._buckets = buckets
        self._rate = rate
        self._source = source

    def begin(self) -> None:
        """Count one; TooManyRequests when too many were wrong."""
        allowed, _ = self._buckets.take(self._source, self._rate)
        if not allowed:
            raise ApiError(
                Reason.TOO_MANY_REQUESTS,
                f"this address has tried {self._rate.burst} keys that are nobody's, and gets "
                f"{self._rate.per_second:g} more tries a second",
                retry_after_seconds=max(math.ceil(1 / self._rate.per_second), 1),
                fix="Use a key that is good; one that has been good at this server still works.",
            )

    def forgive(self) -> None:
        """Count it no more."""
        self._buckets.give_back(self._source, self._rate)


def class_of(scope: Scope, caller: Principal) -> RequestClass:
    """The class of a request, from its first line alone: nothing else has been read yet."""
    if scope["method"] in _READS:
        query = scope["query_string"]
        is_stream = bool(query) and any(word in query for word in _STREAMS)
        return RequestClass.WATCH if is_stream else RequestClass.READ
    if caller.kind is PrincipalKind.ATTEMPT and scope["path"].endswith(_OF_WORKERS):
        return RequestClass.CLAIM
    return RequestClass.WRITE
