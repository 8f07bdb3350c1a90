"""What tests of the operator's commands share: an API beside which they are run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.app import ServedApi, api_settings, serve


@pytest.fixture
async def served(database_url: str, tmp_path: Path) -> AsyncIterator[ServedApi]:
    """An API with the Function `f`."""
    async with serve(api_settings(database_url, tmp_path)) as api:
        await api.function()
        yield api
