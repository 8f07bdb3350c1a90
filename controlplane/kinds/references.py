"""The grammar of names, digests and paths that specs refer to things by, as annotated types."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, StringConstraints

from controlplane.machinery.grammar import (
    BLOB_PATTERN,
    DIGEST_PATTERN,
    DOTTED_PATTERN,
    ENV_NAME_PATTERN,
    IDENTIFIER_PATTERN,
    IMAGE_PATTERN,
    NAME_PATTERN,
)
from controlplane.machinery.problems import problem

BLOB_PREFIX = "sha256:"
_TEXT_MAX: Final = 4_096

ObjectName = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
"""The name of an object of the same project."""

BlobReference = Annotated[str, StringConstraints(pattern=BLOB_PATTERN)]
"""`sha256:` and the digest of a blob of the same project."""

HexDigest = Annotated[str, StringConstraints(pattern=DIGEST_PATTERN)]
"""A SHA-256 digest in lower case hex."""

Identifier = Annotated[str, StringConstraints(pattern=IDENTIFIER_PATTERN, max_length=255)]
"""A Python name."""

DottedName = Annotated[str, StringConstraints(pattern=DOTTED_PATTERN, max_length=1_024)]
"""Python names joined by dots."""

EnvName = Annotated[str, StringConstraints(pattern=ENV_NAME_PATTERN, max_length=255)]
"""The name of an environment variable."""

PythonVersion = Literal["3.10", "3.11", "3.12", "3.13"]
"""A minor version of CPython that workers exist for, 3.10 to 3.13."""

ImageReference = Annotated[str, StringConstraints(pattern=IMAGE_PATTERN)]
"""An image of a registry or of the catalog (`nodus/python:3.12`)."""

Text = Annotated[str, StringConstraints(max_length=_TEXT_MAX)]
"""Free text of at most 4,096 characters: an argument, a path, a command."""

ShortText = Annotated[str, StringConstraints(min_length=1, max_length=253)]
"""A word or a name that is not an object of ours."""


def _absolute(path: str) -> str:
    parts = path.split("/")
    if not path.startswith("/") or ".." in parts or "\0" in path:
        raise problem('must be an absolute path without ".."')
    return path


AbsolutePath = Annotated[str, StringConstraints(max_length=_TEXT_MAX), AfterValidator(_absolute)]
"""A path from the root of the container."""


def digest_of(blob: str) -> str:
    """The 64 hex digits of a blob reference."""
    return blob.removeprefix(BLOB_PREFIX)


def is_blob(text: str) -> bool:
    """Whether a text is a blob reference, where something else may stand as well."""
    return re.fullmatch(BLOB_PATTERN, text) is not None
