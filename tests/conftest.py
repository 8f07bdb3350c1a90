"""Fixtures of the whole suite; each lives in a module of its own."""

from __future__ import annotations

import os

from tests.fixtures.prices import RATE_USD_PER_HOUR, RATE_VARIABLE

os.environ.setdefault(RATE_VARIABLE, RATE_USD_PER_HOUR)
pytest_plugins = [
    # First, because others import it.
    "tests.fixtures.postgres",
    "tests.fixtures.wire",
    "tests.fixtures.system",
    "tests.fixtures.admission",
    "tests.fixtures.app",
    "tests.fixtures.calls",
    "tests.fixtures.cases",
    "tests.fixtures.clients",
    "tests.fixtures.control",
    "tests.fixtures.inspecting",
    "tests.fixtures.paid_workers",
    "tests.fixtures.plane",
    "tests.fixtures.s3",
    "tests.fixtures.sweeping",
    "tests.fixtures.temporal",
]
