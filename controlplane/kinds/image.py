"""The Image kind: an environment that Functions can name. The fields are in `image_models.py`.

An Image without steps names an image of the catalog and is ready at once. One with steps is built by a node
(`activities/build_image.py`); it is Pending until then, and what comes of it is written by `controlplane/images`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import PurePosixPath

from controlplane.errors import Cause, invalid
from controlplane.kinds.catalog import CATALOG_ADVICE, is_offered, python_of
from controlplane.kinds.image_models import ImageBuildStatus, ImageSpec
from controlplane.kinds.references import digest_of, is_blob
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import (
    ALL_VERBS,
    AdmissionContext,
    Column,
    Document,
    Kind,
    Scope,
    Subresource,
    Unoffered,
)
from controlplane.machinery.problems import NOT_FOUND, REQUIRED
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, PHASE_COLUMN, text_at

SYSTEM_FOLDERS = frozenset(
    {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "nodus", "proc", "run", "sbin", "sys", "tmp"}
    | {"usr", "var"}
)
"""Top folders of a worker's sandbox that are the system's or the server's own; an image fills any other."""

REBUILD_REQUEST = "nodus.dev/restart-requested-at"
"""What `nodus request restart image/NAME` sets: build again, although nothing changed."""


class ImageStrategy:
    """What Images add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        await _check(document, context)
        document["status"] = _initial(document, 1, context.now)

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        asked = new["metadata"].get("annotations", {}).get(REBUILD_REQUEST)
        again = asked and asked != old["metadata"].get("annotations", {}).get(REBUILD_REQUEST)
        if new["spec"] != old["spec"]:
            await _check(new, context)
            new["status"] = _initial(new, new["metadata"]["generation"], context.now)
        elif again and _needs_build(new["spec"]):
            new["status"] = with_build_wanted(
                new, new["metadata"]["generation"], context.now, "another build was asked for"
            )


def with_build_wanted(document: Document, generation: int, now: datetime, why: str) -> Document:
    """The status of an Image that is to be built; what an earlier build came to is forgotten."""
    spec = document["spec"]
    condition = Condition("Ready", "False", "Pending", why, generation)
    conditions = document.get("status", {}).get("conditions", [])
    return {
        "phase": "Pending",
        "observedGeneration": generation,
        "python": python_of(spec["base"]) or spec["python"],
        "progress": {"stage": "Queued"},
        "conditions": with_condition(conditions, condition, now),
    }


def _initial(document: Document, generation: int, now: datetime) -> Document:
    """The status of a new spec: one without steps is ready, one with steps is to be built."""
    if _needs_build(document["spec"]):
        return with_build_wanted(document, generation, now, "the image is to be built")
    base = document["spec"]["base"]
    python = python_of(base) or document["spec"].get("python")
    condition = Condition("Ready", "True", "Catalog", "the image is part of the catalog", generation)
    conditions = document.get("status", {}).get("conditions", [])
    status: Document = {"phase": "Ready", "observedGeneration": generation, "reference": base}
    status["conditions"] = with_condition(conditions, condition, now)
    return {**status, "python": python} if python else status


def _needs_build(spec: Document) -> bool:
    return bool(spec.get("steps"))


async def _check(document: Document, context: AdmissionContext) -> None:
    """`Invalid` for a Python that is not the base's or not named at all, and for blobs that nobody uploaded."""
    spec = document["spec"]
    python = python_of(spec["base"])
    causes = []
    if "python" in spec and python not in (None, spec["python"]):
        causes.append(Cause("spec.python", f'must be the Python of `spec.base`, which is "{python}"'))
    if _needs_build(spec) and python is None and "python" not in spec:
        causes.append(Cause("spec.python", "must be specified, because `spec.base` names no version", REQUIRED))
    for field, reference in blobs_of(spec):
        if not await context.lookup.blob_exists(digest_of(reference)):
            told = f'must name a blob that was uploaded to the project; "{reference}" does not exist'
            causes.append(Cause(field, told, NOT_FOUND))
    if causes:
        raise invalid(IMAGE.plural, document["metadata"].get("name", ""), causes)


def blobs_of(spec: Document) -> Iterator[tuple[str, str]]:
    """(field, `sha256:` reference) of every blob that the steps read."""
    for index, step in enumerate(spec.get("steps") or ()):
        if "copy" in step:
            yield f"spec.steps[{index}].copy.blob", step["copy"]["blob"]
        elif "uvSync" in step:
            yield f"spec.steps[{index}].uvSync.project", step["uvSync"]["project"]


def _some_step(is_used: Callable[[Document], bool]) -> Callable[[Document], bool]:
    return lambda spec: any(is_used(step) for step in spec.get("steps") or ())


def _fills_a_system_folder(step: Document) -> bool:
    place = step.get("workdir") or step.get("copy", {}).get("dest")
    if place is None:
        return False
    parts = PurePosixPath(place).parts
    return len(parts) < 2 or ".." in parts or parts[1] in SYSTEM_FOLDERS


def _has(field: str) -> Callable[[Document], bool]:
    return lambda spec: bool(spec.get(field))


_NO_BUILDER = f"Images are built from steps on a base of the catalog here. {CATALOG_ADVICE}"

_A_BLOB = f"sha256:{'0' * 64}"

IMAGE = Kind(
    kind="Image",
    plural="images",
    uid_prefix="img",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="An environment for workers: a base image and what is installed on it.",
    spec=ImageSpec,
    status=ImageBuildStatus,
    columns=(
        NAME_COLUMN,
        PHASE_COLUMN,
        Column("Base", text_at("spec.base"), "The image it builds on."),
        Column("Digest", text_at("status.digest"), "What it was pinned to."),
        AGE_COLUMN,
    ),
    short_names=("img",),
    selectable_fields=("status.phase", "status.reason"),
    subresources=(Subresource("log", ("get",), "What the build printed."),),
    unoffered=(
        Unoffered(
            "spec.steps.aptInstall",
            _some_step(lambda step: "aptInstall" in step),
            "Install Python packages that bring their libraries along; workers see the Debian packages of the host.",
        ),
        Unoffered(
            "spec.steps.uvSync.project",
            _some_step(lambda step: not is_blob(step.get("uvSync", {}).get("project", _A_BLOB))),
            "Upload the project as a blob, as `Image.uv_sync` of the SDK does.",
        ),
        Unoffered(
            "spec.steps.copy.dest",
            _some_step(_fills_a_system_folder),
            "Copy and work below /workspace, /opt, /data or another top folder that is not the system's.",
        ),
        Unoffered("spec.dockerfile", _has("dockerfile"), _NO_BUILDER),
        Unoffered("spec.fromSandbox", _has("fromSandbox"), _NO_BUILDER),
        Unoffered("spec.base", lambda spec: "base" in spec and not is_offered(spec["base"]), CATALOG_ADVICE),
        Unoffered("spec.imagePullSecrets", _has("imagePullSecrets"), "Leave it out; images of the catalog are public."),
        Unoffered("spec.buildSecrets", _has("buildSecrets"), "Leave them out; steps of a build get no Secrets."),
        Unoffered("spec.tags", _has("tags"), "Leave them out; an Image is named by its object."),
        Unoffered("spec.platform", lambda spec: spec["platform"] != "linux/amd64", "Use linux/amd64 or leave it out."),
    ),
    strategy=ImageStrategy(),
    scope_resource="images",
)
