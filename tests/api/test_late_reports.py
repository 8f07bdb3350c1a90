"""What a worker reports of a call that was taken from it: refused, and kept as one Event."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest

from controlplane.calls.outcomes import CallRules
from controlplane.calls.recovery import EndOverdue, LoseAttempt
from controlplane.identity.tokens import TokenHasher, mint_attempt_token
from tests.fixtures.app import CALL, ROOT, ServedApi
from tests.fixtures.calls import raised, succeeded
from tests.fixtures.eventually import eventually
from tests.fixtures.http_worker import HttpWorker, start_worker


async def given(project: ServedApi, concurrency: int = 1) -> tuple[HttpWorker, str]:
    """A worker and the call that it holds."""
    worker = await start_worker(project, concurrency=concurrency)
    await project.create("functioncalls", {"metadata": {"generateName": "f-"}, "spec": CALL})
    [call] = (await worker.claim())["calls"]
    return worker, call["id"]


async def lose(project: ServedApi, worker: HttpWorker) -> None:
    rules = CallRules.from_settings(project.core.settings)
    await project.core.writer.write(LoseAttempt(worker.attempt, 1, project.core.clock.now(), rules))


async def with_new_token(project: ServedApi, worker: HttpWorker) -> HttpWorker:
    """The same worker with a credential that nobody has looked up yet."""
    hasher, now = TokenHasher(project.core.settings.secret_key), project.core.clock.now()
    minted = await mint_attempt_token(project.core.database, hasher, attempt=worker.attempt, epoch=1, now=now)
    assert minted is not None
    return replace(worker, token=minted[0])


async def events(project: ServedApi, call: str) -> list[dict[str, Any]]:
    """The Events of a call, as `describe` asks for them."""
    selector = f"involvedObject.kind=FunctionCall,involvedObject.name={call}"
    found: list[dict[str, Any]] = (
        await project.client.get(f"{ROOT}/events", params={"fieldSelector": selector})
    ).json()["items"]
    return [event for event in found if event["involvedObject"]["namespace"] == project.project_name]


async def stored(project: ServedApi, call: str) -> dict[str, Any]:
    document: dict[str, Any] = (await project.client.get(f"{project.path}/functioncalls/{call}")).json()
    return document


@pytest.mark.parametrize("known_as_fenced", [False, True])
async def test_the_result_of_a_lost_worker_is_refused_and_kept_as_evidence(
    project: ServedApi, known_as_fenced: bool
) -> None:
    """Whether the credential is known to be over, or still trusted for a moment."""
    await project.function()
    worker, call = await given(project)
    if known_as_fenced:
        worker = await with_new_token(project, worker)
    await lose(project, worker)
    before = await stored(project, call)
    answer = await worker.post({"completed": [succeeded(call, b"the lost result")], "running": []})
    assert answer.status_code == 404, answer.text
    assert await stored(project, call) == before
    [event] = await events(project, call)
    assert (event["type"], event["reason"], event["count"]) == ("Warning", "LateResultRefused", 1)
    assert event["involvedObject"]["uid"] == before["metadata"]["uid"]
    assert event["message"].startswith(f"worker {worker.attempt} (epoch 1) reported Succeeded of dispatch 1 after ")
    assert "(WorkerLost); the report was refused and changed nothing" in event["message"]
    result = succeeded(call, b"the lost result")["result"]
    assert result["inline"] not in orjson.dumps(event).decode()
    assert result["sha256"] not in orjson.dumps(event).decode()
    assert (await worker.post({"completed": [raised(call)]})).status_code == 404
    [again] = await events(project, call)
    assert (again["metadata"]["name"], again["count"]) == (event["metadata"]["name"], 2)
    assert "reported Raised" in again["message"]


async def test_a_worker_that_lives_and_reports_after_its_call_was_ended_is_told_of_too(project: ServedApi) -> None:
    await project.function()
    worker, call = await given(project)
    rules = CallRules.from_settings(project.core.settings)
    await project.core.database.execute(
        "UPDATE calls SET deadline = $1 WHERE name = $2", project.core.clock.now() - timedelta(hours=1), call
    )
    assert await project.core.writer.write(EndOverdue(worker.attempt, rules)) == 1
    worker.running.clear()
    await worker.claim(succeeded(call), take=0)
    assert (await stored(project, call))["status"]["reason"] == "DeadlineExceeded"
    [event] = await events(project, call)
    assert "reported Succeeded of dispatch 1" in event["message"]
    assert "(DeadlineExceeded)" in event["message"]


async def test_a_report_that_is_repeated_or_about_a_strange_call_is_no_evidence(project: ServedApi) -> None:
    await project.function()
    worker, call = await given(project, concurrency=2)
    strange = (await project.create("functioncalls", {"metadata": {"generateName": "g-"}, "spec": CALL}))["metadata"]
    for _ in range(2):
        # The answer to the first was lost on its way.
        await worker.claim(succeeded(call), take=0)
    await worker.claim(succeeded(strange["name"]), succeeded("no-such-call"), take=0)
    assert await events(project, call) == []
    assert await events(project, strange["name"]) == []
    assert (await stored(project, strange["name"]))["status"]["phase"] == "Queued"


async def test_a_hostile_worker_gets_a_few_words_in_a_minute(project: ServedApi) -> None:
    await project.function()
    worker, call = await given(project)
    await lose(project, worker)
    reports_max = project.core.settings.late_reports_max
    before = await project.core.database.fetchval("SELECT count(*) FROM changes")
    for _ in range(reports_max + 5):
        assert (await worker.post({"completed": [succeeded(call)]})).status_code == 404
    [event] = await events(project, call)
    assert event["count"] == reports_max
    assert await project.core.database.fetchval("SELECT count(*) FROM changes") - before >= reports_max

    async def is_not_read() -> bool:
        return (await worker.post({"completed": {}})).status_code == 404

    # Its words are used up, so once the server sees that it is fenced, what it sends need not even be a claim.
    await eventually(is_not_read)


async def test_what_cannot_be_read_of_a_fenced_worker_changes_nothing_about_its_answer(project: ServedApi) -> None:
    await project.function()
    worker, call = await given(project)
    worker = await with_new_token(project, worker)
    await lose(project, worker)
    headers = {"Authorization": f"Bearer {worker.token}"}
    for content in (b"nonsense", b'{"completed": {}}', b'{"completed": [1]}', b""):
        answer = await project.client.post(worker.path, content=content, headers=headers)
        assert answer.status_code == 404, answer.text
    assert await events(project, call) == []
