"""Quotas as an operator sets them and as clients meet them: exact, however many ask at once."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx

from tests.fixtures.app import FUNCTION, NEW_CALL, NEW_FUNCTION, ROOT, ServedApi
from tests.fixtures.commands import command, run_workers
from tests.fixtures.http_worker import start_worker


async def create(api: ServedApi, path: str, body: object, **query: str) -> httpx.Response:
    return await api.client.post(path, json=body, params=query)


async def test_a_quota_is_exact_however_many_ask_at_once(served: ServedApi) -> None:
    assert await command(served, "quotas", "set", "functions", "4") == "functions: at most 4"
    answers = await asyncio.gather(
        *(create(served, f"{served.path}/functions", NEW_FUNCTION) for _ in range(20)),
        *(create(served, f"{served.path}/functions", NEW_FUNCTION, dryRun="All") for _ in range(3)),
    )
    assert Counter(answer.status_code for answer in answers[:20]) == {201: 3, 429: 17}
    refused = next(answer for answer in answers if answer.status_code == 429)
    assert (refused.json()["reason"], refused.json()["details"]) == ("QuotaExceeded", {"quota": "functions"})
    assert "Retry-After" not in refused.headers
    # One that exists is not another one, and a place that became free is taken again.
    same = {"metadata": {"name": "f"}, "spec": FUNCTION}
    assert (await create(served, f"{served.path}/functions", same)).status_code == 200
    gone = next(answer for answer in answers if answer.status_code == 201).json()["metadata"]["name"]
    await served.client.delete(f"{served.path}/functions/{gone}")
    heading, *rows = (await command(served, "quotas", "list")).splitlines()
    assert heading.split() == ["Counter", "At", "most", "Of"]
    assert [row.split() for row in rows] == [["functions", "4", "organisation", '"default"']]
    assert await command(served, "quotas", "clear", "functions") == "functions: no quota"
    assert (await create(served, f"{served.path}/functions", NEW_FUNCTION)).status_code == 201


async def test_calls_that_wait_are_counted_and_those_that_run_are_not(served: ServedApi) -> None:
    await command(served, "quotas", "set", "functioncalls.queued", "3", "--project", "default")
    batch = {"kind": "FunctionCallList", "items": [NEW_CALL] * 4}
    too_many = await create(served, f"{served.path}/functions/f/calls", batch)
    assert (too_many.status_code, too_many.json()["reason"]) == (429, "QuotaExceeded")
    batch["items"] = [NEW_CALL] * 3
    assert (await create(served, f"{served.path}/functions/f/calls", batch)).status_code == 201
    assert (await create(served, f"{served.path}/functioncalls", NEW_CALL)).status_code == 429
    worker = await start_worker(served)
    assert len((await worker.claim())["calls"]) == 1
    assert (await create(served, f"{served.path}/functioncalls", NEW_CALL)).status_code == 201


async def test_another_project_has_its_own_quota_within_that_of_the_organisation(served: ServedApi) -> None:
    await command(served, "quotas", "set", "projects", "2")
    await command(served, "quotas", "set", "functions", "1", "--project", "default")
    await command(served, "quotas", "set", "functions", "2")
    projects = [await create(served, f"{ROOT}/projects", {"metadata": {"name": name}}) for name in ("one", "two")]
    assert [answer.status_code for answer in projects] == [201, 429]
    assert projects[1].json()["details"] == {"quota": "projects"}
    answers = [
        await create(served, f"{ROOT}/namespaces/{project}/functions", NEW_FUNCTION)
        for project in ("default", "one", "one")
    ]
    assert [answer.status_code for answer in answers] == [429, 201, 429]
    told = [answers[number].json()["message"] for number in (0, 2)]
    assert told == [
        'the project "default" may have 1 functions: 1 more do not fit',
        'the organisation "default" may have 2 functions: 1 more do not fit',
    ]


async def test_a_blob_that_does_not_fit_is_refused_before_it_is_sent(served: ServedApi) -> None:
    assert await command(served, "quotas", "set", "storage", "1Ki", "--project", "default") == "storage: at most 1Ki"
    await served.upload(b"x" * 1_000)
    asked = {"sha256": "0" * 64, "size": 25, "contentType": "application/octet-stream"}
    path = "/blobs/v1/namespaces/default/uploads"
    refused = await create(served, path, asked)
    assert (refused.status_code, refused.json()["reason"]) == (429, "QuotaExceeded")
    assert refused.json()["details"] == {"quota": "storage"}
    assert "Retry-After" not in refused.headers
    assert (await create(served, path, {**asked, "size": 24})).status_code == 200
    code, told = await run_workers(served.core.settings.database_url, "quotas", "set", "memory", "much")
    assert code == 2
    assert "must be a number" in told


async def test_only_what_exists_is_bounded_or_suspended(served: ServedApi) -> None:
    url = served.core.settings.database_url
    for words, says in (
        (("switches", "suspend", "nowhere"), 'there is no organisation "nowhere"'),
        (("quotas", "set", "functions", "1", "--org", "nowhere"), 'there is no organisation "nowhere"'),
        (("quotas", "set", "functions", "1", "--project", "nowhere"), 'there is no project "nowhere"'),
    ):
        code, told = await run_workers(url, *words)
        assert (code, says in " ".join(told.split())) == (2, True), told
    assert (await command(served, "quotas", "list")).splitlines()[1:] == []
