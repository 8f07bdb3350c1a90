"""Operators' commands in the audit log: whoever ran one, what it changed, and what it was refused."""

from __future__ import annotations

import re
from typing import Any

import pytest

from controlplane.audit.commands import execute
from controlplane.audit.requests import audited, command_request
from tests.fixtures.app import ServedApi
from tests.fixtures.auditing import events_about
from tests.fixtures.commands import run_workers


def told(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(row["verb"], row["org"], row["kind"], row["name"], row["code"]) for row in rows]


async def test_commands_tell_what_they_changed_and_were_refused(api: ServedApi) -> None:
    url, secret_key = api.core.settings.database_url, api.core.settings.secret_key.get_secret_value()
    output = ""
    for words, code in (
        ("admin create-org acme", 0),
        ("switches suspend acme --reason unpaid", 0),
        ("ledger grant 5 --name welcome", 0),
        ("admin revoke-key absent", 1),
    ):
        ended, output_of_one = await run_workers(url, *words.split(), secret_key=secret_key)
        assert ended == code, output_of_one
        output += output_of_one
    rows = await events_about(api, principal_kind="Operator")
    assert told(rows) == [
        ("create", "acme", "Organization", "acme", 201),
        ("create", "acme", "Project", "default", 201),
        ("create", "acme", "Member", "admin", 201),
        ("create", "acme", "APIKey", "admin", 201),
        ("run", "acme", "", "switches suspend acme --reason unpaid", 200),
        ("run", "default", "", "ledger grant 5 --name welcome", 200),
        ("run", "default", "", "admin revoke-key absent", 404),
    ]
    assert {row["message"] for row in rows[:4]} == {"workers admin create-org acme"}
    assert all(row["principal"] for row in rows)
    [key] = re.findall("NODUS_API_KEY=(.+)", output)
    assert key not in str(rows)


async def test_a_statement_that_fails_leaves_no_event_and_one_without_a_command_neither(api: ServedApi) -> None:
    database = api.core.database
    with audited(command_request(["quotas", "set"], org="default", user="ada")):
        with pytest.raises(Exception, match="quotas_amount"):
            await execute(database, "acme", "INSERT INTO quotas VALUES ('acme', '', 'functions', -1)")
        await execute(database, "acme", "INSERT INTO quotas VALUES ('acme', '', 'functions', 1)")
    await execute(database, "acme", "DELETE FROM quotas")
    assert told(await events_about(api, org="acme")) == [("run", "acme", "", "quotas set", 200)]
