"""Images as users of the public SDK and command line meet them: built by the server, followed, failed, repaired."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from typing import Any

import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, OBJECTS, System

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]

BUILD = """
import nodus
image = nodus.Image.debian_slim().run_commands({commands})
try:
    image.build()
    print("digest", image.digest)
except nodus.errors.ImageBuildFailed as error:
    print("failed", error)
"""


def build(system: System, *commands: str) -> str:
    """Build an image of these commands with the SDK, which follows its log; what it printed."""
    return system.python(BUILD.format(commands=", ".join(map(repr, commands))))


def image_named(system: System, command: str) -> dict[str, Any]:
    """The Image with this command among its steps."""
    [found] = [image for image in system.objects("images") if command in json.dumps(image["spec"])]
    return found


def test_a_function_runs_in_the_image_that_its_app_describes(system: System) -> None:
    told = system.nodus("run", str(APPS / "images" / "built.py"), timeout=300).splitlines()
    expected = [
        "package: IniConfig",
        "variables: hello from the image, of the function",
        "file: weights weights",
        "made: made",
        "folder: /srv/app",
        "read-only: True",
    ]
    assert [line for line in told if line in expected] == expected
    image = image_named(system, "by-a-command")
    assert image["status"]["phase"] == "Ready"
    assert image["status"]["digest"].startswith("sha256:")
    assert image["status"]["size"] > 0
    name = image["metadata"]["name"]
    assert "iniconfig" in system.nodus("logs", f"image/{name}")
    assert "Ready" in system.nodus("get", "images")
    assert "the image was built" in system.nodus("describe", f"image/{name}")


def test_the_sdk_follows_a_build_and_equal_steps_are_built_once(system: System) -> None:
    told = build(system, "echo said by the build")
    assert "said by the build" in told.splitlines()
    digest = told.split("digest ")[1].split()[0]
    image = image_named(system, "said by the build")
    assert image["status"]["build"]["cached"] is False
    with system.http() as client:
        body = {"metadata": {"name": "another-name"}, "spec": image["spec"]}
        assert client.post(f"{OBJECTS}/images", json=body).status_code == 201
    system.nodus("wait", "image/another-name", "--for=jsonpath={.status.phase}=Ready", "--timeout=120s")
    again = json.loads(system.nodus("get", "image/another-name", "-o", "json"))["status"]
    assert (again["digest"], again["build"]["cached"]) == (digest, True)
    assert again["specHash"] == image["status"]["specHash"]


async def test_a_failed_build_fails_the_function_and_says_why(system: System) -> None:
    told = system.nodus("run", str(APPS / "images" / "broken.py"), timeout=300)
    assert "no-such-package-of-ours" in told
    image = image_named(system, "no-such-package-of-ours")
    assert (image["status"]["phase"], image["status"]["reason"]) == ("Failed", "StepFailed")
    assert "step 1 (pipInstall) ended with exit code" in image["status"]["message"]
    assert "request restart" in image["status"]["message"]
    system.nodus("deploy", str(APPS / "images" / "broken.py"))

    def function() -> dict[str, Any]:
        status: dict[str, Any] = json.loads(system.nodus("get", "function/broken-image-never", "-o", "json"))["status"]
        return status

    await eventually(lambda: function()["phase"] == "Failed")
    assert function()["reason"] == "ImageBuildFailed"
    assert "no-such-package-of-ours" in function()["message"]
    system.delete_app("broken-image")


async def test_a_build_can_be_asked_for_again(system: System) -> None:
    # Times of an object are whole seconds, and both builds fit in one: what a build prints tells them apart.
    command = "date +%s.%N; exit 3"
    assert "failed" in build(system, command)
    image = image_named(system, command)
    name, first = image["metadata"]["name"], image["status"]["message"]
    system.nodus("request", "restart", f"image/{name}")

    def later() -> bool:
        status = image_named(system, command)["status"]
        return bool(status["phase"] == "Failed" and status["message"] != first)

    await eventually(later, within=120)


async def test_a_deleted_image_is_not_built_any_longer(system: System) -> None:
    with system.http() as client:
        spec = {"base": "nodus/python:3.11", "steps": [{"run": ["echo waiting; sleep 1000"]}]}
        assert client.post(f"{OBJECTS}/images", json={"metadata": {"name": "endless"}, "spec": spec}).status_code == 201
    await eventually(lambda: "waiting" in system.nodus("logs", "image/endless"), within=120)
    folder = system.data_dir / "environments"
    assert list(folder.glob(".image-*.building"))
    system.nodus("delete", "image/endless")
    await eventually(lambda: not list(folder.glob(".image-*.building")))


def test_what_no_node_can_build_is_refused_with_a_way_out(system: System) -> None:
    program = """
import nodus
for image in (nodus.Image.debian_slim().apt_install("git"), nodus.Image.from_registry("debian:12").run_commands("ls")):
    try:
        image.build()
    except nodus.errors.NodusError as error:
        print(type(error).__name__, error.fix)
"""
    lines = system.python(program).splitlines()
    assert [line.split()[0] for line in lines] == ["Unsupported", "Unsupported"]
    assert "host" in lines[0]
    assert "nodus/python:3.12" in lines[1]


ANSWER = 'import nodus; print(nodus.Function.from_name("changed", "answer").remote(0))'
SPAWN = 'import nodus; print(nodus.Function.from_name("changed", "answer").spawn(12).name)'
GET = "import nodus; print(nodus.FunctionCall.from_name({name!r}).get(timeout=120))"


async def test_an_image_that_is_changed_under_its_name_replaces_the_workers_of_its_functions(system: System) -> None:
    def function() -> dict[str, Any]:
        [found] = system.objects("functions", fieldSelector="metadata.name=changed-answer")
        status: dict[str, Any] = found["status"]
        return status

    def ready() -> tuple[str, str]:
        [found] = [one for one in function()["conditions"] if one["type"] == "Ready"]
        return found["status"], found["reason"]

    def change(*steps: dict[str, Any]) -> None:
        body = json.dumps({"spec": {"steps": [{"workdir": "/srv"}, *steps]}})
        system.kubectl("patch", f"image/{name}", "--type=merge", "-p", body)

    def digest() -> str:
        told: str = json.loads(system.kubectl("get", f"image/{name}", "-o", "json"))["status"].get("digest", "")
        return told

    system.nodus("deploy", str(APPS / "images" / "changed.py"))
    assert system.python(ANSWER, timeout=240) == "one\n"
    name = image_named(system, "echo one")["metadata"]["name"]
    first = digest()
    expected = {"reference": f"{name}@{first}", "digest": first}
    await eventually(lambda: function().get("image") == expected)

    running = system.python(SPAWN).strip()

    def begun() -> bool:
        [found] = [one for one in system.calls("changed-answer") if one["metadata"]["name"] == running]
        return bool(found["status"]["phase"] != "Queued")

    await eventually(begun)
    change({"run": ["echo two > /srv/answer"]})
    await eventually(lambda: digest() not in ("", first), within=120)
    # What is queued from now on waits for the new one, and what runs ends where it began.
    assert system.python(ANSWER, timeout=240) == "two\n"
    assert system.python(GET.format(name=running)) == "one\n"
    assert {(call["status"]["phase"], call["status"]["recoveries"]) for call in system.calls("changed-answer")} == {
        ("Succeeded", 0)
    }
    second = digest()
    await eventually(lambda: function()["image"]["digest"] == second)

    # What cannot be built replaces nothing.
    change({"run": ["exit 7"]})
    await eventually(lambda: ready() == ("False", "ImageBuildFailed"), within=120)
    assert system.python(ANSWER) == "two\n"

    # The files are those of before: how a worker starts on them is a part of an image as well.
    change({"run": ["echo two > /srv/answer"]}, {"env": {"ANSWER": "three"}})
    await eventually(lambda: digest() not in ("", first, second), within=120)
    await eventually(lambda: system.python(ANSWER, timeout=240) == "three\n", within=120)
    system.delete_app("changed")


async def test_a_node_that_dies_in_a_build_builds_it_after_all(own_system: System) -> None:
    own_system.start()
    folder = own_system.data_dir / "environments"
    following = subprocess.Popen(
        ["nodus", "run", str(APPS / "images" / "built.py")],
        env=own_system.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        await eventually(lambda: list(folder.glob(".image-*.building/tree/env")), within=120)
        own_system.child("node").send_signal(signal.SIGKILL)
        told, _ = following.communicate(timeout=240)
    finally:
        following.kill()
    assert "package: IniConfig" in told.splitlines(), told
    assert not list(folder.glob(".image-*"))
    # A node that has lost what it built has it built again, and its Function waits for that.
    own_system.stop()
    for image in folder.glob("image-*"):
        shutil.rmtree(image)
    own_system.start()
    told = own_system.nodus("run", str(APPS / "images" / "built.py"), timeout=300)
    assert "package: IniConfig" in told.splitlines(), told
    assert list(folder.glob("image-*/image.json"))
