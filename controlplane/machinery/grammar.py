"""The regular expressions of names and references, each with the sentence that tells a person what it asks for."""

from __future__ import annotations

from collections.abc import Mapping

NAME_PATTERN = r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$"
LABEL_VALUE_PATTERN = r"^[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
BLOB_PATTERN = r"^sha256:[0-9a-f]{64}$"
DIGEST_PATTERN = r"^[0-9a-f]{64}$"
IDENTIFIER_PATTERN = r"^[A-Za-z_]\w*$"
DOTTED_PATTERN = r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*$"
ENV_NAME_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]*$"
DATA_KEY_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
IMAGE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@-]{0,511}$"
TAG_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$"
HOST_PATTERN = r"^(\*\.)?[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?)*$"

SENTENCES: Mapping[str, str] = {
    NAME_PATTERN: "must be at most 63 lower case letters, digits or '-', starting and ending with a letter or digit",
    LABEL_VALUE_PATTERN: (
        "must be at most 63 letters, digits, '-', '_' or '.', starting and ending with a letter or digit"
    ),
    BLOB_PATTERN: 'must be "sha256:" and 64 lower case hex digits',
    DIGEST_PATTERN: "must be 64 lower case hex digits",
    IDENTIFIER_PATTERN: "must be a Python name",
    DOTTED_PATTERN: "must be Python names joined by dots",
    ENV_NAME_PATTERN: "must be letters, digits or '_', and must not start with a digit",
    DATA_KEY_PATTERN: "must be at most 128 letters, digits or '_', and must not start with a digit",
    IMAGE_PATTERN: 'must be an image reference such as "nodus/python:3.12"',
    TAG_PATTERN: "must be at most 128 letters, digits, '.', '_' or '-', and must not start with '.' or '-'",
    HOST_PATTERN: "must be a DNS name, or '*.' and a DNS name",
}
