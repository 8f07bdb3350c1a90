"""What `-o wide` tells of an Attempt beside its usual columns."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.kinds.attempt import ATTEMPT
from controlplane.machinery.table import NOTHING


@pytest.mark.parametrize(
    ("status", "cells"),
    [
        pytest.param({}, (NOTHING, NOTHING, NOTHING), id="one that has said nothing"),
        pytest.param({"guarantees": {"level": "none"}}, ("none", NOTHING, NOTHING), id="one that runs"),
        pytest.param({"exitCode": 0, "message": "bye"}, (NOTHING, "0", "bye"), id="one that left"),
        pytest.param({"exitCode": 137, "signal": 9}, (NOTHING, "signal 9", NOTHING), id="one that was killed"),
    ],
)
def test_wide_tells_how_a_worker_is_isolated_and_how_it_ended(status: dict[str, Any], cells: tuple[str, ...]) -> None:
    document = {"metadata": {"name": "att-1"}, "status": status}
    wide = [column for column in ATTEMPT.columns if column.priority == 1]
    assert [column.name for column in wide] == ["Isolation", "Exit", "Message"]
    assert tuple(str(column.read(document, datetime.now(UTC))) for column in wide) == cells
