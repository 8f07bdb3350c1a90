from __future__ import annotations

import copy
from datetime import timedelta
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import judged_spec, validated_spec
from tests.fixtures.admission import BLOB, NOW, ProjectInMemory, causes

APP = KINDS["App"]
OTHER_BLOB = "sha256:" + "1" * 64
LAST_APPLIED = "nodus.dev/last-applied"
LATER = NOW + timedelta(hours=1)


def app_body(*, ephemeral: bool = False, manifest: str = "{}", **fields: Any) -> Document:
    return {
        "metadata": {"name": "hello", "annotations": {LAST_APPLIED: manifest}},
        "spec": {"ephemeral": ephemeral, **fields},
    }


@pytest.mark.parametrize(
    ("field", "good", "bad"),
    [
        ("ephemeral", [True, False], ["true", 1]),
        ("renewTime", ["2026-11-29T11:17:42Z", "2026-11-29T11:17:42.5+02:00"], ["", "now", 5, "2026-11-29"]),
        ("source", [{}, {"blob": BLOB}], [{"blob": "x"}, {"sha": BLOB}, BLOB]),
        ("description", ["", "x" * 1_024], ["x" * 1_025, 5]),
        ("state", [], ["Running"]),
    ],
)
def test_each_field_takes_exactly_what_is_within_its_bounds(field: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert not judged_spec(APP, {field: value})[1], value
    for value in bad:
        _, [cause] = judged_spec(APP, {field: value})
        assert cause.field.startswith(f"spec.{field}")


def test_an_app_stays_unless_it_says_otherwise() -> None:
    assert validated_spec(APP, {}) == {"ephemeral": False}


async def test_a_new_app_is_version_one_and_ready_for_members(memory: ProjectInMemory) -> None:
    status = (await memory.create("App", app_body()))["status"]
    assert status["phase"] == "Ready"
    assert status["version"] == 1
    assert status["deployTime"] == "2026-11-29T11:17:42Z"
    assert status["members"] == {"functions": 0, "agents": 0, "ready": 0}
    assert APP.status is not None
    APP.status.model_validate(status)


async def test_the_source_of_an_app_must_have_been_uploaded(memory: ProjectInMemory) -> None:
    with pytest.raises(ApiError) as error:
        await memory.create("App", app_body(source={"blob": BLOB}))
    assert set(causes(error)) == {"spec.source.blob"}
    memory.blobs.add("0" * 64)
    await memory.create("App", app_body(source={"blob": BLOB}))
    with pytest.raises(ApiError) as error:
        await memory.patch("App", "hello", source={"blob": OTHER_BLOB})
    assert set(causes(error)) == {"spec.source.blob"}


@pytest.mark.parametrize(
    ("change", "deploys"),
    [
        ({"spec": {"source": {"blob": OTHER_BLOB}}}, True),
        ({"spec": {"description": "new"}}, True),
        ({"metadata": {"annotations": {LAST_APPLIED: "new"}}}, True),
        ({"metadata": {"annotations": {LAST_APPLIED: "{}"}}}, True),
        ({"spec": {"renewTime": "2026-11-29T12:00:00Z"}}, False),
        ({"metadata": {"labels": {"a": "b"}}}, False),
        ({"metadata": {"annotations": {"note": "x"}}}, False),
    ],
)
async def test_a_deploy_counts_one_version(memory: ProjectInMemory, change: Document, deploys: bool) -> None:
    memory.blobs |= {"0" * 64, "1" * 64}
    stored = await memory.create("App", app_body(source={"blob": BLOB}))
    body = copy.deepcopy(stored)
    for part, fields in change.items():
        for field, value in fields.items():
            body[part][field] = {**body[part].get(field, {}), **value} if isinstance(value, dict) else value
    new = copy.deepcopy(body)
    new["metadata"]["generation"] = 1
    await APP.strategy.prepare_update(stored, new, memory.context(change, now=LATER))
    assert new["status"]["version"] == (2 if deploys else 1)
    assert new["status"]["deployTime"] == ("2026-11-29T12:17:42Z" if deploys else "2026-11-29T11:17:42Z")


async def test_an_ephemeral_app_counts_no_versions(memory: ProjectInMemory) -> None:
    await memory.create("App", app_body(ephemeral=True))
    assert (await memory.patch("App", "hello", description="new"))["status"]["version"] == 1


async def test_an_app_cannot_become_ephemeral(memory: ProjectInMemory) -> None:
    await memory.create("App", app_body())
    with pytest.raises(ApiError) as error:
        await memory.patch("App", "hello", ephemeral=True)
    assert set(causes(error, Reason.FIELD_IMMUTABLE)) == {"spec.ephemeral"}


async def test_an_app_observes_its_own_generation(memory: ProjectInMemory) -> None:
    await memory.create("App", app_body())
    new = await memory.patch("App", "hello", description="new")
    assert new["status"]["observedGeneration"] == new["metadata"]["generation"] == 2
