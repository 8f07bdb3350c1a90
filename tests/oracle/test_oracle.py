"""The watch oracle: writers, watchers, three API processes and everything that goes wrong, judged by the change log.

`make oracle SECONDS=600` runs it for longer, and `SEED=…` again with the seed that a failure tells. The seed fixes what
every actor draws; when things happen is up to the machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
from pathlib import Path

import asyncpg
import pytest

from controlplane.settings import Settings
from controlplane.store.database import Database
from tests.fixtures.app import api_settings
from tests.fixtures.eventually import eventually
from tests.fixtures.replicas import Replica, replicas
from tests.oracle.auditor import Auditor
from tests.oracle.faults import Faults
from tests.oracle.proxy import notification_proxy
from tests.oracle.storm import Storm
from tests.oracle.watchers import Watcher
from tests.oracle.writers import Writer, prepare

log = logging.getLogger(__name__)

SECONDS = float(os.environ.get("ORACLE_SECONDS", "15"))
SEED = int(os.environ.get("ORACLE_SEED") or random.SystemRandom().randrange(1 << 32))
WANTED = {"changes": 300, "events": 500, "segments cut": 50, "segments expired": 2, "lists": 20, "stalls": 10}
MEETING_SECONDS_MAX = 120.0
WRITERS = 10
WATCHERS = 24


def _settings(database_url: str, folder: Path) -> Settings:
    return api_settings(
        database_url,
        folder,
        # So small that watchers meet every end of it: the ring, the buffer, the page.
        ring_events_max=300,
        watch_buffer_events_max=200,
        list_items_max=200,
        bookmark_seconds=1,
        # Nobody starts workflows here.
        engine_lag_calls_max=1_000_000,
        engine_lag_seconds_max=86_400,
    )


@pytest.mark.timeout(SECONDS + 600)
async def test_every_watch_shows_every_change_once_and_in_order_whatever_fails(
    database_url: str, database: Database, tmp_path: Path
) -> None:
    log.info("seed %s", SEED)
    settings = _settings(database_url, tmp_path)
    found = re.search(r"@([^:]+):(\d+)/", database_url)
    assert found is not None
    connection = await asyncpg.connect(database_url)
    auditor = Auditor(database, settings, connection)
    await auditor.start()
    async with notification_proxy(found[1], int(found[2])) as proxy:
        behind_proxy = re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", database_url)
        async with replicas(tmp_path, settings, [database_url, database_url, behind_proxy]) as (key, made):
            storm = Storm(SEED, key, made, auditor)
            faults = Faults(storm, database_url, proxy)
            await _run(storm, faults)
            _judge(storm, faults, made)
    assert proxy.lost
    await connection.close()


async def _run(storm: Storm, faults: Faults) -> None:
    await prepare(storm)
    async with asyncio.TaskGroup() as watching:
        for number in range(WATCHERS):
            watching.create_task(Watcher(storm, number).run(), name=f"watcher-{number}")
        async with asyncio.TaskGroup() as writing:
            for number in range(WRITERS):
                writing.create_task(Writer(storm, number).run(), name=f"writer-{number}")
            writing.create_task(faults.compact(), name="compaction")
            await faults.run(SECONDS)
            # A run that met none of these would prove nothing; a busy machine needs longer for them.
            await eventually(lambda: storm.failures or not _missing(storm), within=MEETING_SECONDS_MAX, every=0.2)
            storm.over.set()
        await storm.auditor.read()
        storm.calm.set()


def _judge(storm: Storm, faults: Faults, made: list[Replica]) -> None:
    log.info(storm.told())
    problems = [*storm.failures, *(f"{replica.log.name} ended by itself" for replica in made if replica.died)]
    logs = "\n".join(f"--- {replica.log.name}\n{replica.log.read_text()[-4_000:]}" for replica in made)
    assert not problems, "\n".join([storm.told(), *problems, logs])
    for wanted in (*faults.kinds, "segments caught_up"):
        assert storm.counts[wanted], storm.told()


def _missing(storm: Storm) -> list[str]:
    """What the run has not met often enough."""
    counts = {**storm.counts, "changes": storm.auditor.log.last_rv}
    return [wanted for wanted, least in WANTED.items() if counts.get(wanted, 0) < least]
