"""What the spec of a Function says of how its workers start."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kinds.starting import SidecarStart, WorkerStart, worker_start


@pytest.mark.parametrize(
    ("spec", "start"),
    [
        ({}, WorkerStart(command=[], init_command=[], init_seconds_max=0)),
        ({"command": ["a"]}, WorkerStart(command=["a"], init_command=[], init_seconds_max=0)),
        (
            {"command": ["a", "b"], "args": ["c"]},
            WorkerStart(command=["a", "b", "c"], init_command=[], init_seconds_max=0),
        ),
        ({"initCommand": {"command": ["i"]}}, WorkerStart(command=[], init_command=["i"], init_seconds_max=300)),
        (
            {"initCommand": {"command": ["i"], "timeout": "1.5s"}},
            WorkerStart(command=[], init_command=["i"], init_seconds_max=2),
        ),
        (
            {
                "python": "3.12",
                "sidecars": [
                    {"name": "own", "command": ["a", "b"]},
                    {"name": "older", "command": ["c"], "image": "nodus/python:3.11", "startupTimeout": "1.5s"},
                    {"name": "same", "command": ["d"], "image": "nodus/python"},
                ],
            },
            WorkerStart(
                command=[],
                init_command=[],
                init_seconds_max=0,
                sidecars=(
                    SidecarStart(name="own", command=["a", "b"], python=None, seconds_max=60),
                    SidecarStart(name="older", command=["c"], python="3.11", seconds_max=2),
                    SidecarStart(name="same", command=["d"], python="3.12", seconds_max=60),
                ),
            ),
        ),
    ],
)
def test_a_spec_says_how_its_workers_start(spec: dict[str, Any], start: WorkerStart) -> None:
    assert worker_start(spec) == start


def test_what_comes_before_a_worker_has_the_time_of_all_its_parts() -> None:
    beside = [{"name": name, "command": ["a"], "startupTimeout": "10s"} for name in ("a", "b")]
    start = worker_start({"initCommand": {"command": ["i"], "timeout": "5s"}, "sidecars": beside})
    assert start.before_seconds_max == 25
