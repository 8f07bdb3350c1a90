from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controlplane.apps.expiry import expires_at
from controlplane.apps.members import Members, count_members, observed_status
from controlplane.machinery.kind import Document

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)
EXPIRY = timedelta(seconds=120)


def function(name: str, phase: str = "Running", ready: str = "True", **metadata: Any) -> Document:
    status = {"phase": phase, "conditions": [{"type": "Ready", "status": ready}]}
    return {"metadata": {"name": name, **metadata}, "status": status}


def app(**spec: Any) -> Document:
    status = {"phase": "Ready", "version": 4, "conditions": [], "members": {"functions": 0, "agents": 2, "ready": 0}}
    metadata = {"name": "demo", "generation": 7, "creationTimestamp": "2026-11-29T12:00:00Z"}
    return {"metadata": metadata, "spec": spec, "status": status}


def test_members_are_counted_by_what_they_can_do() -> None:
    counted = count_members(
        [
            function("a"),
            function("b", ready="False"),
            function("c", "Failed", "False"),
            function("d", "Stopped", "False"),
            function("e", deletionTimestamp="2026-11-29T12:00:00Z"),
        ]
    )
    assert counted == Members(functions=4, ready=1, failed=("c",), waiting=("b", "d"))


@pytest.mark.parametrize(
    ("members", "phase", "message"),
    [
        (Members(), "Ready", None),
        (Members(functions=2, ready=2), "Ready", None),
        (Members(functions=2, ready=1, waiting=("b",)), "Pending", "not ready: b"),
        (Members(functions=3, ready=1, waiting=("b",), failed=("c",)), "Failed", "failed: c"),
        (Members(functions=9, failed=tuple("abcdefg")), "Failed", "failed: a, b, c, d, e and 2 more"),
    ],
)
def test_an_app_says_whether_all_its_members_take_work(members: Members, phase: str, message: str | None) -> None:
    status = observed_status(app(), members, NOW)
    assert (status["phase"], status.get("message")) == (phase, message)
    assert status["members"] == {"functions": members.functions, "agents": 2, "ready": members.ready}
    assert (status["version"], status["observedGeneration"]) == (4, 7)
    assert status["conditions"][0]["status"] == ("True" if phase == "Ready" else "False")


def test_an_ephemeral_app_expires_two_minutes_after_its_last_sign_of_life() -> None:
    assert expires_at(app(ephemeral=True), EXPIRY) == NOW + EXPIRY
    renewed = app(ephemeral=True, renewTime="2026-11-29T12:10:00Z")
    assert expires_at(renewed, EXPIRY) == NOW + timedelta(minutes=12)
    slow_clock = app(ephemeral=True, renewTime="2026-11-29T08:00:00Z")
    assert expires_at(slow_clock, EXPIRY) == NOW + EXPIRY


def test_deployed_apps_and_those_on_their_way_do_not_expire() -> None:
    assert expires_at(app(ephemeral=False), EXPIRY) is None
    leaving = app(ephemeral=True)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-29T12:00:00Z"
    assert expires_at(leaving, EXPIRY) is None
