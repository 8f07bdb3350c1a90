"""The operator's switches, as an operator turns them and a client of another process meets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from controlplane.ledger.credits import GrantCredit
from tests.api.test_billing import Charge
from tests.fixtures.app import NEW_CALL, NEW_FUNCTION, ServedApi, serve
from tests.fixtures.commands import command, run_workers
from tests.fixtures.eventually import eventually
from tests.fixtures.http_worker import start_worker

BOOK = Path(__file__).resolve().parents[2] / "deploy" / "pricebooks" / "example.yaml"


async def reason_of(api: ServedApi, plural: str, body: object, **query: str) -> str:
    """What comes of a create: nothing, or the reason of its refusal."""
    answer = await api.client.post(f"{api.path}/{plural}", json=body, params=query)
    return "" if answer.status_code < 400 else str(answer.json()["reason"])


async def becomes(api: ServedApi, plural: str, body: object, reason: str) -> None:
    async def is_so() -> bool:
        return await reason_of(api, plural, body) == reason

    await eventually(is_so)


async def test_new_objects_of_a_paused_kind_are_refused_and_others_are_not(served: ServedApi) -> None:
    assert (
        await command(served, "switches", "pause", "functioncalls", "--reason", "a new release")
        == "new functioncalls are paused"
    )
    await becomes(served, "functioncalls", NEW_CALL, "AdmissionsPaused")
    answer = await served.client.post(f"{served.path}/functioncalls", json=NEW_CALL)
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "5")
    assert answer.json()["message"] == "an operator has paused new functioncalls: a new release"
    batch = {"kind": "FunctionCallList", "items": [NEW_CALL]}
    assert await reason_of(served, "functions/f/calls", batch) == "AdmissionsPaused"
    assert await reason_of(served, "functions", NEW_FUNCTION) == ""
    assert (await command(served, "switches", "list")).splitlines()[1].split()[:2] == ["pause", "FunctionCall"]
    assert await command(served, "switches", "resume", "FunctionCall") == "new functioncalls are admitted"
    await becomes(served, "functioncalls", NEW_CALL, "")
    assert await command(served, "switches", "resume", "FunctionCall") == "new functioncalls were not paused"


async def test_an_organisation_whose_compute_is_suspended_starts_nothing_and_reads_everything(
    served: ServedApi,
) -> None:
    worker = await start_worker(served)
    waiting = (await served.create("functioncalls", NEW_CALL))["metadata"]["name"]
    await command(served, "switches", "suspend", "default", "--reason", "unpaid")
    for plural, body in (("functioncalls", NEW_CALL), ("functions", NEW_FUNCTION)):
        await becomes(served, plural, body, "ComputeSuspended")
    assert await reason_of(served, "apps", {"metadata": {"name": "a"}, "spec": {}}) == ""
    assert (await served.client.get(f"{served.path}/functioncalls/{waiting}")).status_code == 200
    assert (await worker.claim())["calls"] == []
    keyed: dict[str, Any] = {"json": NEW_FUNCTION, "headers": {"Idempotency-Key": "k"}}
    assert (await served.client.post(f"{served.path}/functions", **keyed)).status_code == 403
    await command(served, "switches", "restore", "default")

    async def is_handed_out() -> bool:
        return [call["id"] for call in (await worker.claim())["calls"]] == [waiting]

    await eventually(is_handed_out)
    # The refusal told of the moment, so the key does not keep it.
    assert (await served.client.post(f"{served.path}/functions", **keyed)).status_code == 201


async def test_a_process_that_starts_knows_the_switches(served: ServedApi, tmp_path: Path) -> None:
    await command(served, "switches", "pause", "Function")
    settings = served.core.settings.model_copy(update={"switch_poll_seconds": 3_600.0})
    async with serve(settings, served.key) as another:
        assert await reason_of(another, "functions", NEW_FUNCTION) == "AdmissionsPaused"


async def test_a_rehearsal_is_refused_where_a_price_book_tells_other_refusals(served: ServedApi) -> None:
    """A kind without an estimate has nothing that could tell it; and a pause is over before anything is weighed."""
    app = {"metadata": {"name": "a"}, "spec": {}}
    await command(served, "switches", "pause", "App")
    await command(served, "switches", "pause", "Function")
    settings = served.core.settings.model_copy(update={"pricebook_file": BOOK})
    async with serve(settings, served.key) as priced:
        for plural, body in (("apps", app), ("functions", NEW_FUNCTION)):
            assert await reason_of(priced, plural, body, dryRun="All") == "AdmissionsPaused"


async def test_a_rehearsal_is_refused_as_the_create_would_be(served: ServedApi) -> None:
    await command(served, "switches", "pause", "FunctionCall")
    await becomes(served, "functioncalls", NEW_CALL, "AdmissionsPaused")
    answer = await served.client.post(f"{served.path}/functioncalls", json=NEW_CALL, params={"dryRun": "All"})
    assert (answer.status_code, answer.json()["reason"]) == (503, "AdmissionsPaused")


@pytest.mark.parametrize("word", ["Attempt", "nope"])
async def test_only_what_clients_create_can_be_paused(database_url: str, word: str) -> None:
    code, told = await run_workers(database_url, "switches", "pause", word)
    assert (code, "must be one of" in told) == (2, True), told


async def test_an_organisation_that_owes_creates_no_calls_until_it_is_paid(served: ServedApi) -> None:
    await served.core.writer.write(GrantCredit("default", "welcome", 100, ""))
    await served.core.writer.write(Charge(1, "f", 30, "default", {}))
    # Whoever hosts for himself has no limit, and owes nobody.
    assert await reason_of(served, "functioncalls", NEW_CALL) == ""
    await command(served, "ledger", "limit")
    await becomes(served, "functioncalls", NEW_CALL, "ArrearsOutstanding")
    answer = await served.client.post(f"{served.path}/functioncalls", json=NEW_CALL)
    assert (answer.status_code, answer.json()["details"]["arrearsUSD"]) == (402, "0.0002")
    assert "credit" in answer.json()["fix"]
    rehearsed = await served.client.post(f"{served.path}/functioncalls", json=NEW_CALL, params={"dryRun": "All"})
    assert rehearsed.status_code == 200
    [blocking] = rehearsed.json()["status"]["estimate"]["blockingReasons"]
    assert (blocking["code"], blocking["message"]) == ("ArrearsOutstanding", answer.json()["message"])
    assert await reason_of(served, "functions", NEW_FUNCTION) == ""
    await command(served, "ledger", "grant", "0.0002", "--name", "paid")
    await becomes(served, "functioncalls", NEW_CALL, "")
