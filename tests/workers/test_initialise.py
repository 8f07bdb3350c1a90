"""The first start makes the tables and the key; later ones find them."""

from __future__ import annotations

from pathlib import Path

import asyncpg
import pytest
from alembic.script import ScriptDirectory

from controlplane.settings import Settings
from controlplane.store import migrate
from controlplane.store.migrate import SCRIPTS
from workers.initialise import initialise, is_initialised, newest_revision


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(database_url=database_url, secret_key="ab" * 32, data_dir=tmp_path)


def test_the_newest_revision_is_the_one_alembic_upgrades_to() -> None:
    assert newest_revision() == ScriptDirectory(str(SCRIPTS)).get_current_head()


async def test_the_key_is_made_once_and_kept(settings: Settings, tmp_path: Path) -> None:
    key_file = tmp_path / "admin.key"
    token = await initialise(settings, key_file)
    assert token is not None
    assert key_file.read_text() == token + "\n"
    assert await initialise(settings, key_file) is None
    assert key_file.read_text() == token + "\n"


async def test_a_lost_key_file_gets_another_key(settings: Settings, tmp_path: Path) -> None:
    first = await initialise(settings, tmp_path / "admin.key")
    (tmp_path / "admin.key").unlink()
    second = await initialise(settings, tmp_path / "admin.key")
    assert second is not None
    assert second != first


async def test_a_start_is_told_whether_anything_is_left_to_do(settings: Settings, tmp_path: Path) -> None:
    key_file = tmp_path / "admin.key"
    assert not await is_initialised(settings, key_file)
    await initialise(settings, key_file)
    assert await is_initialised(settings, key_file)
    connection = await asyncpg.connect(settings.database_url)
    await connection.execute("UPDATE alembic_version SET version_num = '0000'")
    await connection.close()
    assert not await is_initialised(settings, key_file)


async def test_without_a_file_the_key_is_told_once(settings: Settings) -> None:
    assert await initialise(settings, None) is not None
    assert await initialise(settings, None) is None


async def test_a_start_that_finds_all_done_loads_no_migrations(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await initialise(settings, tmp_path / "admin.key")

    async def never(url: str) -> None:
        raise AssertionError("migrated again")

    monkeypatch.setattr(migrate, "migrate", never)
    assert await initialise(settings, tmp_path / "admin.key") is None
