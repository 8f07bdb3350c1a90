"""The first call of a new Function beside a bare Python that imports what its worker does; `coldstart` runs it.

Ours is from the request that creates the Function to the first result, through the public SDK: decision, placement,
workflow, sandbox, code and call. The floor is `python -c` with the imports of the public worker, on the interpreter of
the same environment, in turns with ours. The system is started twice: without warm workers and with them. Between two
turns the pool is given time to fill, which is told by its processes having come to rest.
"""

from __future__ import annotations

import asyncio
import copy
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from bench.bounds import Bound

IMPORTS = "import nodus._runtime.functions, nodus; nodus.App"
BOUNDS = {"ratio": Bound(most=1.5)}
"""Where workers wait."""
REST_SECONDS_MAX = 60.0
REST_SECONDS = 0.5
"""A process that used no processor for this long waits for somebody."""


def bare_python(environment: Path) -> float:
    """Seconds of a new interpreter with the worker's imports."""
    begun = time.perf_counter()
    subprocess.run([environment / "bin" / "python", "-c", IMPORTS], check=True)
    return time.perf_counter() - begun


def interpreters(data_dir: Path) -> Iterator[psutil.Process]:
    """The processes of workers of the system in `data_dir`, waiting ones included."""
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if words[:1] == ["/nodus/env/bin/python"] and str(data_dir / "node") in _mounts(process):
            yield process


def _mounts(process: psutil.Process) -> str:
    try:
        return Path(f"/proc/{process.pid}/mountinfo").read_text()
    except OSError:
        return ""


async def at_rest(data_dir: Path, workers: int) -> None:
    """Wait until as many workers as this wait, all of them idle."""
    until = time.monotonic() + REST_SECONDS_MAX
    before: dict[int, float] = {-1: 0.0}
    while True:
        used = {process.pid: sum(process.cpu_times()[:2]) for process in interpreters(data_dir)}
        if used == before and len(used) >= workers:
            return
        if time.monotonic() > until:
            raise TimeoutError(f"{len(used)} workers wait and are at rest, not {workers}")
        before = used
        await asyncio.sleep(REST_SECONDS)


async def first_call(client: Any, pattern: dict[str, Any], number: int) -> float:  # noqa: ANN401 - the SDK's client
    """Seconds from the creation of a Function to the result of its first call."""
    import nodus

    member = f"cold{number}"
    function = {**copy.deepcopy(pattern), "metadata": {"name": f"bench-{member}"}}
    begun = time.perf_counter()
    await client.create.aio(function)
    result = await nodus.Function.from_name("bench", member).remote.aio(number)
    seconds = time.perf_counter() - begun
    if result != number:
        raise AssertionError(f"{member}({number}) returned {result!r}")
    await client.delete.aio("Function", f"bench-{member}")
    return seconds


async def measure(data_dir: Path, rounds: int, warm_workers: int) -> dict[str, float]:
    """Both sides in turns; prints a row and returns the medians and their ratio."""
    sys.path.insert(0, str(Path(__file__).parent / "user"))
    import nodus
    from noop_app import app, noop  # type: ignore[import-not-found]  # after the environment is set

    client = nodus.Client()
    [environment] = [path.parent for path in (data_dir / "environments").glob("*/nodus-environment.json")]
    async with app.run.aio(show_logs=False):
        await noop.remote.aio(0)
        # The App of a run has a name of its own; the system has no other Function.
        [pattern] = [
            {key: found[key] for key in ("apiVersion", "kind", "spec")} for found in await client.list.aio("Function")
        ]
        pattern["spec"]["scaling"] |= {"minWorkers": 0, "maxWorkers": 1}
        kept = 2  # of `noop`; they stay for the whole measurement
        floors, ours = [], []
        for number in range(rounds):
            await at_rest(data_dir, kept + warm_workers)
            floors.append(bare_python(environment))
            ours.append(await first_call(client, pattern, number))
    load = psutil.getloadavg()[0]
    told = f"; {BOUNDS['ratio']}" if warm_workers else ""
    name = f"first call, {warm_workers} warm workers" if warm_workers else "first call, none warm"
    print(
        f"{name:<34} {median(ours) * 1e3:>9.1f} ms  floor {median(floors) * 1e3:>8.1f} ms  "
        f"ratio {median(ours) / median(floors):>6.2f}  (load {load:.1f}{told})",
        flush=True,
    )
    return {"first_call": median(ours), "floor": median(floors), "ratio": median(ours) / median(floors), "load": load}
