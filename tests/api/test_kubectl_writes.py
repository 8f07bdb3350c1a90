"""How the real kubectl writes: apply in both ways, conflicts, rehearsals, validation, scale, views."""

from __future__ import annotations

import asyncio
import os
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from tests.fixtures.app import APPROVED, FUNCTION, ServedApi
from tests.fixtures.eventually import WITHIN_SECONDS

KUBECTL = Path(sysconfig.get_path("scripts")) / "kubectl"


@dataclass(frozen=True, kw_only=True)
class Told:
    """What a command said."""

    code: int
    out: str
    err: str


@dataclass
class Kubectl:
    """kubectl against the project of the test, in a folder of its own."""

    project: ServedApi
    folder: Path
    files: int = field(default=0)

    async def run(self, *arguments: str, **environment: str) -> Told:
        server = self.project.url.replace("http://", f"http://x:{self.project.key}@")
        process = await asyncio.create_subprocess_exec(
            str(KUBECTL), f"--server={server}", f"--namespace={self.project.project_name}", *arguments,
            env={"HOME": str(self.folder), "PATH": os.environ["PATH"], "KUBECONFIG": str(self.folder / "none"),
                 **environment},
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        try:
            out, err = await asyncio.wait_for(process.communicate(), WITHIN_SECONDS)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Told(code=process.returncode, out=out.decode(), err=err.decode())

    async def __call__(self, *arguments: str) -> str:
        """Run a command that must succeed."""
        told = await self.run(*arguments)
        assert told.code == 0, f"{arguments}: {told.out}{told.err}"
        return told.out

    def manifest(self, spec: dict[str, Any] | None = None, **labels: str) -> str:
        """A file with a Function."""
        self.files += 1
        path = self.folder / f"{self.files}.yaml"
        document = {
            "apiVersion": "nodus.dev/v1",
            "kind": "Function",
            "metadata": {"name": "f", **({"labels": labels} if labels else {})},
            "spec": {**FUNCTION, **(spec or {})},
        }
        path.write_text(yaml.safe_dump(document))
        return str(path)

    async def managers(self) -> list[tuple[str, str, str]]:
        shown = orjson.loads(await self("get", "function", "f", "-o", "json", "--show-managed-fields"))
        return [
            (entry["manager"], entry["operation"], entry.get("subresource", ""))
            for entry in shown["metadata"].get("managedFields", [])
        ]


@pytest.fixture
def kubectl(project: ServedApi, tmp_path: Path) -> Kubectl:
    return Kubectl(project, tmp_path)


async def test_apply_creates_changes_and_then_leaves_alone(kubectl: Kubectl) -> None:
    file = kubectl.manifest({"timeout": "7s"})
    assert "created" in await kubectl("apply", "-f", file)
    assert await kubectl.managers() == [("kubectl-client-side-apply", "Update", "")]
    assert "unchanged" in await kubectl("apply", "-f", file)
    assert "configured" in await kubectl("apply", "-f", kubectl.manifest())
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.timeout}") == "300s"


async def test_managed_fields_are_shown_when_asked_for(kubectl: Kubectl) -> None:
    await kubectl("apply", "--server-side", "-f", kubectl.manifest())
    assert "managedFields" not in await kubectl("get", "fn", "f", "-o", "yaml")
    shown = yaml.safe_load(await kubectl("get", "fn", "f", "-o", "yaml", "--show-managed-fields"))
    [entry] = shown["metadata"]["managedFields"]
    assert (entry["manager"], entry["operation"]) == ("kubectl", "Apply")
    assert "f:timeout" not in entry["fieldsV1"]["f:spec"]


async def test_server_side_appliers_conflict_until_one_takes_over(kubectl: Kubectl) -> None:
    file = kubectl.manifest({"timeout": "7s"})
    assert "serverside-applied" in await kubectl("apply", "--server-side", "-f", file)
    other = kubectl.manifest({"timeout": "8s"}, team="a")
    refused = await kubectl.run("apply", "--server-side", "--field-manager=other", "-f", other)
    assert refused.code == 1
    assert 'Apply failed with 1 conflict: conflict with "kubectl": .spec.timeout' in refused.err
    assert "--force-conflicts" in refused.err
    await kubectl("apply", "--server-side", "--force-conflicts", "--field-manager=other", "-f", other)
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.timeout}") == "8s"
    # Without the label it goes: only this manager owned it.
    mine = kubectl.manifest({"timeout": "8s"})
    await kubectl("apply", "--server-side", "--field-manager=other", "-f", mine)
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.metadata.labels.team}") == ""


async def test_an_object_of_client_side_apply_moves_to_server_side_apply(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", kubectl.manifest({"timeout": "7s"}, team="a"))
    told = await kubectl.run("apply", "--server-side", "-f", kubectl.manifest({"timeout": "7s"}, team="a"))
    assert told.code == 0, told.err
    assert ("kubectl", "Apply", "") in await kubectl.managers()
    assert ("kubectl-client-side-apply", "Update", "") not in await kubectl.managers()
    # What the manifest no longer has goes, although client-side apply had set it.
    await kubectl("apply", "--server-side", "-f", kubectl.manifest())
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.timeout}{.metadata.labels.team}") == "300s"
    version = await kubectl("get", "fn", "f", "-o", "jsonpath={.metadata.resourceVersion}")
    await kubectl("apply", "--server-side", "-f", kubectl.manifest())
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.metadata.resourceVersion}") == version


async def test_a_secret_moves_to_server_side_apply_too(kubectl: Kubectl) -> None:
    def manifest(**values: str) -> str:
        path = kubectl.folder / "secret.yaml"
        head = {"apiVersion": "nodus.dev/v1", "kind": "Secret", "metadata": {"name": "s"}}
        path.write_text(yaml.safe_dump({**head, "spec": {"stringData": values}}))
        return str(path)

    await kubectl("apply", "-f", manifest(A="hidden-one", B="hidden-two", C="hidden-three"))
    await kubectl("apply", "-f", manifest(A="hidden-one", B="hidden-two"))
    assert await kubectl("get", "secret", "s", "-o", "jsonpath={.status.keys}") == '["A","B"]'
    told = await kubectl.run("apply", "--server-side", "-f", manifest(A="hidden-one", B="hidden-two"))
    assert told.code == 0, told.err
    await kubectl("apply", "--server-side", "-f", manifest(A="hidden-one"))
    shown = await kubectl("get", "secret", "s", "-o", "yaml", "--show-managed-fields")
    assert yaml.safe_load(shown)["status"]["keys"] == ["A"]
    assert "hidden" not in shown


async def test_diff_shows_what_would_change_and_changes_nothing(kubectl: Kubectl) -> None:
    await kubectl("apply", "-f", kubectl.manifest())
    before = await kubectl.project.row_count()
    for more in ((), ("--server-side",)):
        told = await kubectl.run("diff", *more, "-f", kubectl.manifest({"timeout": "7s"}))
        assert told.code == 1, told.err
        assert "+  timeout: 7s" in told.out
        same = await kubectl.run("diff", *more, "-f", kubectl.manifest())
        assert (same.code, same.out) == (0, ""), same.err
    assert await kubectl.project.row_count() == before


async def test_every_verb_can_be_rehearsed_on_the_server(kubectl: Kubectl) -> None:
    dry = "--dry-run=server"
    before = await kubectl.project.row_count()
    for command in ("create", "apply", "apply --server-side"):
        assert "(server dry run)" in await kubectl(*command.split(), dry, "-f", kubectl.manifest())
    assert await kubectl.project.row_count() == before
    await kubectl("create", "-f", kubectl.manifest())
    before = await kubectl.project.row_count()
    for arguments in (
        ("apply", "-f", kubectl.manifest({"timeout": "7s"})),
        ("replace", "-f", kubectl.manifest({"timeout": "7s"})),
        ("patch", "fn/f", "--type=merge", "-p", '{"spec":{"timeout":"7s"}}'),
        ("label", "fn/f", "team=a"),
        ("annotate", "fn/f", "team=a"),
        ("scale", "fn/f", "--replicas=2"),
        ("delete", "fn/f"),
    ):
        await kubectl(*arguments, dry)
    assert await kubectl.project.row_count() == before


async def test_unknown_and_repeated_fields_are_refused_warned_about_or_ignored(kubectl: Kubectl) -> None:
    file = Path(kubectl.manifest({"tmieout": "7s"}))
    file.write_text(file.read_text() + "  timeout: 7s\n  timeout: 8s\n")
    refused = await kubectl.run("create", "--validate=strict", "-f", str(file))
    assert refused.code == 1
    assert 'strict decoding error: unknown field "spec.tmieout"' in refused.err
    warned = await kubectl.run("create", "--validate=warn", "-f", str(file))
    assert warned.code == 0, warned.err
    assert 'Warning: unknown field "spec.tmieout"' in warned.err
    ignored = await kubectl.run("replace", "--validate=ignore", "-f", str(file))
    assert (ignored.code, ignored.err) == (0, "")
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.timeout}") == "8s"


async def test_scale_sets_the_least_number_of_workers(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", kubectl.manifest())
    assert "scaled" in await kubectl("scale", "fn/f", "--replicas=3")
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.scaling.minWorkers}") == "3"
    assert "scaled" in await kubectl("scale", "fn/f", "--current-replicas=3", "--replicas=1")
    wrong = await kubectl.run("scale", "fn/f", "--current-replicas=7", "--replicas=2")
    assert wrong.code == 1
    shown = orjson.loads(await kubectl("get", "fn", "f", "--subresource=scale", "-o", "json"))
    assert shown["spec"] == {"replicas": 1}
    too_many = await kubectl.run("scale", "fn/f", "--replicas=11")
    assert "spec.scaling.minWorkers" in too_many.err


async def test_patch_replace_and_label_record_their_managers(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", kubectl.manifest())
    await kubectl("patch", "fn/f", "--type=merge", "-p", '{"spec":{"timeout":"7s"}}')
    await kubectl("patch", "fn/f", "--type=json", "-p", '[{"op":"replace","path":"/spec/timeout","value":"8s"}]')
    await kubectl("label", "fn/f", "team=a")
    assert {name for name, _, _ in await kubectl.managers()} == {"kubectl-create", "kubectl-patch", "kubectl-label"}
    assert "replaced" in await kubectl("replace", "-f", kubectl.manifest({"timeout": "9s"}))
    assert "kubectl-replace" in {name for name, _, _ in await kubectl.managers()}


async def test_edit_changes_what_the_editor_changed(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", kubectl.manifest())
    edited = await kubectl.run("edit", "fn/f", KUBE_EDITOR="sed -i s/300s/9s/")
    assert edited.code == 0, edited.err
    assert await kubectl("get", "fn", "f", "-o", "jsonpath={.spec.timeout}") == "9s"
    assert ("kubectl-edit", "Update", "") in await kubectl.managers()
    wrong = await kubectl.run("edit", "fn/f", KUBE_EDITOR="sed -i s/timeout/tmieout/")
    assert 'unknown field "spec.tmieout"' in wrong.err


async def test_a_condition_of_ones_own_is_set_through_the_status_and_waited_for(kubectl: Kubectl) -> None:
    await kubectl("create", "-f", kubectl.manifest())
    patch = orjson.dumps({"status": {"conditions": [APPROVED]}}).decode()
    await kubectl("patch", "fn/f", "--subresource=status", "--type=merge", "-p", patch)
    await kubectl("wait", "fn/f", f"--for=condition={APPROVED['type']}", f"--timeout={WITHIN_SECONDS:.0f}s")
    assert ("kubectl-patch", "Update", "status") in await kubectl.managers()
    refused = await kubectl.run(
        "patch", "fn/f", "--subresource=status", "--type=merge", "-p", '{"status":{"phase":"Failed"}}'
    )
    assert "status.phase" in refused.err
