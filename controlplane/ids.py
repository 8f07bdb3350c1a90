"""Identifiers: uids, generated names and digests.

A uid is a typed, time-ordered id (`fnc_` and 26 characters of Crockford base 32 over a UUIDv7), so logs, tables and
pages sort by creation and a reader sees the kind. Generated names use an alphabet without vowels, so no word appears.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import time
from typing import NewType

Uid = NewType("Uid", str)

_CROCKFORD = "0123456789abcdefghjkmnpqrstvwxyz"
# Kubernetes' alphabet for generated names: no vowels, no look-alikes.
_NAME_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
GENERATED_SUFFIX_LENGTH = 5
NAME_LENGTH_MAX = 63


def new_uid(prefix: str) -> Uid:
    """A fresh uid such as `fnc_01hv…`, ordered by creation to the millisecond."""
    milliseconds = time.time_ns() // 1_000_000
    value = (milliseconds << 80) | int.from_bytes(os.urandom(10))
    value = (value & ~(0xF << 76)) | (0x7 << 76)  # version 7
    value = (value & ~(0x3 << 62)) | (0x2 << 62)  # RFC 9562 variant
    return Uid(f"{prefix}_{encode_base32(value)}")


def encode_base32(value: int) -> str:
    """26 lowercase Crockford characters of a 128-bit value, most significant first."""
    return "".join(_CROCKFORD[(value >> shift) & 31] for shift in range(125, -1, -5))


def generated_name(prefix: str) -> str:
    """`prefix` cut to leave room, plus five random characters; at most 63 characters in all."""
    suffix = "".join(secrets.choice(_NAME_ALPHABET) for _ in range(GENERATED_SUFFIX_LENGTH))
    return prefix[: NAME_LENGTH_MAX - GENERATED_SUFFIX_LENGTH] + suffix


def sha256_hex(content: bytes) -> str:
    """The lowercase hex SHA-256 digest that content-addressed blobs are named by."""
    return hashlib.sha256(content).hexdigest()
