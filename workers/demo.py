"""What `make run` shows beyond `up`: an example through the public command line, and what its calls cost.

The example runs as any user's program would, by the `nodus` command of the public wheel with the variables of
`client.env`; nothing of ours is on its path. Its App is gone when it ends, but finished calls stay for a week, so their
costs can be read afterwards.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sysconfig
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
from rich.table import Table

from controlplane.clock import SystemClock, format_time
from workers.client_files import Access
from workers.progress import Progress

PAGE_CALLS = 500
EXAMPLE_SECONDS_MAX = 600.0
STOP_SECONDS = 5.0
"""Between SIGTERM and SIGKILL for an example; what it leaves behind on the server expires."""
STOP_POLL_SECONDS = 0.05


async def run_example(example: Path, access: Access, progress: Progress) -> None:
    """Run the file and print the costs of the calls it made; a failure is told, not raised: the system serves on."""
    begun = format_time(SystemClock().now())
    progress.say(f"Running: nodus run {example}\n")
    try:
        code = await _run(example, access)
    except TimeoutError:
        progress.warn(f"the example was ended after {EXAMPLE_SECONDS_MAX:g} s")
        return
    if code != 0:
        progress.warn(f"the example ended with code {code}")
        return
    try:
        progress.show(_costs(await _finished_calls(access, begun)))
    except httpx.HTTPError as error:
        progress.warn(f"its costs cannot be read: {error}")


async def _run(example: Path, access: Access) -> int:
    process = await asyncio.create_subprocess_exec(
        str(Path(sysconfig.get_path("scripts")) / "nodus"),
        "run",
        str(example),
        stdin=asyncio.subprocess.DEVNULL,
        env={**_user_environment(), **access.variables},
        start_new_session=True,
    )
    try:
        return await asyncio.wait_for(process.wait(), EXAMPLE_SECONDS_MAX)
    except (TimeoutError, asyncio.CancelledError):
        await _end(process.pid)
        await process.wait()
        raise


async def _end(group: int) -> None:
    """End every process of the group: the command runs the user's program in one of its own and would leave it."""
    loop = asyncio.get_running_loop()
    until = loop.time() + STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGTERM)
        while loop.time() < until:
            await asyncio.sleep(STOP_POLL_SECONDS)
            os.killpg(group, 0)
        os.killpg(group, signal.SIGKILL)


def _user_environment() -> dict[str, str]:
    """The user's environment; the command runs `python3` by name, which must be the one that has the public SDK."""
    scripts = sysconfig.get_path("scripts")
    return {
        name: value
        for name, value in {**os.environ, "PATH": f"{scripts}:{os.environ.get('PATH', os.defpath)}"}.items()
        if not name.startswith("NODUS_")
    }


async def _finished_calls(access: Access, since: str) -> list[dict[str, Any]]:
    """The calls created since that time, from the same API any client has."""
    found: list[dict[str, Any]] = []
    query: dict[str, str | int] = {"limit": PAGE_CALLS}
    headers = {"Authorization": f"Bearer {access.api_key}"}
    path = f"/apis/nodus.dev/v1/namespaces/{access.project}/functioncalls"
    async with httpx.AsyncClient(base_url=access.api_url, headers=headers, trust_env=False) as client:
        while True:
            page = (await client.get(path, params=query)).raise_for_status().json()
            found += [call for call in page["items"] if call["metadata"]["creationTimestamp"] >= since]
            if not page["metadata"].get("continue"):
                return found
            query["continue"] = page["metadata"]["continue"]


def _costs(calls: list[dict[str, Any]]) -> Table:
    """Calls and cost by Function."""
    cost: defaultdict[str, Decimal] = defaultdict(Decimal)
    count: defaultdict[str, int] = defaultdict(int)
    for call in calls:
        function = call["spec"]["function"]
        count[function] += 1
        cost[function] += Decimal(call["status"].get("costUSD", "0"))
    table = Table("Function", "calls", "cost in USD", title="What it cost", title_justify="left")
    for function in sorted(count):
        table.add_row(function, str(count[function]), f"{cost[function]:f}")
    table.add_section()
    total = sum(cost.values())
    table.add_row("all", str(sum(count.values())), f"{total:f}")
    if not total:
        table.caption = "Calls are free until a price is set, such as NODUS_SERVER_WORKER_RATE_USD_PER_HOUR=0.036."
    return table
