"""What becomes of a write when the database, the network or this process fails under it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Tx
from controlplane.store.migrate import migrate
from tests.controlplane.store.things import Do, Store, close_store, key, open_store, thing
from tests.faults.proxy import Proxy
from tests.fixtures.cutting_proxy import Cut, CuttingProxy, cutting_proxy
from tests.fixtures.eventually import eventually
from workers.engines.child import free_port
from workers.engines.postgres import EmbeddedPostgres


def add_one(tx: Tx) -> int:
    """Applied twice, it would show."""
    document = tx.get(key("counter"))
    count = document["spec"]["count"] + 1 if document else 1
    tx.put(key("counter"), thing("counter", count=count))
    return count


COUNT = Do(add_one, names=("counter",))


@pytest.fixture
async def proxy(database_url: str) -> AsyncIterator[CuttingProxy]:
    host, port = re.search(r"@([^:]+):(\d+)/", database_url).groups()  # type: ignore[union-attr]
    async with cutting_proxy(host, int(port)) as proxy:
        yield proxy


@pytest.fixture
async def behind_proxy(database_url: str, proxy: CuttingProxy) -> AsyncIterator[Store]:
    store = await open_store(re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", database_url))
    yield store
    await close_store(store)


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_commit_whose_connection_breaks_is_applied_exactly_once(
    behind_proxy: Store, proxy: CuttingProxy, cut: Cut
) -> None:
    assert await behind_proxy.write(COUNT) == 1
    for expected in (2, 3):
        proxy.cut = cut
        assert await behind_proxy.write(COUNT) == expected
    assert proxy.cuts == 2
    assert await behind_proxy.feed.wait_until(3, 60)
    assert [change.rv for change in behind_proxy.seen] == [1, 2, 3]


@pytest.mark.parametrize("cut", list(Cut), ids=lambda cut: cut.name.lower())
async def test_a_notification_whose_connection_breaks_is_sent_again(
    database_url: str, behind_proxy: Store, proxy: CuttingProxy, cut: Cut
) -> None:
    listening = await open_store(database_url, change_poll_seconds=600)

    async def hears() -> bool:
        await behind_proxy.put("a", turn=behind_proxy.feed.last_rv)
        return bool(listening.seen)

    # As soon as one arrives, the other process listens, and its poll is far away.
    await eventually(hears)
    proxy.words, proxy.cut = b"NOTIFY", cut
    last = await behind_proxy.put("b")
    await eventually(lambda: listening.feed.last_rv >= int(last["metadata"]["resourceVersion"]))
    assert proxy.cuts == 1
    await close_store(listening)


async def test_writers_go_on_after_the_database_dropped_their_connections(store: Store) -> None:
    await store.put("a")
    for _ in range(3):
        drop = (
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
            "WHERE pid <> pg_backend_pid() AND datname = current_database()"
        )
        await asyncio.gather(store.database.execute(drop), *(store.write(COUNT) for _ in range(20)))
    document = await store.objects.get_document(key("counter"))
    assert document is not None
    assert document["spec"]["count"] == 60
    assert await store.feed.wait_until(61, 60)
    assert [change.rv for change in store.seen] == list(range(1, 62))


async def test_a_lock_held_too_long_by_another_process_is_waited_for(database_url: str) -> None:
    store = await open_store(database_url, lock_timeout_milliseconds=100)
    async with store.database.pool.acquire() as other, other.transaction():
        await other.execute("SELECT pg_advisory_xact_lock($1)", 0x6E6F6475)
        writing = asyncio.create_task(store.write(COUNT))
        await eventually(lambda: store.writer.stats.retries >= 2)
    assert await writing == 1
    await close_store(store)


async def test_a_writer_stops_although_the_database_does_not_say_goodbye(database_url: str) -> None:
    host, port = re.search(r"@([^:]+):(\d+)/", database_url).groups()  # type: ignore[union-attr]
    proxy = Proxy((host, int(port)))
    await proxy.open()
    store = await open_store(re.sub(r"@[^/]+/", f"@127.0.0.1:{proxy.port}/", database_url))
    await store.put("a")
    proxy.go_silent()
    await store.writer.stop()
    await store.feed.stop()
    store.database.pool.terminate()
    await proxy.close()


async def test_a_process_that_dies_after_the_commit_leaves_the_change_to_be_found(
    store: Store, database_url: str
) -> None:
    code = f"""
import asyncio, os, sys
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from tests.controlplane.store.things import Put, open_store

class Die:
    async def before_commit(self, tx, connection): pass
    def committed(self): os._exit(17)
    def rolled_back(self): pass

async def main():
    store = await open_store({database_url!r})
    store.writer.add_hook(Die())
    await store.write(Put("a", spec={{"color": "red"}}))

asyncio.run(main())
"""
    done = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=False, timeout=120)
    assert done.returncode == 17
    assert await store.feed.wait_until(1, 60)
    again = await store.put("a", color="red")
    assert again["metadata"]["resourceVersion"] == "2" or len(store.seen) == 1


async def test_a_restart_of_the_database_is_survived_and_a_long_absence_is_told(tmp_path: Path) -> None:
    port = free_port()
    log = tmp_path / "log"

    def server() -> EmbeddedPostgres:
        return EmbeddedPostgres(tmp_path / "data", port=port, password="test", log=log)

    first = server()
    await first.start()
    await migrate(first.url)
    store = await open_store(first.url, write_retry_seconds=120)
    hasty = await open_store(first.url, write_retry_seconds=0.3)
    assert await store.write(COUNT) == 1
    first.stop()
    waiting = asyncio.gather(*(store.write(COUNT) for _ in range(10)))
    told = await asyncio.gather(*(hasty.write(COUNT) for _ in range(10)), return_exceptions=True)
    assert {getattr(error, "reason", None) for error in told} == {Reason.UNAVAILABLE}
    with pytest.raises(ApiError) as unread:
        await hasty.objects.get(key("counter"))
    assert unread.value.reason is Reason.UNAVAILABLE
    second = server()
    await second.start()
    try:
        assert sorted(await waiting) == list(range(2, 12))
        assert await hasty.write(COUNT) == 12
        for each in (store, hasty):
            assert await each.feed.wait_until(12, 60)
            assert [change.rv for change in each.seen] == list(range(1, 13))
            await close_store(each)
    finally:
        second.stop()
