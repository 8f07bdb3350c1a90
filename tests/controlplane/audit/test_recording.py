"""How events are stored: with their change or not at all, and refusals in groups that have a bound."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from controlplane.audit.entries import ActorKind, AuditEntry
from controlplane.audit.refusals import GROUP_EVENTS_MAX, LOST, AuditQueue
from controlplane.store.contract import Key
from tests.fixtures.commands import ROOT
from tests.fixtures.plane import Plane

CREATE = """
import asyncio
from controlplane.audit.entries import Actor, ActorKind
from controlplane.audit.requests import AuditedRequest, audited
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.kinds.registry import KINDS
from controlplane.resources.answers import CreateOptions
from workers.configuration import read_settings
from workers.wiring import open_core

ALL = frozenset({"*"})
ADA = Principal(kind=PrincipalKind.USER, org="default", id="ada", label="ada", scopes=ALL, projects=ALL)

async def main():
    async with open_core(read_settings()) as core:
        actor = Actor(kind=ActorKind.USER, org="default", name="ada")
        with audited(AuditedRequest(actor=actor, verb="create", kind="Project", written_kind="Project")):
            await core.resources.creator.create(
                KINDS["Project"], "", {"metadata": {"name": "made"}, "spec": {}}, ADA, CreateOptions()
            )

asyncio.run(main())
"""


def refusal(plane: Plane, number: int, code: int = 404) -> AuditEntry:
    return AuditEntry(
        created_at=plane.clock.now(), org="default", kind="Function", name=f"f{number}", verb="delete", code=code,
        principal_kind=ActorKind.USER, principal="usr_ada", request_id=f"req_{number}", reason="NotFound",
    )  # fmt: skip


async def counts(plane: Plane) -> list[tuple[str, int]]:
    rows = await plane.database.fetch("SELECT reason, count FROM audit_events ORDER BY seq")
    return [(row["reason"], row["count"]) for row in rows]


@pytest.mark.parametrize(("point", "stored"), [("commit-ready", 0), ("commit-written", 1)])
async def test_a_process_that_dies_at_a_commit_leaves_the_change_with_its_event_or_neither(
    plane: Plane, tmp_path: Path, point: str, stored: int
) -> None:
    (tmp_path / point).write_text("die")
    decided = {"DATABASE_URL": plane.database.url, "FAILPOINTS_DIR": str(tmp_path), "SECRET_KEY": "c3" * 32}
    environment = {f"NODUS_SERVER_{name}": value for name, value in {**decided, "DATA_DIR": str(tmp_path)}.items()}
    done = subprocess.run(
        [sys.executable, "-c", CREATE], cwd=ROOT, check=False, timeout=120, env={**os.environ, **environment}
    )
    assert done.returncode == -signal.SIGKILL
    found = await plane.core.objects.get(Key("Project", "default", "", "made"))
    events = await plane.database.fetchval("SELECT count(*) FROM audit_events WHERE name = 'made' AND uid <> ''")
    assert (found is not None, events) == (bool(stored), stored)


async def test_refusals_are_written_in_groups_and_those_that_do_not_fit_are_counted(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings.model_copy(update={"audit_queue_max": 5}), plane.clock)
    for number in range(8):
        queue.add(refusal(plane, number))
    before = plane.writer.stats.mutations
    await queue.flush()
    assert await counts(plane) == [("NotFound", 1)] * 5 + [(LOST, 3)]
    assert plane.writer.stats.mutations == before + 1
    await queue.flush()
    assert len(await counts(plane)) == 6
    assert queue.waiting == 0


async def test_more_refusals_than_a_group_holds_are_all_written(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings, plane.clock)
    for number in range(GROUP_EVENTS_MAX + 1):
        queue.add(refusal(plane, number))
    await queue.flush()
    assert len(await counts(plane)) == GROUP_EVENTS_MAX + 1


async def test_want_of_a_credential_or_of_patience_is_one_event_a_source_and_moment(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings, plane.clock)
    for number in range(50):
        queue.add(refusal(plane, number, 429))
    await queue.flush()
    assert await counts(plane) == [("NotFound", 50)]


async def test_what_waits_when_a_process_stops_is_written(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings.model_copy(update={"audit_flush_seconds": 3_600.0}), plane.clock)
    running = asyncio.create_task(queue.run())
    queue.add(refusal(plane, 1))
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert await counts(plane) == [("NotFound", 1)]


async def test_two_that_write_at_once_and_a_stop_meanwhile_write_each_event_once(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings.model_copy(update={"audit_flush_seconds": 0.001}), plane.clock)
    running = asyncio.create_task(queue.run())
    for number in range(50):
        queue.add(refusal(plane, number))
        await asyncio.gather(queue.flush(), queue.flush())
    queue.add(refusal(plane, 50))
    flushing = asyncio.create_task(queue.flush())
    await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, flushing, return_exceptions=True)
    assert len(await counts(plane)) == 51
    assert queue.waiting == 0


async def test_what_cannot_be_stored_is_counted_and_keeps_nothing_waiting(plane: Plane) -> None:
    queue = AuditQueue(plane.writer, plane.settings, plane.clock)
    queue.add(replace(refusal(plane, 1), request_id="\0"))
    await queue.flush()
    queue.add(refusal(plane, 2))
    await queue.flush()
    assert await counts(plane) == [("NotFound", 1), (LOST, 1)]
