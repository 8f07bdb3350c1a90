"""What the spec of a Function says of how its workers start."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.kinds.starting import WorkerStart, worker_start


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
    ],
)
def test_a_spec_says_how_its_workers_start(spec: dict[str, Any], start: WorkerStart) -> None:
    assert worker_start(spec) == start
