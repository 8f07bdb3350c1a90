"""The Image kind: an environment that Functions can name. The fields are in `image_models.py`.

Without a builder an Image can only name a catalog image, so it is ready at once; build steps are refused.
"""

from __future__ import annotations

from collections.abc import Callable

from controlplane.errors import Cause, invalid
from controlplane.kinds.catalog import CATALOG_ADVICE, is_offered, python_of
from controlplane.kinds.image_models import ImageBuildStatus, ImageSpec
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import (
    ALL_VERBS,
    AdmissionContext,
    Column,
    Document,
    Kind,
    Scope,
    Unoffered,
)
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, PHASE_COLUMN, text_at


class ImageStrategy:
    """What Images add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        _check_python(document)
        document["status"] = {**_ready(document, 1), "conditions": []}
        _set_ready(document, context, 1)

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        _check_python(new)
        if new["spec"] != old["spec"]:
            generation = new["metadata"]["generation"]
            new["status"] = {**new["status"], **_ready(new, generation)}
            _set_ready(new, context, generation)


def _ready(document: Document, generation: int) -> Document:
    """The status of an image that needs no build."""
    base = document["spec"]["base"]
    python = python_of(base) or document["spec"].get("python")
    status = {"phase": "Ready", "observedGeneration": generation, "reference": base}
    return {**status, "python": python} if python else status


def _set_ready(document: Document, context: AdmissionContext, generation: int) -> None:
    condition = Condition("Ready", "True", "Catalog", "the image is part of the catalog", generation)
    status = document["status"]
    status["conditions"] = with_condition(status["conditions"], condition, context.now)


def _check_python(document: Document) -> None:
    """`Invalid` when `spec.python` is not the Python of a catalog base."""
    spec = document["spec"]
    python = python_of(spec["base"])
    if "python" in spec and python not in (None, spec["python"]):
        cause = Cause("spec.python", f'must be the Python of `spec.base`, which is "{python}"')
        raise invalid(IMAGE.plural, document["metadata"].get("name", ""), [cause])


def _has(field: str) -> Callable[[Document], bool]:
    return lambda spec: bool(spec.get(field))


_NO_BUILDER = f"This deployment has no image builder. {CATALOG_ADVICE}"

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
    unoffered=(
        Unoffered("spec.steps", _has("steps"), _NO_BUILDER),
        Unoffered("spec.dockerfile", _has("dockerfile"), _NO_BUILDER),
        Unoffered("spec.fromSandbox", _has("fromSandbox"), _NO_BUILDER),
        Unoffered("spec.base", lambda spec: "base" in spec and not is_offered(spec["base"]), CATALOG_ADVICE),
        Unoffered("spec.imagePullSecrets", _has("imagePullSecrets"), "Leave it out; images of the catalog are public."),
        Unoffered("spec.buildSecrets", _has("buildSecrets"), _NO_BUILDER),
        Unoffered("spec.tags", _has("tags"), _NO_BUILDER),
        Unoffered("spec.platform", lambda spec: spec["platform"] != "linux/amd64", "Use linux/amd64 or leave it out."),
    ),
    strategy=ImageStrategy(),
    scope_resource="images",
)
