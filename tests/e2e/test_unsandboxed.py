"""The whole system at isolation level none: no bubblewrap, the public SDK and worker, and nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from runtime.uids import FIRST_UID, UIDS_MAX
from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System, installation

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
    pytest.mark.timeout(600),
]

SPAWN = 'import nodus; print(nodus.Function.from_name("unwalled", "act").spawn({how!r}).name)'
GET = "import nodus; print(nodus.FunctionCall.from_name({name!r}).get(timeout=240))"
CALL = 'import nodus; print(nodus.Function.from_name("unwalled", "{function}").remote({arguments}))'


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """A system on a host whose bubblewrap does not work, told to do without."""
    folder = Path(tempfile.mkdtemp(prefix="nodus-unwalled-"))
    folder.chmod(0o755)
    broken = tmp_path_factory.mktemp("broken") / "bwrap"
    broken.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    settings = {"unsandboxed": "1", "unsandboxed_dir": str(folder / "workers")}
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", f"{broken.parent}:{os.environ['PATH']}")
        with installation(tmp_path_factory.mktemp("bare") / "data", settings) as system:
            system.start()
            system.nodus("deploy", str(APPS / "unwalled" / "unwalled.py"))
            yield system
    shutil.rmtree(folder, ignore_errors=True)


def spawned(system: System, how: str) -> str:
    return system.python(SPAWN.format(how=how)).strip()


def result(system: System, name: str) -> str:
    return system.python(GET.format(name=name), timeout=300).strip()


def one_call(system: System, name: str) -> dict[str, Any]:
    with system.http() as client:
        answer = client.get(f"{OBJECTS}/functioncalls/{name}")
        assert answer.status_code == httpx.codes.OK, answer.text
        found: dict[str, Any] = answer.json()
        return found


def of_user(uid: int) -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if process.uids().real == uid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


async def test_it_says_loudly_what_it_does_and_each_attempt_says_what_holds(bare: System) -> None:
    uid = int(result(bare, spawned(bare, "tell")))
    assert uid in range(FIRST_UID, FIRST_UID + UIDS_MAX)
    assert "WITHOUT A SANDBOX" in bare.output
    assert "WORKERS ARE NOT CONFINED" in (bare.data_dir / "logs" / "node.log").read_text()

    def told() -> list[dict[str, Any]]:
        attempts = bare.objects("attempts", labelSelector="nodus.dev/function=unwalled-act")
        return [one["status"]["guarantees"] for one in attempts if "guarantees" in one["status"]]

    await eventually(told)
    guarantees = told()[0]
    assert (guarantees["level"], guarantees["uid"], guarantees["network"]) == ("none", "per_attempt", "host")
    assert "no sandbox: code inside can" in guarantees["missing"][0]
    assert "filterSha256" not in guarantees
    [heading, *rows] = bare.nodus("get", "attempts", "-o", "wide").splitlines()
    assert "ISOLATION" in heading
    assert any(" none " in f"{row} " for row in rows)


async def test_an_exception_and_a_deadline_reach_the_caller(bare: System) -> None:
    raised = bare.run("python3", "-c", CALL.format(function="act", arguments="'raise'"), check=False)
    assert raised.returncode != 0
    assert "no such thing" in raised.stderr
    late = bare.run("python3", "-c", CALL.format(function="late", arguments=""), check=False)
    assert late.returncode != 0
    assert "DeadlineExceeded" in late.stderr


async def test_a_cancelled_call_ends_and_its_worker_goes_on_or_is_replaced(bare: System) -> None:
    name = spawned(bare, "sleep")
    await eventually(lambda: one_call(bare, name)["status"]["phase"] == "Running", within=120)
    bare.nodus("cancel", f"functioncall/{name}")
    await eventually(lambda: one_call(bare, name)["status"]["phase"] == "Cancelled", within=120)
    assert int(result(bare, spawned(bare, "tell"))) >= FIRST_UID


async def test_what_cannot_be_kept_is_refused_by_name(bare: System) -> None:
    patch = {"spec": {"network": {"egress": {"policy": "Deny"}}}}
    bare.kubectl("patch", "function/unwalled-late", "--type=merge", "-p", json.dumps(patch))
    bare.run("python3", "-c", 'import nodus; nodus.Function.from_name("unwalled", "late").spawn()')

    def refusals() -> list[str]:
        attempts = bare.objects("attempts", labelSelector="nodus.dev/function=unwalled-late")
        return [one["status"].get("message") or "" for one in attempts]

    await eventually(lambda: any("network namespace" in told for told in refusals()), within=120)


async def test_a_node_that_is_killed_leaves_nothing_and_its_call_runs_on_another(bare: System) -> None:
    uid = int(result(bare, spawned(bare, "detach")))
    assert of_user(uid)
    name = spawned(bare, "sleep")
    await eventually(lambda: one_call(bare, name)["status"]["phase"] == "Running", within=120)
    before = one_call(bare, name)["status"]["worker"]["attempt"]
    orphans = of_user(uid)
    bare.child("node").kill()
    await eventually(lambda: not [one for one in orphans if one.is_running()], within=120)
    await eventually(lambda: one_call(bare, name)["status"].get("worker", {}).get("attempt") != before, within=240)
    bare.nodus("cancel", f"functioncall/{name}")


async def test_a_system_that_stops_leaves_no_process_or_folder_of_a_worker(bare: System) -> None:
    """The last test of this module: it stops the system."""
    uid = int(result(bare, spawned(bare, "detach")))
    before = of_user(uid)
    assert before
    folder = Path(bare._settings["NODUS_SERVER_UNSANDBOXED_DIR"])
    assert bare.stop() == 0
    # Another system of this host may have taken the uid meanwhile.
    assert not {*before} & {*of_user(uid)}
    assert list(folder.glob("*/attempts/*")) == []
    assert list(folder.glob("*/warm/*")) == []
