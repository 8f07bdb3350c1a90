"""An open store on a fresh database, and a second one as another process would open it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.controlplane.store.things import Store, close_store, open_store


@pytest.fixture
async def store(database_url: str) -> AsyncIterator[Store]:
    opened = await open_store(database_url)
    yield opened
    await close_store(opened)


@pytest.fixture
async def replica(database_url: str, store: Store) -> AsyncIterator[Store]:
    opened = await open_store(database_url)
    yield opened
    await close_store(opened)
