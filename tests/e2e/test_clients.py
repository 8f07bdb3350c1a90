"""What users do with the public clients, against one running system."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import APPS, ROOT, System

pytestmark = pytest.mark.e2e


def test_user_modules_named_like_the_servers_packages_are_the_users_own(system: System) -> None:
    told = system.nodus("run", str(APPS / "named" / "named.py"))
    assert told.splitlines() == [
        f"the user's own {name}" for name in ("api", "controlplane", "runtime", "tests", "workers", "workflows")
    ]


async def test_a_second_deploy_changes_adds_and_prunes(system: System) -> None:
    call = "import nodus; print(nodus.Function.from_name('shop', 'kept').remote(7))"
    assert "deployed app shop (version 1) with 2 functions" in system.nodus(
        "deploy", str(APPS / "deployed" / "first.py")
    )
    assert system.python(call).strip() == "first 7"
    assert "deployed app shop (version 2) with 2 functions" in system.nodus(
        "deploy", str(APPS / "deployed" / "second.py")
    )
    # A worker of the first version may still be asked until the pool has been rolled.
    await eventually(lambda: system.python(call).strip() == "second 7", within=90)

    def names() -> set[str]:
        return {one["metadata"]["name"] for one in system.objects("functions", labelSelector="nodus.dev/app=shop")}

    # The one that was pruned goes when its controller has seen to it.
    await eventually(lambda: names() == {"shop-kept", "shop-added"})
    system.delete_app("shop")


@pytest.fixture
def deployed_hello(system: System) -> Iterator[None]:
    """The App of the examples, deployed for the test."""
    system.nodus("deploy", str(ROOT / "examples" / "hello.py"))
    yield
    system.delete_app("hello")


@pytest.mark.usefixtures("deployed_hello")
def test_kubectl_reads_describes_and_explains(system: System) -> None:
    assert "hello-square" in system.kubectl("get", "functions")
    assert "Name:         hello-square" in system.kubectl("describe", "function", "hello-square")
    assert system.kubectl("get", "fn", "hello-square", "-o", "jsonpath={.spec.timeout}") == "60s"
    assert "timeout" in system.kubectl("explain", "function.spec")


@pytest.mark.usefixtures("deployed_hello")
def test_the_manifests_of_the_examples_change_a_function_and_call_it(system: System) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    manifest = (ROOT / "examples" / "function.yaml").read_text().replace('"3.11"', f'"{python}"')
    (system.data_dir / "function.yaml").write_text(manifest)
    system.kubectl("apply", "-f", str(system.data_dir / "function.yaml"))
    live = system.kubectl("get", "fn", "hello-square", "-o", "jsonpath={.spec.scaling.maxWorkers} {.spec.code.blob}")
    assert live.startswith("3 sha256:")
    created = system.kubectl("create", "-f", str(ROOT / "examples" / "call.yaml"), "-o", "name").strip()
    system.kubectl("wait", created, "--for=jsonpath={.status.phase}=Succeeded", "--timeout=110s")


@pytest.mark.usefixtures("deployed_hello")
def test_kubectl_shares_and_scales_a_function_that_the_sdk_deployed(system: System) -> None:
    manifest = system.data_dir / "shared.yaml"
    lines = ["apiVersion: nodus.dev/v1", "kind: Function", "metadata: {name: hello-square}"]
    manifest.write_text("\n".join([*lines, "spec: {scaling: {maxWorkers: 4}, env: [{name: TEAM, value: a}]}"]))
    system.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(manifest))
    managers = system.kubectl("get", "fn", "hello-square", "-o", "jsonpath={.metadata.managedFields[*].manager}")
    assert {"kubectl", "nodus-python"} <= set(managers.split())

    condition = {
        "type": "example.com/Approved",
        "status": "True",
        "reason": "Reviewed",
        "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    added = json.dumps([{"op": "add", "path": "/status/conditions/-", "value": condition}])
    system.kubectl("patch", "fn/hello-square", "--subresource=status", "--type=json", "-p", added)
    # The worker that this starts writes the status many times.
    system.kubectl("scale", "fn/hello-square", "--replicas=1")
    system.kubectl("wait", "fn/hello-square", "--for=jsonpath={.status.workers.ready}=1", "--timeout=110s")
    system.kubectl("wait", "fn/hello-square", "--for=condition=example.com/Approved", "--timeout=60s")
    shown = json.loads(system.kubectl("get", "fn", "hello-square", "--subresource=scale", "-o", "json"))
    assert (shown["spec"], shown["status"]) == ({"replicas": 1}, {"replicas": 1})
    system.kubectl("scale", "fn/hello-square", "--replicas=0")


@pytest.mark.usefixtures("deployed_hello")
async def test_a_class_is_left_when_its_worker_goes(system: System) -> None:
    added = "import nodus; print(nodus.Cls.from_name('hello', 'Counter')().add.remote(5))"
    assert system.python(added).strip() == "105"
    assert "counter closed" not in system.nodus("logs", "function/hello-counter")
    window = json.dumps({"spec": {"scaling": {"scaledownWindow": "1s"}}})
    system.kubectl("patch", "fn/hello-counter", "--type=merge", "-p", window)
    log = ["counter opened, in the worker", "counter closed, in the worker"]
    await eventually(lambda: system.nodus("logs", "function/hello-counter").splitlines() == log, within=120, every=1)


@pytest.mark.usefixtures("deployed_hello")
def test_kubectl_deletes_and_then_finds_nothing(system: System) -> None:
    assert "deleted" in system.kubectl("delete", "function", "hello-square")
    missing = system.run("kubectl", "get", "function", "hello-square", check=False)
    assert 'functions.nodus.dev "hello-square" not found' in missing.stderr


async def test_kubectl_watches_a_call_through_its_phases(system: System) -> None:
    system.nodus("deploy", str(APPS / "slow" / "slow.py"))
    program = (
        "import nodus; c = nodus.Function.from_name('slow', 'nap').spawn(1, 0.1); c.get(timeout=110); print(c.name)"
    )
    listed = system.python(program).strip()
    watching = subprocess.Popen(
        ["kubectl", "get", "functioncalls", "-w", "--output-watch-events"],
        env=system.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        assert watching.stdout is not None
        # What kubectl lists first tells that it watches from there on: nothing of the next call is missed.
        assert any(listed in line.decode() for line in watching.stdout)
        name = system.python(program).strip()
        seen: list[str] = []
        for line in watching.stdout:
            if name in line.decode():
                seen.append(line.decode().split()[0])
            if len(seen) >= 3:
                break
        assert (seen[0], set(seen[1:])) == ("ADDED", {"MODIFIED"})
    finally:
        watching.terminate()
        watching.wait()
        system.delete_app("slow")


@pytest.mark.case("C27")
async def test_a_client_that_vanishes_leaves_nothing_running(system: System) -> None:
    client = subprocess.Popen(
        ["nodus", "run", str(APPS / "forever" / "forever.py")],
        env=system.environment,
        cwd=APPS,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    )
    assert client.stdout is not None
    while b"spawned" not in client.stdout.readline():
        assert client.poll() is None
    # The command may wait for an interpreter of its own; a machine that vanishes takes both along.
    for process in [*psutil.Process(client.pid).children(recursive=True), client]:
        process.kill()
    client.wait()

    def left() -> list[str]:
        kinds = ("apps", "functions", "secrets")
        found = [thing["metadata"]["name"] for kind in kinds for thing in system.objects(kind)]
        return [name for name in found if name.startswith("forever-")]

    assert left()
    await eventually(lambda: not left(), within=120)
    phases = {
        call["status"]["phase"]
        for call in system.objects("functioncalls")
        if call["spec"]["function"].startswith("forever-")
    }
    assert phases == {"Failed"}


def test_the_sdk_says_who_the_user_is(system: System) -> None:
    told = json.loads(system.nodus("whoami", "-o", "json"))
    assert (told["kind"], told["role"], told["projects"]) == ("User", "Owner", ["default"])
