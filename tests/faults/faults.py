"""The faults there are, by name, and a run of them in an order that a seed decides.

A fault does something to the cluster and takes it back: when it returns, every member serves again. Faults that need a
certain moment are tests of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tests.faults.cluster import APIS, CONTROLS, MEMBERS, NODE, Cluster
from tests.faults.history import FAULT, History
from tests.faults.proxy import Proxy

Inflict = Callable[[Cluster, random.Random, str], Awaitable[None]]
FROZEN_SECONDS = (0.5, 8.0)
"""Shorter and longer than what heartbeats and requests allow; a frozen worker is given more than a lease elsewhere."""
BROKEN_SECONDS = (0.2, 4.0)
TEN_MINUTES = 600
"""How far a clock is moved: more than any lease, grace or backoff here."""


@dataclass(frozen=True)
class Fault:
    """What is done, and to which members or links it may be done."""

    inflict: Inflict
    targets: Sequence[str]


async def kill(cluster: Cluster, rng: random.Random, target: str) -> None:
    """kill -9, some time in the dark, a new start."""
    cluster.kill(target)
    await asyncio.sleep(rng.uniform(0, 1))
    await cluster.start_member(target)


async def freeze(cluster: Cluster, rng: random.Random, target: str) -> None:
    """SIGSTOP, and SIGCONT later."""
    cluster.freeze(target)
    try:
        await asyncio.sleep(rng.uniform(*FROZEN_SECONDS))
    finally:
        cluster.thaw(target)


async def kill_worker(cluster: Cluster, rng: random.Random, target: str) -> None:
    """kill -9 of one worker, whatever it runs."""
    cluster.signal_workers(signal.SIGKILL, rng)


async def freeze_worker(cluster: Cluster, rng: random.Random, target: str) -> None:
    """A worker that stands still, sometimes for longer than its lease."""
    pids = cluster.signal_workers(signal.SIGSTOP, rng)
    await asyncio.sleep(rng.choice([2, 25]))
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


async def move_clock(cluster: Cluster, rng: random.Random, target: str) -> None:
    """A new life of a member in a wrong time, early or late, and then one in the right time."""
    cluster.move_clock(target, rng.choice((-TEN_MINUTES, TEN_MINUTES)))
    try:
        await cluster.restart(target)
        await asyncio.sleep(rng.uniform(*FROZEN_SECONDS))
    finally:
        cluster.move_clock(target, 0)
        await cluster.restart(target)


async def late_worker(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Workers that start now are late for as long as they live. An early one would say of each call that its time is
    over: what keeps a true worker from that is the proxy of its node, which the node of this harness has not."""
    cluster.move_clock(NODE, -TEN_MINUTES)
    try:
        cluster.signal_workers(signal.SIGKILL, rng)
        await asyncio.sleep(rng.uniform(*FROZEN_SECONDS))
    finally:
        cluster.move_clock(NODE, 0)


async def cut(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Reset all connections of a link, a few times."""
    for _ in range(rng.randint(1, 4)):
        link(cluster, target).cut()
        await asyncio.sleep(rng.uniform(0, 0.5))


async def refuse(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Reset a link and every new connection on it for a while."""
    await _broken(cluster, rng, target, Proxy.refuse)


async def slow_down(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Delay everything on a link."""
    seconds = rng.uniform(0.02, 0.4)
    await _broken(cluster, rng, target, lambda proxy: proxy.slow_down(seconds))


async def silence(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Half-open connections: nothing passes, nobody is told, and in the end all are reset."""
    await _lost(cluster, rng, target, Proxy.go_silent)


async def mute(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Half-open connections of the other kind: every request arrives and is done, and no answer comes back."""
    await _lost(cluster, rng, target, Proxy.go_mute)


async def _lost(cluster: Cluster, rng: random.Random, target: str, do: Callable[[Proxy], object]) -> None:
    proxy = link(cluster, target)
    do(proxy)
    try:
        await asyncio.sleep(rng.uniform(*FROZEN_SECONDS))
    finally:
        proxy.cut()
        proxy.heal()


async def lose_answers(cluster: Cluster, rng: random.Random, target: str) -> None:
    """Forward requests that write, and lose their answers."""
    kind, _, _ = target.partition(" ")
    await _broken(cluster, rng, target, lambda proxy: proxy.lose_answers_to(WRITES[kind], rng.randint(1, 5)))


async def _broken(cluster: Cluster, rng: random.Random, target: str, do: Callable[[Proxy], object]) -> None:
    proxy = link(cluster, target)
    do(proxy)
    try:
        await asyncio.sleep(rng.uniform(*BROKEN_SECONDS))
    finally:
        proxy.heal()


WRITES: Mapping[str, bytes] = MappingProxyType(
    {
        "web": rb"(?:POST|PATCH|DELETE|PUT) /[^\r]*\r\n(?s:.{0,400})",
        "sql": rb"COMMIT",
        "engine": rb"(?:call|attempt)/[a-z]+[_-]\w+",
    }
)
"""By the kind of link, how a request that writes is known. One counts once, so its repetition is answered."""

LINKS = (
    *(f"web {name}" for name in APIS),
    *(f"sql {name}" for name in (*APIS, *CONTROLS)),
    *(f"engine {name}" for name in (*CONTROLS, NODE)),
)
FAULTS: Mapping[str, Fault] = MappingProxyType(
    {
        "kill": Fault(kill, MEMBERS),
        "freeze": Fault(freeze, MEMBERS),
        "kill-worker": Fault(kill_worker, ("a worker",)),
        "freeze-worker": Fault(freeze_worker, ("a worker",)),
        "move-clock": Fault(move_clock, (*APIS, *CONTROLS)),
        "late-worker": Fault(late_worker, ("a worker",)),
        "cut": Fault(cut, LINKS),
        "refuse": Fault(refuse, LINKS),
        "slow-down": Fault(slow_down, LINKS),
        "silence": Fault(silence, LINKS),
        "mute": Fault(mute, LINKS),
        "lose-answers": Fault(lose_answers, LINKS),
    }
)


def link(cluster: Cluster, target: str) -> Proxy:
    """The proxy that a target of LINKS names."""
    kind, _, name = target.partition(" ")
    proxies: Mapping[str, Mapping[str, Proxy]] = {"web": cluster.web, "sql": cluster.sql, "engine": cluster.engine}
    return proxies[kind][name]


def in_turn(rng: random.Random) -> Iterator[str]:
    """Names of faults without end, in random order and each as often as any other: of n in a row, none is missing."""
    while True:
        yield from rng.sample(sorted(FAULTS), len(FAULTS))


async def inflict_for(
    cluster: Cluster, rng: random.Random, seconds: float, history: History, enough: asyncio.Event
) -> int:
    """One fault after the other, until the time is over or there were `enough`; how many.

    None is left half done, since others use the cluster afterwards: do not cancel this.
    """
    until = time.monotonic() + seconds
    count = 0
    for name in in_turn(rng):
        if time.monotonic() >= until or enough.is_set():
            break
        target = rng.choice(FAULTS[name].targets)
        history.add(FAULT, what=f"{name} {target}")
        await FAULTS[name].inflict(cluster, rng, target)
        count += 1
        await asyncio.sleep(rng.uniform(0, 1))
    return count
