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
    "spec",
    [
        {"base": BASE, "python": "3.11", "steps": [{"pipInstall": {"packages": ["numpy"], "extraIndexURLs": ["u"]}}]},
        {"base": BASE, "steps": [{"uvPipInstall": {"packages": ["a"], "indexURL": "u"}}] * 128},
        {
            "base": BASE,
            "steps": [{"env": {"A": "1"}}, {"run": ["echo hi"]}, {"aptInstall": ["git"]}, {"workdir": "/w"}],
        },
        {"base": BASE, "steps": [{"copy": {"blob": BLOB, "dest": "/a"}}, {"uvSync": {"project": "p", "frozen": True}}]},
        {"dockerfile": {"inline": "FROM x", "context": BLOB, "target": "t", "buildArgs": {"A": "1"}}},
        {"dockerfile": {"blob": BLOB}},
        {"fromSandbox": {"name": "s", "includePaths": ["/a"]}},
        {"base": "debian:12"},
        {"base": BASE, "platform": "linux/arm64"},
        {"base": BASE, "tags": ["latest"]},
        {"base": BASE, "imagePullSecrets": ["a"]},
        {"base": BASE, "buildSecrets": ["a"]},
    ],
)
def test_a_build_is_understood_and_not_offered(spec: Document) -> None:
    assert not judged_spec(IMAGE, spec)[1]
    with pytest.raises(ApiError) as error:
        validated_spec(IMAGE, spec)
    assert error.value.reason is Reason.UNSUPPORTED


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
