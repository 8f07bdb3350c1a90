"""`make bench`: the hot path beside its floor, in one run, printed as ratios; `machinery` measures lists and
watches, `coldstart` (bench/coldstart.py) the first call of a new Function, `ledger` (bench/ledger.py) charges a second.

Starts the whole system with `python -m workers up` on a fresh folder, publishes `bench/user/noop_app.py` with the
public SDK and takes, in turns, the floor (`bench/floor.py`, on the same Temporal server) and ours: one warm
`.remote()`, a `.map()` burst, and the sustained rate, where every call's workflow has closed too. Absolute figures
depend on the machine; the ratios are the result.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from temporalio.client import Client

from bench import coldstart, floor, ledger
from bench.bounds import Bound, missed
from bench.machinery import run as machinery

START_SECONDS_MAX = 300
DRAIN_SECONDS_MAX = 300
WARM_UP_CALLS = 20
COLDSTART_WARM_WORKERS = (0, 2)
BOUNDS = {
    "remote_latency_ratio": Bound(most=0.5),
    "map_burst_ratio": Bound(least=4),
    "sustained_ratio": Bound(least=0.85),
}
CALL_WORKFLOWS = 'WorkflowType = "FunctionCallWorkflow"'


def start_system(data_dir: Path, **settings: object) -> subprocess.Popen[bytes]:
    """Start `up` and wait for its `client.env`, which is written when it is ready."""
    variables = {f"NODUS_SERVER_{name.upper()}": str(value) for name, value in settings.items()}
    log = (data_dir / "up.log").open("wb")
    process = subprocess.Popen(
        [sys.executable, "-m", "workers", "up", "--data-dir", str(data_dir)],
        env={**os.environ, **variables},
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    until = time.monotonic() + START_SECONDS_MAX
    while not (data_dir / "client.env").exists():
        if process.poll() is not None or time.monotonic() > until:
            sys.exit(f"the system did not start; see {data_dir / 'up.log'}")
        time.sleep(0.2)
    return process


def client_environment(data_dir: Path) -> dict[str, str]:
    """The assignments of `client.env`, without quotes."""
    pairs = (line.split("=", 1) for line in (data_dir / "client.env").read_text().splitlines() if "=" in line)
    return {name.removeprefix("export ").strip(): value.strip().strip("'\"") for name, value in pairs}


@contextlib.contextmanager
def running_system(**settings: object) -> Iterator[Path]:
    """A system in a folder of its own, and the variables of its clients in the environment."""
    with tempfile.TemporaryDirectory(prefix="nodus-bench-") as folder:
        data_dir = Path(folder)
        system = start_system(data_dir, **settings)
        try:
            os.environ.update(client_environment(data_dir))
            yield data_dir
        finally:
            system.send_signal(signal.SIGTERM)
            system.wait(60)


async def closed_calls(client: Client) -> int:
    return (await client.count_workflows(f"{CALL_WORKFLOWS} AND ExecutionStatus != 'Running'")).count


async def engine_drained(client: Client, expected: int) -> None:
    """Wait until `expected` call workflows have closed, so one measurement does not pay for another."""
    until = time.monotonic() + DRAIN_SECONDS_MAX
    while await closed_calls(client) < expected:
        if time.monotonic() > until:
            raise TimeoutError(f"only {await closed_calls(client)} of {expected} call workflows closed")
        await asyncio.sleep(0.2)


class Ours:
    """The public SDK against the system under test; counts the calls it made."""

    def __init__(self, function: Any) -> None:  # noqa: ANN401 - the SDK's classes are made at import
        self.function = function
        self.calls = 0

    async def one_by_one(self, count: int) -> list[float]:
        seconds = []
        for value in range(count):
            begun = time.perf_counter()
            result = await self.function.remote.aio(value)
            seconds.append(time.perf_counter() - begun)
            if result != value:
                raise AssertionError(f"noop({value}) returned {result!r}")
        self.calls += count
        return seconds

    async def burst(self, count: int) -> float:
        begun = time.perf_counter()
        results = [value async for value in self.function.map.aio(range(count))]
        seconds = time.perf_counter() - begun
        if results != list(range(count)):
            raise AssertionError("the map's results are wrong or out of order")
        self.calls += count
        return count / seconds


def row(name: str, ours: float, base: float, unit: str, bound: Bound) -> None:
    print(
        f"{name:<34} {ours:>9.1f} {unit:<3} floor {base:>8.1f} {unit:<3} ratio {ours / base:>6.2f}  ({bound})",
        flush=True,
    )


async def measure(client: Client, ours: Ours, queue: str, rounds: int, calls: int) -> dict[str, float]:
    """Take both sides in turns and print a row for each figure; returns the ratios."""
    await ours.one_by_one(WARM_UP_CALLS)
    await floor.one_by_one(client, queue, WARM_UP_CALLS)
    await engine_drained(client, ours.calls)
    latency: list[float] = []
    base_latency: list[float] = []
    bursts: list[float] = []
    base_bursts: list[float] = []
    sustained: list[float] = []
    for _ in range(rounds):
        base_latency += await floor.one_by_one(client, queue, 50)
        latency += await ours.one_by_one(100)
        await engine_drained(client, ours.calls)
        base_bursts.append(await floor.burst(client, queue, calls // 4, in_flight=100))
        begun = time.perf_counter()
        bursts.append(await ours.burst(calls))
        await engine_drained(client, ours.calls)
        sustained.append(calls / (time.perf_counter() - begun))
    row(
        "one warm .remote(), p50",
        median(latency) * 1e3,
        median(base_latency) * 1e3,
        "ms",
        BOUNDS["remote_latency_ratio"],
    )
    row(f".map() of {calls}, burst", median(bursts), median(base_bursts), "/s", BOUNDS["map_burst_ratio"])
    row("sustained, workflows closed", median(sustained), median(base_bursts), "/s", BOUNDS["sustained_ratio"])
    return {
        "remote_latency_ratio": median(latency) / median(base_latency),
        "map_burst_ratio": median(bursts) / median(base_bursts),
        "sustained_ratio": median(sustained) / median(base_bursts),
    }


async def run(data_dir: Path, rounds: int, calls: int) -> dict[str, float]:
    # The folder stands first on the path, so the SDK uploads it alone and not this repository.
    sys.path.insert(0, str(Path(__file__).parent / "user"))
    from noop_app import app, noop  # type: ignore[import-not-found]  # after the environment is set

    address = json.loads((data_dir / "ports.json").read_text())["temporal"]
    client = await Client.connect(f"127.0.0.1:{address}")
    queue = "bench-floor"
    worker = subprocess.Popen([sys.executable, "-m", "bench.floor", f"127.0.0.1:{address}", queue])  # noqa: ASYNC220
    try:
        async with app.run.aio(show_logs=False):
            return await measure(client, Ours(noop), queue, rounds, calls)
    finally:
        worker.terminate()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("calls", "coldstart", "ledger", "machinery"), default="calls")
    parser.add_argument("--rounds", type=int, default=3, help="turns of floor and ours; the median counts")
    parser.add_argument("--warm", type=int, help="coldstart: in a system of this many warm workers only")
    parser.add_argument("--calls", type=int, default=1000, help="calls: inputs of the measured map")
    parser.add_argument("--quick", action="store_true", help="machinery: a twentieth of the size, to see that it works")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if options.what == "machinery":
        figures = machinery.run(machinery.QUICK if options.quick else machinery.FULL)
        if options.json:
            options.json.write_text(json.dumps([figure.as_json() for figure in figures], indent=2) + "\n")
        fail([figure.line() for figure in figures if figure.verdict == "MISSED"])
        return
    if options.what == "ledger":
        figures_of_ledger = asyncio.run(ledger.measure(options.rounds))
        if options.json:
            options.json.write_text(json.dumps(figures_of_ledger, indent=2) + "\n")
        fail(missed(figures_of_ledger, ledger.BOUNDS))
        return
    if options.what == "coldstart":
        # A process of its own for each system: the SDK remembers the server it first spoke to.
        if options.warm is None:
            commands = [
                [sys.executable, "-m", "bench", *sys.argv[1:], "--warm", str(warm)] for warm in COLDSTART_WARM_WORKERS
            ]
            # Each says itself what it missed, and none keeps the next from being measured.
            sys.exit(max(abs(subprocess.run(command, check=False).returncode) for command in commands))
        with running_system(warm_workers_max=options.warm) as data_dir:
            ratios = asyncio.run(coldstart.measure(data_dir, options.rounds, options.warm))
        bounds = coldstart.BOUNDS if options.warm else {}
    else:
        bounds = BOUNDS
        with running_system() as data_dir:
            ratios = asyncio.run(run(data_dir, options.rounds, options.calls))
    if options.json:
        options.json.write_text(json.dumps(ratios, indent=2) + "\n")
    fail(missed(ratios, bounds))


def fail(reasons: Sequence[str]) -> None:
    """End with a code that says so if anything was missed."""
    if reasons:
        sys.exit("\n".join(["beyond their bounds:", *reasons]))


if __name__ == "__main__":
    main()
