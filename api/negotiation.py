"""Media types: which form of an answer a client accepts, and how a request body is written.

Kubernetes clients ask for tables and metadata-only lists through parameters of `Accept`; several send no `Content-Type`
at all. `api/resources.py` asks here what to render and `controlplane/machinery/table.py` renders it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import lru_cache

from controlplane.errors import ApiError, Reason


class Form(Enum):
    """The forms in which an object or a list can be answered."""

    OBJECT = "object"
    TABLE = "table"
    METADATA = "metadata"


@dataclass(frozen=True, slots=True)
class Accepted:
    """What the client asked for: the form, and for tables and metadata the version of `meta.k8s.io` to echo."""

    form: Form
    version: str = "v1"


class BodyType(Enum):
    """How a request body is written."""

    JSON = "application/json"
    YAML = "application/yaml"
    MERGE_PATCH = "application/merge-patch+json"
    JSON_PATCH = "application/json-patch+json"
    APPLY = "application/apply-patch+yaml"
    PROTOBUF = "application/vnd.kubernetes.protobuf"


_META_GROUP = "meta.k8s.io"
_META_VERSIONS = frozenset({"v1", "v1beta1"})
_FORMS = {
    "Table": Form.TABLE,
    "PartialObjectMetadata": Form.METADATA,
    "PartialObjectMetadataList": Form.METADATA,
}
_JSON_RANGES = frozenset({"application/json", "application/*", "*/*"})
_BODY_TYPES = {
    "": BodyType.JSON,
    "application/json": BodyType.JSON,
    "application/yaml": BodyType.YAML,
    "application/x-yaml": BodyType.YAML,
    "text/yaml": BodyType.YAML,
}
_REVIEW_TYPES = {**_BODY_TYPES, "application/vnd.kubernetes.protobuf": BodyType.PROTOBUF}
_PATCH_TYPES = {
    "application/merge-patch+json": BodyType.MERGE_PATCH,
    "application/json-patch+json": BodyType.JSON_PATCH,
    "application/apply-patch+yaml": BodyType.APPLY,
}


@lru_cache(maxsize=256)
def negotiate(accept: str) -> Accepted:
    """The first form of `accept` that can be served, best quality first; 406 when there is none (R-NEG-3)."""
    if not accept.strip():
        return Accepted(Form.OBJECT)
    ranges = [_media_range(part) for part in accept.split(",") if part.strip()]
    ranges.sort(key=lambda item: -item[2])
    for media_type, parameters, quality in ranges:
        if media_type not in _JSON_RANGES or quality <= 0:
            continue
        asked = parameters.get("as")
        if asked is None:
            return Accepted(Form.OBJECT)
        form, version = _FORMS.get(asked), parameters.get("v", "v1")
        if form and parameters.get("g", _META_GROUP) == _META_GROUP and version in _META_VERSIONS:
            return Accepted(form, version)
    raise ApiError(
        Reason.NOT_ACCEPTABLE,
        f'none of the media types of "Accept: {accept}" can be served; only application/json, also with as=Table or '
        "as=PartialObjectMetadata, is",
    )


@lru_cache(maxsize=64)
def body_type(content_type: str) -> BodyType:
    """How the body of a POST or PUT is written; 415 for what nobody here reads. A missing type means JSON."""
    return _one_of(_BODY_TYPES, content_type)


@lru_cache(maxsize=64)
def review_type(content_type: str) -> BodyType:
    """How the body of a review is written: as any other, or as protobuf, which Go clients use for built-in kinds."""
    return _one_of(_REVIEW_TYPES, content_type)


@lru_cache(maxsize=64)
def patch_type(content_type: str) -> BodyType:
    """Which patch a PATCH body is; 415 lists the accepted types, which is how clients learn to use another."""
    return _one_of(_PATCH_TYPES, content_type)


def _one_of(accepted: dict[str, BodyType], content_type: str) -> BodyType:
    found = accepted.get(_bare(content_type))
    if found is None:
        listed = ", ".join(name for name in accepted if name)
        raise ApiError(
            Reason.UNSUPPORTED_MEDIA_TYPE,
            f'the body of the request was in an unknown format: "{content_type}"; '
            f"accepted media types include: {listed}",
            fix=f"Send one of: {listed}.",
        )
    return found


def _bare(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _media_range(text: str) -> tuple[str, dict[str, str], float]:
    """One item of Accept as (media type, parameters, quality)."""
    media_type, *rest = text.split(";")
    parameters = {}
    for part in rest:
        name, _, value = part.partition("=")
        parameters[name.strip().lower()] = value.strip().strip('"')
    try:
        quality = float(parameters.get("q", "1"))
    except ValueError:
        quality = 1.0
    return media_type.strip().lower(), parameters, quality
