"""Fixtures of the whole suite; each lives in a module of its own."""

from __future__ import annotations

pytest_plugins = ["tests.fixtures.postgres", "tests.fixtures.temporal"]
