"""The Secret kind: values that workers get as environment variables, written once and never shown.

A stored Secret holds no values: `take_values` takes them out of the document inside the write, and whoever seals them
(`controlplane/secrets/`) keeps them as a version and notes it in `status`. A dry-run takes them out as well.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from controlplane.errors import Cause, invalid
from controlplane.kinds.membership import join_app
from controlplane.machinery.conditions import ObjectCondition
from controlplane.machinery.grammar import DATA_KEY_PATTERN
from controlplane.machinery.kind import ALL_VERBS, AdmissionContext, Column, Document, Kind, Scope
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import REQUIRED, TOO_LONG, problem
from controlplane.machinery.table import AGE_COLUMN, NAME_COLUMN, text_at

VALUES_BYTES_MAX = 1 << 20
"""All keys and values of a version."""
KEYS_MAX = 256
VERSIONS_SHOWN_MAX = 10
REGISTRY_KEYS = ("password", "server", "username")

SecretKey = Annotated[str, StringConstraints(pattern=DATA_KEY_PATTERN)]


def _is_base64(text: str) -> str:
    try:
        binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise problem("must be base64") from None
    return text


class SecretSpec(ApiModel):
    """What a client writes. Responses carry neither `data` nor `stringData`."""

    type: Literal["Opaque", "Registry"] = Field(default="Opaque", description="What it is for; cannot change.")
    data: dict[SecretKey, Annotated[str, AfterValidator(_is_base64)]] | None = Field(
        default=None, max_length=KEYS_MAX, description="Values in base64, by key. Write only."
    )
    string_data: dict[SecretKey, str] | None = Field(
        default=None,
        max_length=KEYS_MAX,
        description="Values as text, by key; they win over those of `data`. Write only.",
    )


class SecretVersion(ApiModel):
    """One version of a Secret's values."""

    version: int = Field(description="Its number, counted from 1.")
    create_time: str = Field(description="When it was written.")
    created_by: str | None = Field(default=None, description="Who wrote it.")
    keys: list[str] | None = Field(default=None, description="Its keys.")


class SecretStatus(ApiModel):
    """What may be known about a Secret without knowing its values."""

    phase: str | None = Field(
        default=None, description="Ready, Failed when the values could not be sealed, or Terminating."
    )
    reason: str | None = Field(default=None, description="Why it failed.")
    conditions: list[ObjectCondition] | None = Field(default=None, description="Ready, while it waits for its delete.")
    keys: list[str] | None = Field(default=None, description="Keys of the current version.")
    version: int | None = Field(default=None, description="The current version; new workers get it.")
    versions: list[SecretVersion] | None = Field(default=None, description="The last ten versions, newest first.")
    last_used_time: str | None = Field(default=None, description="When a worker last got it.")


def take_values(document: Document) -> dict[str, bytes] | None:
    """Remove `data` and `stringData` from an admitted Secret and return their values by key; None if it had neither.

    An empty map is not None: it asks for a version without keys. The document is changed in place, so its spec must be
    the caller's own copy.
    """
    spec = document["spec"]
    if "data" not in spec and "stringData" not in spec:
        return None
    values = _values(spec)
    spec.pop("data", None)
    spec.pop("stringData", None)
    return values


def values_bytes(values: Mapping[str, bytes]) -> int:
    """What counts towards VALUES_BYTES_MAX: all keys and values."""
    return sum(len(key) + len(value) for key, value in values.items())


def _values(spec: Document) -> dict[str, bytes]:
    values = {key: base64.b64decode(text) for key, text in spec.get("data", {}).items()}
    values.update((key, text.encode()) for key, text in spec.get("stringData", {}).items())
    return values


def _check_size(document: Document) -> None:
    if values_bytes(_values(document["spec"])) > VALUES_BYTES_MAX:
        cause = Cause("spec.data", f"must be at most {VALUES_BYTES_MAX} bytes in all, with `stringData`", TOO_LONG)
        raise invalid(SECRET.plural, document["metadata"].get("name", ""), [cause])


class SecretStrategy:
    """What Secrets add to the generic verbs."""

    async def prepare_create(self, document: Document, context: AdmissionContext) -> None:
        spec = document["spec"]
        keys = {*spec.get("data", {}), *spec.get("stringData", {})}
        missing = [key for key in REGISTRY_KEYS if key not in keys] if spec["type"] == "Registry" else []
        if missing:
            causes = [
                Cause(f"spec.stringData.{key}", "must be specified for type Registry", REQUIRED) for key in missing
            ]
            raise invalid(SECRET.plural, document["metadata"].get("name", ""), causes)
        _check_size(document)
        await join_app(document, context)
        document["status"] = {"phase": "Ready", "keys": [], "version": 0, "versions": []}

    async def prepare_update(self, old: Document, new: Document, context: AdmissionContext) -> None:
        _check_size(new)
        await join_app(new, context)


SECRET = Kind(
    kind="Secret",
    plural="secrets",
    uid_prefix="sec",
    scope=Scope.PROJECT,
    verbs=ALL_VERBS,
    description="Values for workers that are written once and never shown again.",
    spec=SecretSpec,
    status=SecretStatus,
    columns=(
        NAME_COLUMN,
        Column("Type", text_at("spec.type"), "What it is for."),
        Column("Version", text_at("status.version", 0), "Its current version.", type="integer"),
        Column("Keys", text_at("status.keys"), "Keys of the current version."),
        AGE_COLUMN,
    ),
    short_names=("sec",),
    selectable_fields=("spec.type", "status.phase", "status.reason"),
    immutable_fields=("spec.type",),
    strategy=SecretStrategy(),
    scope_resource="secrets",
)
