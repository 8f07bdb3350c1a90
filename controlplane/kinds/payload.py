"""Payloads: the arguments and results of calls, carried in the object or as a blob."""

from __future__ import annotations

import binascii
from typing import Annotated, Literal

import orjson
from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from controlplane.kinds.references import BlobReference, HexDigest
from controlplane.machinery.model import ApiModel
from controlplane.machinery.problems import FORBIDDEN, REQUIRED, TOO_LONG, problem

INLINE_BYTES_MAX = 65_536
"""Decoded size of an inline payload; the protocol's limit."""
_INLINE_CHARACTERS_MAX = (INLINE_BYTES_MAX + 2) // 3 * 4


def _inline(text: str, info: ValidationInfo) -> str:
    """Refuses what is empty, is not base64, is too long, or is not the JSON it is said to be."""
    if not text:
        raise problem("must not be empty", REQUIRED)
    if len(text) > _INLINE_CHARACTERS_MAX:
        raise _too_long()
    try:
        content = binascii.a2b_base64(text, strict_mode=True)
    except (binascii.Error, ValueError):
        raise problem("must be base64") from None
    if len(content) > INLINE_BYTES_MAX:
        raise _too_long()
    if info.data.get("encoding") == "JSON":
        _check_json(content)
    return text


class Payload(ApiModel):
    """An argument or a result: up to 65,536 bytes in the object, or a blob. The server never decodes a pickle."""

    encoding: Literal["Pickle", "JSON"] = Field(
        default="Pickle", description="How the bytes are to be read: Pickle (the SDK) or JSON."
    )
    inline: Annotated[str, AfterValidator(_inline)] | None = Field(
        default=None,
        json_schema_extra={"format": "byte", "maxLength": _INLINE_CHARACTERS_MAX},
        description="The payload in base64, at most 65,536 bytes when decoded. Exactly one of inline and blob is set.",
    )
    blob: BlobReference | None = Field(
        default=None, validate_default=True, description="The payload as a blob of the project."
    )
    sha256: HexDigest | None = Field(default=None, description="Digest of the decoded payload; results have it.")

    @field_validator("blob")
    @classmethod
    def _is_alone(cls, blob: str | None, info: ValidationInfo) -> str | None:
        if "inline" not in info.data:
            return blob  # `inline` has a problem of its own.
        inline = info.data["inline"]
        if blob is None and inline is None:
            raise problem("must be specified when `inline` is not set", REQUIRED)
        if blob is not None and inline is not None:
            raise problem("may not be specified when `inline` is set", FORBIDDEN)
        return blob


def _check_json(content: bytes) -> None:
    """What the worker does with a JSON payload fails for anything else, after a worker was started for it."""
    try:
        arguments = orjson.loads(content)
    except orjson.JSONDecodeError:
        arguments = None
    if (
        not isinstance(arguments, dict)
        or not isinstance(arguments.get("args") or [], list)
        or not isinstance(arguments.get("kwargs") or {}, dict)
    ):
        raise problem("must be the base64 of a JSON object with `args`, a list, and `kwargs`, an object")


def _too_long() -> Exception:
    return problem(f"must be at most {INLINE_BYTES_MAX} bytes when decoded; upload larger payloads as a blob", TOO_LONG)
