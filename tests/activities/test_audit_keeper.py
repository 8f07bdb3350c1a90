"""The sweeper of a control process seals the audit log by itself."""

from __future__ import annotations

from datetime import timedelta

from controlplane.audit.commands import execute
from controlplane.audit.requests import audited, command_request
from controlplane.audit.verification import Verdict, verify
from tests.fixtures.control import ControlWorld
from tests.fixtures.eventually import eventually

KEPT_FOR = timedelta(days=400)


async def test_what_is_written_is_sealed_within_moments_and_verifies(control_world: ControlWorld) -> None:
    database = control_world.core.database
    with audited(command_request(["quotas", "set"], org="default", user="ada")):
        for number in range(3):
            await execute(database, "default", "INSERT INTO quotas VALUES ('default', $1, 'functions', 1)", str(number))

    async def sealed() -> Verdict | None:
        verdict = await verify(database, kept_for=KEPT_FOR)
        return verdict if verdict.events >= 3 and not verdict.unsealed else None

    verdict: Verdict = await eventually(sealed)
    assert verdict.tamperings == []
    assert (await verify(database, verdict.head, kept_for=KEPT_FOR)).tamperings == []
