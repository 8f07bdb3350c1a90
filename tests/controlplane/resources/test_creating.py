"""Creates at their edges: names that are taken, requests that overlap."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.kinds.registry import KINDS
from controlplane.resources import CreateOptions
from controlplane.store.idempotency import KeyedRequest
from tests.fixtures.app import ServedApi

CALLER = Principal(
    kind=PrincipalKind.USER, org="default", id="u", label="usr_x", scopes=frozenset({"*"}), projects=frozenset({"*"})
)
APP = KINDS["App"]
GENERATED: dict[str, Any] = {"metadata": {"generateName": "a-"}, "spec": {}}


@pytest.fixture
def suffixes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The next random suffixes of generated names; the last one repeats."""
    chosen: list[str] = []

    def name(prefix: str) -> str:
        return prefix + (chosen.pop(0) if len(chosen) > 1 else chosen[0])

    monkeypatch.setattr("controlplane.admission.generated_name", name)
    monkeypatch.setattr("controlplane.resources.mutations.generated_name", name)
    return chosen


async def names(project: ServedApi) -> list[str]:
    listed = (await project.client.get(f"{project.path}/apps")).json()
    return [item["metadata"]["name"] for item in listed["items"]]


async def test_a_generated_name_that_is_taken_is_chosen_again(project: ServedApi, suffixes: list[str]) -> None:
    suffixes += ["1", "1", "1", "2"]
    for _ in range(2):
        await project.create("apps", GENERATED)
    assert await names(project) == ["a-1", "a-2"]


async def test_after_eight_tries_a_generated_name_is_given_up(project: ServedApi, suffixes: list[str]) -> None:
    suffixes += ["1"]
    await project.create("apps", GENERATED)
    answer = await project.client.post(f"{project.path}/apps", json=GENERATED)
    assert (answer.status_code, answer.json()["reason"]) == (409, "AlreadyExists")
    assert await names(project) == ["a-1"]


async def test_in_a_batch_only_the_taken_names_are_chosen_again(project: ServedApi, suffixes: list[str]) -> None:
    suffixes += ["2"]
    await project.create("apps", GENERATED)
    suffixes[:] = ["1", "2", "3", "1", "4", "9"]
    await project.deps.resources.creator.create_many(
        APP, project.project_name, [GENERATED] * 3, CALLER, CreateOptions()
    )
    assert await names(project) == ["a-1", "a-2", "a-3", "a-4"]


async def test_a_second_request_with_a_key_is_refused_while_the_first_runs(project: ServedApi) -> None:
    options = CreateOptions(keyed=KeyedRequest("scope", project.project_name, "digest"))
    creator = project.deps.resources.creator
    first = asyncio.create_task(creator.create(APP, project.project_name, GENERATED, CALLER, options))
    await asyncio.sleep(0)
    with pytest.raises(ApiError) as refused:
        await creator.create(APP, project.project_name, GENERATED, CALLER, options)
    assert refused.value.reason is Reason.REQUEST_IN_PROGRESS
    assert refused.value.retry_after_seconds == 1
    answer = await first
    assert await creator.create(APP, project.project_name, GENERATED, CALLER, options) == answer


async def test_a_fault_is_not_kept_as_the_answer_of_its_key(project: ServedApi) -> None:
    keyed = {"Idempotency-Key": "k"}
    writer: Any = project.core.writer
    settings = writer._settings
    writer._settings = settings.model_copy(update={"write_queue_max": 0})
    try:
        refused = await project.client.post(f"{project.path}/apps", json=GENERATED, headers=keyed)
    finally:
        writer._settings = settings
    assert (refused.status_code, refused.json()["reason"]) == (503, "Unavailable")
    assert (await project.client.post(f"{project.path}/apps", json=GENERATED, headers=keyed)).status_code == 201


async def test_an_unlocked_change_is_applied_again_to_what_a_faster_writer_left(project: ServedApi) -> None:
    await project.create("apps", {"metadata": {"name": "a"}, "spec": {}})
    changer = project.deps.resources.changer
    key = project.object_key("App", "a")
    seen: list[str] = []

    def described(text: str) -> Any:
        def produce(stored: dict[str, Any]) -> dict[str, Any]:
            seen.append(text)
            labels = {**stored["metadata"]["labels"], text: "x"}
            return {**stored, "metadata": {**stored["metadata"], "labels": labels, "resourceVersion": ""}}

        return produce

    await asyncio.gather(
        *(changer.change(key, described(f"w{number}"), CALLER, body=None, dry_run=False) for number in range(5))
    )
    labels = (await project.client.get(f"{project.path}/apps/a")).json()["metadata"]["labels"]
    assert {f"w{number}" for number in range(5)} <= labels.keys()
    assert len(seen) > 5


async def test_a_caller_without_a_project_of_its_own_is_told_which_is_missing(project: ServedApi) -> None:
    with pytest.raises(ApiError) as refused:
        await project.deps.resources.creator.create(APP, "nowhere", GENERATED, CALLER, CreateOptions())
    assert refused.value.subject == ("projects", "nowhere")
