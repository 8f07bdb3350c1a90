from __future__ import annotations

import copy
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Document
from tests.fixtures.admission import BLOB, ProjectInMemory, causes, function_body, function_spec

FUNCTION = KINDS["Function"]
APP = {"metadata": {"name": "hello"}, "spec": {"ephemeral": True}}
IN_APP = {"sdk.nodus.dev/app": "hello"}


def named(name: str, **labels: str) -> Document:
    return {"metadata": {"name": name, "labels": labels}, "spec": function_spec()}


async def test_a_new_function_takes_calls_without_workers(memory: ProjectInMemory) -> None:
    document = await memory.create("Function", function_body())
    status = document["status"]
    assert (status["phase"], status["reason"]) == ("Running", "Idle")
    assert {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]} == {
        "Ready": ("True", "ScaledToZero"),
        "Funded": ("True", "Funded"),
    }
    assert status["workers"] == {"ready": 0, "busy": 0, "idle": 0, "starting": 0, "draining": 0}
    assert status["queue"] == {"queued": 0, "running": 0}
    assert status["image"] == {"reference": "nodus/python:3.11"}
    assert FUNCTION.status is not None
    FUNCTION.status.model_validate(status)


@pytest.mark.parametrize(
    ("fields", "phase", "ready"),
    [
        ({"state": "Stopped"}, "Stopped", ("False", "Stopped")),
        ({"scaling": {"minWorkers": 1}}, "Starting", ("False", "Starting")),
    ],
)
async def test_a_new_function_says_what_it_waits_for(
    memory: ProjectInMemory, fields: dict[str, Any], phase: str, ready: tuple[str, str]
) -> None:
    status = (await memory.create("Function", function_body(**fields)))["status"]
    assert status["phase"] == phase
    assert (status["conditions"][0]["status"], status["conditions"][0]["reason"]) == ready


async def test_a_function_joins_the_app_that_its_client_names(memory: ProjectInMemory) -> None:
    await memory.create("App", APP)
    document = await memory.create("Function", named("hello-square", **IN_APP))
    assert document["metadata"]["labels"] == {"sdk.nodus.dev/app": "hello", "nodus.dev/app": "hello"}
    assert document["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "nodus.dev/v1",
            "kind": "App",
            "name": "hello",
            "uid": "app_hello",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert document["status"]["appVersion"] == 1


async def test_a_function_of_an_app_that_is_not_there_stays_alone(memory: ProjectInMemory) -> None:
    document = await memory.create("Function", named("hello-square", **IN_APP))
    assert document["metadata"]["labels"] == IN_APP
    assert "ownerReferences" not in document["metadata"]


async def test_a_function_moves_with_the_label_of_its_client(memory: ProjectInMemory) -> None:
    await memory.create("App", APP)
    other = {"apiVersion": "nodus.dev/v1", "kind": "Project", "name": "p", "uid": "prj_p"}
    body = named("square")
    body["metadata"]["ownerReferences"] = [other]
    await memory.create("Function", body)
    body["metadata"]["labels"] = dict(IN_APP)
    joined = await memory.update("Function", "square", body)
    assert joined["metadata"]["labels"]["nodus.dev/app"] == "hello"
    assert [owner["kind"] for owner in joined["metadata"]["ownerReferences"]] == ["Project", "App"]
    assert await memory.update("Function", "square", copy.deepcopy(joined)) == joined
    body["metadata"]["labels"] = {}
    left = await memory.update("Function", "square", body)
    assert "labels" not in left["metadata"]
    assert left["metadata"]["ownerReferences"] == [other]


async def test_what_a_function_refers_to_must_exist(memory: ProjectInMemory) -> None:
    body = function_body(
        code={"module": "app", "qualname": "f", "blob": BLOB},
        imageRef="img-1",
        secrets=["a"],
        env=[{"name": "A"}, {"name": "B", "valueFrom": {"secretKeyRef": {"name": "b", "key": "k"}}}],
    )
    with pytest.raises(ApiError) as error:
        await memory.create("Function", body)
    assert set(causes(error)) == {
        "spec.code.blob",
        "spec.imageRef",
        "spec.secrets[0].name",
        "spec.env[1].valueFrom.secretKeyRef.name",
    }
    memory.blobs.add("0" * 64)
    await memory.create("Image", {"metadata": {"name": "img-1"}, "spec": {"base": "nodus/python:3.11"}})
    for name in ("a", "b"):
        await memory.create("Secret", {"metadata": {"name": name}, "spec": {}})
    assert await memory.create("Function", body)


async def test_a_function_whose_secret_is_gone_can_still_be_stopped(memory: ProjectInMemory) -> None:
    await memory.create("Secret", {"metadata": {"name": "a"}, "spec": {}})
    await memory.create("Function", function_body(secrets=["a"]))
    del memory.objects["Secret", "a"]
    stopped = await memory.patch("Function", "square", state="Stopped")
    assert stopped["spec"]["state"] == "Stopped"
    with pytest.raises(ApiError) as error:
        await memory.patch("Function", "square", secrets=["b"])
    assert set(causes(error)) == {"spec.secrets[0].name"}


async def test_an_image_object_must_hold_the_python_of_the_function(memory: ProjectInMemory) -> None:
    await memory.create("Image", {"metadata": {"name": "img-1"}, "spec": {"base": "nodus/python:3.11"}})
    await memory.create("Function", function_body(imageRef="img-1"))
    with pytest.raises(ApiError) as error:
        await memory.patch("Function", "square", python="3.12")
    assert set(causes(error)) == {"spec.imageRef"}


async def test_the_cost_cap_only_rises(memory: ProjectInMemory) -> None:
    await memory.create("Function", function_body(maxCostUSD="5"))
    raised = await memory.patch("Function", "square", maxCostUSD="10")
    assert raised["status"]["cost"]["limitUSD"] == "10.00"
    with pytest.raises(ApiError) as error:
        await memory.patch("Function", "square", maxCostUSD="9.999999")
    assert set(causes(error, Reason.FIELD_IMMUTABLE)) == {"spec.maxCostUSD"}
    assert error.value.details == {"diff": ["spec.maxCostUSD"]}
    uncapped = await memory.patch("Function", "square", maxCostUSD=None)
    assert "limitUSD" not in uncapped["status"]["cost"]


async def test_status_repeats_a_new_image_at_once(memory: ProjectInMemory) -> None:
    await memory.create("Function", function_body())
    memory.objects["Function", "square"]["status"]["image"]["digest"] = "sha256:old"
    new = await memory.patch("Function", "square", python="3.12", image="nodus/python:3.12")
    assert new["status"]["image"] == {"reference": "nodus/python:3.12"}


async def test_the_version_of_the_app_is_noted_with_each_change(memory: ProjectInMemory) -> None:
    app = await memory.create("App", APP)
    await memory.create("Function", named("hello-square", **IN_APP))
    app["status"]["version"] = 4
    assert (await memory.patch("Function", "hello-square", timeout="10s"))["status"]["appVersion"] == 4
