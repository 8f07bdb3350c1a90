"""The machinery bench works: a small store is filled, listed to its end and watched, and nothing is beyond its bounds.

How long a page or an event takes is told only by a quiet machine; CPU and memory are told by any.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.machinery.pages import LISTS
from bench.machinery.run import QUICK, measure

pytestmark = pytest.mark.timeout(600)


async def test_the_bench_measures_pages_and_watches_within_their_bounds(tmp_path: Path) -> None:
    figures = {figure.name: figure for figure in await measure(QUICK, tmp_path)}
    assert {f"{name}: CPU of a page" for name in LISTS} <= figures.keys()
    assert {f"{QUICK.idle_watches} idle watches: {what}" for what in ("memory", "CPU")} <= figures.keys()
    assert {
        f"watch of {whose} process: commit to client, p99" for whose in ("the writing", "another")
    } <= figures.keys()
    told = [figure for figure in figures.values() if figure.bound is not None and figure.floor is None]
    assert [figure.line() for figure in told if figure.verdict != "met"] == []
