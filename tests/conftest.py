"""Fixtures of the whole suite; each lives in a module of its own."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

from tests.fixtures.prices import RATE_USD_PER_HOUR, RATE_VARIABLE

os.environ.setdefault(RATE_VARIABLE, RATE_USD_PER_HOUR)
# An example is judged by what it shows, not by how long a busy machine takes to make it or to run it.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
pytest_plugins = [
    # First, because others import them.
    "tests.fixtures.postgres",
    "tests.fixtures.temporal",
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
    "tests.fixtures.root",
    "tests.fixtures.s3",
    "tests.fixtures.sweeping",
]
