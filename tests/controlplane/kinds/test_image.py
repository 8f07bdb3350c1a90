from __future__ import annotations

from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import judged_spec, validated_spec
from tests.fixtures.admission import BLOB, ProjectInMemory, causes

IMAGE = KINDS["Image"]
BASE = "nodus/python:3.11"


def image_body(**fields: Any) -> Document:
    return {"metadata": {"name": "img-1"}, "spec": fields}


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({"base": BASE, "steps": [{"env": {"A": "1"}}, {"aptInstall": ["git"]}]}, "spec.steps.aptInstall"),
        ({"base": BASE, "steps": [{"uvSync": {"project": "p", "frozen": True}}]}, "spec.steps.uvSync.project"),
        ({"base": BASE, "steps": [{"copy": {"blob": BLOB, "dest": "/usr/a"}}]}, "spec.steps.copy.dest"),
        ({"base": BASE, "steps": [{"copy": {"blob": BLOB, "dest": "/"}}]}, "spec.steps.copy.dest"),
        ({"base": BASE, "steps": [{"workdir": "/nodus/env"}]}, "spec.steps.copy.dest"),
        ({"dockerfile": {"inline": "FROM x", "context": BLOB, "target": "t"}}, "spec.dockerfile"),
        ({"dockerfile": {"blob": BLOB}}, "spec.dockerfile"),
        ({"fromSandbox": {"name": "s", "includePaths": ["/a"]}}, "spec.fromSandbox"),
        ({"base": "debian:12"}, "spec.base"),
        ({"base": BASE, "platform": "linux/arm64"}, "spec.platform"),
        ({"base": BASE, "tags": ["latest"]}, "spec.tags"),
        ({"base": BASE, "imagePullSecrets": ["a"]}, "spec.imagePullSecrets"),
        ({"base": BASE, "buildSecrets": ["a"]}, "spec.buildSecrets"),
    ],
)
def test_a_build_that_is_not_offered_is_told_with_a_way_out(spec: Document, field: str) -> None:
    assert not judged_spec(IMAGE, spec)[1]
    with pytest.raises(ApiError) as error:
        validated_spec(IMAGE, spec)
    assert error.value.reason is Reason.UNSUPPORTED
    assert [cause.field for cause in error.value.causes] == [field]
    assert error.value.fix


STEPS = [
    {"pipInstall": {"packages": ["numpy"], "extraIndexURLs": ["u"]}},
    {"uvPipInstall": {"packages": ["a"], "indexURL": "u"}},
    {"env": {"A": "1"}},
    {"run": ["echo hi"]},
    {"workdir": "/w"},
    {"copy": {"blob": BLOB, "dest": "/a"}},
    {"uvSync": {"project": BLOB, "frozen": True}},
]


async def test_an_image_with_steps_waits_for_its_build(memory: ProjectInMemory) -> None:
    memory.blobs.add(BLOB.removeprefix("sha256:"))
    document = await memory.create("Image", image_body(base=BASE, python="3.11", steps=STEPS))
    status = document["status"]
    assert (status["phase"], status["python"], status["progress"]) == ("Pending", "3.11", {"stage": "Queued"})
    assert IMAGE.status is not None
    IMAGE.status.model_validate(status)
    new = await memory.patch("Image", "img-1", base=BASE, steps=STEPS[:1])
    assert (new["status"]["phase"], new["status"]["observedGeneration"]) == ("Pending", 2)


async def test_blobs_of_steps_must_be_there_and_the_python_be_named(memory: ProjectInMemory) -> None:
    with pytest.raises(ApiError) as error:
        await memory.create("Image", image_body(base="nodus/python", steps=STEPS))
    assert set(causes(error)) == {"spec.python", "spec.steps[5].copy.blob", "spec.steps[6].uvSync.project"}


async def test_a_function_waits_for_an_image_that_is_not_built(memory: ProjectInMemory) -> None:
    await memory.create("Image", image_body(base=BASE, steps=STEPS[:1]))
    spec = {"code": {"module": "m", "qualname": "f"}, "python": "3.11", "imageRef": "img-1"}
    function = await memory.create("Function", {"metadata": {"name": "f"}, "spec": spec})
    assert (function["status"]["phase"], function["status"]["reason"]) == ("Pending", "ImagePending")


@pytest.mark.parametrize(
    ("spec", "field"),
    [
        ({}, "spec.fromSandbox"),
        ({"base": BASE, "dockerfile": {"inline": "x"}}, "spec.fromSandbox"),
        ({"base": BASE, "python": "2.7"}, "spec.python"),
        ({"base": BASE, "steps": [{}]}, "spec.steps[0]"),
        ({"base": BASE, "steps": [{"run": ["a"], "workdir": "/w"}]}, "spec.steps[0]"),
        ({"base": BASE, "steps": [{"run": []}]}, "spec.steps[0].run"),
        ({"base": BASE, "steps": [{"workdir": "w"}]}, "spec.steps[0].workdir"),
        ({"base": BASE, "steps": [{"copy": {"blob": BLOB, "dest": "a"}}]}, "spec.steps[0].copy.dest"),
        ({"base": BASE, "steps": [{"env": {"1A": "x"}}]}, "spec.steps[0].env.1A"),
        ({"base": BASE, "steps": [{"workdir": "/w"}] * 129}, "spec.steps"),
        ({"base": BASE, "tags": ["-a"]}, "spec.tags[0]"),
        ({"base": BASE, "platform": "windows"}, "spec.platform"),
        ({"dockerfile": {}}, "spec.dockerfile.blob"),
        ({"dockerfile": {"inline": "x", "blob": BLOB}}, "spec.dockerfile.blob"),
    ],
)
def test_a_build_that_is_wrong_is_told_where(spec: Document, field: str) -> None:
    _, found = judged_spec(IMAGE, spec)
    assert [cause.field for cause in found] == [field]


async def test_an_image_of_the_catalog_is_ready_at_once(memory: ProjectInMemory) -> None:
    document = await memory.create("Image", image_body(base=BASE))
    status = document["status"]
    assert (status["phase"], status["reference"], status["python"]) == ("Ready", BASE, "3.11")
    assert status["conditions"][0]["status"] == "True"
    assert IMAGE.status is not None
    IMAGE.status.model_validate(status)
    new = await memory.patch("Image", "img-1", base="nodus/python:3.12")
    assert (new["status"]["python"], new["status"]["observedGeneration"]) == ("3.12", 2)


async def test_the_python_of_an_image_is_that_of_its_base(memory: ProjectInMemory) -> None:
    with pytest.raises(ApiError) as error:
        await memory.create("Image", image_body(base=BASE, python="3.12"))
    assert set(causes(error)) == {"spec.python"}
