"""What nodes ask and tell about images, and what becomes of an Image while it is built."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import httpx
import pytest

from controlplane.images.builds import BuildEnd, BuildReference, RequestBuild, SettleBuild
from tests.api.test_node import attempt_of
from tests.fixtures.app import ServedApi

STEPS = [{"run": ["true"]}]
BUILT = BuildEnd(reason="Ready", key="image-" + "0" * 20, digest="sha256:" + "0" * 64, size_bytes=7)


async def image(project: ServedApi, name: str = "img", **spec: Any) -> dict[str, Any]:
    body = {"metadata": {"name": name}, "spec": {"base": "nodus/python:3.11", "steps": STEPS, **spec}}
    return await project.create("images", body)


async def stored(project: ServedApi, name: str = "img") -> dict[str, Any]:
    document: dict[str, Any] = (await project.client.get(f"{project.path}/images/{name}")).json()
    return document


def reference(project: ServedApi, document: dict[str, Any]) -> BuildReference:
    metadata = document["metadata"]
    return BuildReference(project.object_key("Image", metadata["name"]), metadata["uid"], metadata["generation"])


async def settle(project: ServedApi, document: dict[str, Any], end: BuildEnd = BUILT) -> bool:
    return await project.core.writer.write(SettleBuild(reference(project, document), end))


async def test_a_plan_holds_what_to_build_and_where_its_files_are(project: ServedApi, node: httpx.AsyncClient) -> None:
    content = b"an archive"
    digest = hashlib.sha256(content).hexdigest()
    await project.upload(content)
    steps = [{"copy": {"blob": f"sha256:{digest}", "dest": "/data"}}]
    document = await image(project, steps=steps)
    uid = document["metadata"]["uid"]
    answer = await node.post(f"/node/v1/images/{uid}/plan", json={"generation": 1})
    assert answer.status_code == 200, answer.text
    plan = answer.json()
    assert (plan["python"], plan["spec"]["steps"]) == ("3.11", steps)
    assert (await node.get(plan["blobs"][f"sha256:{digest}"])).content == content
    assert (await node.post(f"/node/v1/images/{uid}/plan", json={"generation": 2})).status_code == 409
    await settle(project, document)
    assert (await node.post(f"/node/v1/images/{uid}/plan", json={"generation": 1})).status_code == 409
    assert (await node.post("/node/v1/images/img_0/plan", json={"generation": 1})).status_code == 404


async def test_only_nodes_may_ask(project: ServedApi) -> None:
    uid = (await image(project))["metadata"]["uid"]
    for path in (f"images/{uid}/plan", f"images/{uid}/stage", f"images/{uid}/missing", "named-images"):
        answer = await project.client.post(f"/node/v1/{path}", json={})
        assert answer.status_code == 403, path


async def test_a_build_shows_its_stages_and_its_end(project: ServedApi, node: httpx.AsyncClient) -> None:
    document = await image(project)
    uid = document["metadata"]["uid"]
    told = {"generation": 1, "stage": "Building"}
    assert (await node.post(f"/node/v1/images/{uid}/stage", json=told)).status_code == 204
    status = (await stored(project))["status"]
    assert (status["phase"], status["progress"]["stage"]) == ("Pending", "Building")
    assert status["build"]["startTime"]
    assert await settle(project, document)
    status = (await stored(project))["status"]
    assert (status["phase"], status["digest"], status["size"]) == ("Ready", BUILT.digest, 7)
    assert "progress" not in status
    assert [condition["reason"] for condition in status["conditions"]] == ["Built"]
    # A try that was overtaken tells nothing any more.
    assert not await settle(project, document, BuildEnd(reason="StepFailed", message="late"))
    assert (await node.post(f"/node/v1/images/{uid}/stage", json=told)).status_code == 204
    assert (await stored(project))["status"] == status


async def test_what_a_build_prints_is_the_log_of_its_image(project: ServedApi, node: httpx.AsyncClient) -> None:
    document = await image(project)
    uid = document["metadata"]["uid"]
    for build, text in (("0001", "first try"), ("0002", "second try")):
        chunk = {"seq": 1, "lines": [[1_790_000_000_000_000_000, "stdout", text]]}
        for _ in range(2):
            answer = await node.post(f"/node/v1/builds/{uid}.{build}/logs", json={"chunks": [chunk]})
            assert answer.status_code == 204, answer.text
    await settle(project, document)
    log = await project.client.get(f"{project.path}/images/img/log", params={"follow": "true"})
    assert log.text.splitlines() == ["first try", "second try"]
    unknown = {"chunks": [{"seq": 1, "lines": []}]}
    assert (await node.post("/node/v1/builds/img_0.1/logs", json=unknown)).status_code == 404


async def test_a_changed_image_is_built_anew_and_the_old_build_means_nothing(project: ServedApi) -> None:
    document = await image(project)
    await settle(project, document)
    patch = {"spec": {"steps": [{"run": ["false"]}]}}
    changed = await project.client.patch(
        f"{project.path}/images/img", json=patch, headers={"content-type": "application/merge-patch+json"}
    )
    assert changed.json()["status"]["phase"] == "Pending"
    assert "digest" not in changed.json()["status"]
    assert not await settle(project, document)
    assert await settle(project, changed.json())


async def test_a_failed_image_can_be_asked_for_again(project: ServedApi) -> None:
    document = await image(project)
    await settle(project, document, BuildEnd(reason="StepFailed", message="step 1 (run) ended\nmore"))
    status = (await stored(project))["status"]
    assert (status["phase"], status["reason"], status["message"]) == (
        "Failed",
        "StepFailed",
        "step 1 (run) ended\nmore",
    )
    for time, phase in (("2026-01-01T00:00:00Z", "Pending"), ("2026-01-01T00:00:00Z", "Failed")):
        asked = await project.client.patch(
            f"{project.path}/images/img",
            json={"metadata": {"annotations": {"nodus.dev/restart-requested-at": time}}},
            headers={"content-type": "application/merge-patch+json"},
        )
        assert asked.json()["status"]["phase"] == phase
        await settle(project, document, BuildEnd(reason="StepFailed", message="again"))


async def test_a_lost_image_is_built_again_once(project: ServedApi, node: httpx.AsyncClient) -> None:
    document = await image(project)
    uid = document["metadata"]["uid"]
    await settle(project, document)
    told = {"digest": BUILT.digest, "message": "this node does not have the image"}
    assert (await node.post(f"/node/v1/images/{uid}/missing", json=told)).status_code == 204
    assert (await stored(project))["status"]["phase"] == "Pending"
    assert await settle(project, document)
    key = project.object_key("Image", "img")
    # One that speaks of what was built before the last build is late.
    assert not await project.core.writer.write(RequestBuild(key, uid, "sha256:other", "late"))
    assert not await project.core.writer.write(RequestBuild(key, "img_0", BUILT.digest, "another"))


async def test_images_that_functions_name_are_told(project: ServedApi, node: httpx.AsyncClient) -> None:
    await settle(project, await image(project))
    await settle(project, await image(project, "unnamed"), replace(BUILT, key="image-" + "1" * 20))
    await project.function(image=None, imageRef="img")
    keys = [BUILT.key, "image-" + "1" * 20]
    answer = await node.post("/node/v1/named-images", json={"keys": keys})
    assert answer.json() == {"named": [BUILT.key]}


@pytest.mark.parametrize("built", [False, True])
async def test_a_lease_names_the_built_image(project: ServedApi, node: httpx.AsyncClient, built: bool) -> None:
    document = await image(project)
    function = await project.function(image=None, imageRef="img")
    uid = await attempt_of(project, function)
    if built:
        await settle(project, document)
    answer = await node.post(f"/node/v1/attempts/{uid}/lease", json={"epoch": 1})
    if not built:
        assert answer.status_code == 503
        return
    expected = {"uid": document["metadata"]["uid"], "key": BUILT.key, "digest": BUILT.digest}
    assert answer.json()["image"] == expected
