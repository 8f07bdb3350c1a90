"""How a validator says what is wrong: one problem, or several at places below the value it judges.

Pydantic gathers them over a whole body; `validation.py` turns each into a `Cause` with its path on the wire. Messages
follow the grammar of Kubernetes ("must be …", "may not be …") because they are shown behind the path of the field.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic_core import PydanticCustomError

CUSTOM_TYPE = "nodus"
INVALID = "FieldValueInvalid"
REQUIRED = "FieldValueRequired"
DUPLICATE = "FieldValueDuplicate"
FORBIDDEN = "FieldValueForbidden"
NOT_FOUND = "FieldValueNotFound"
NOT_SUPPORTED = "FieldValueNotSupported"
TOO_LONG = "FieldValueTooLong"
TOO_MANY = "FieldValueTooMany"
TYPE_INVALID = "FieldValueTypeInvalid"
UNKNOWN = "FieldValueUnknown"


@dataclass(frozen=True)
class Problem:
    """One thing wrong: the message, its machine word, and a path below the judged value (`[1].name`)."""

    message: str
    reason: str = INVALID
    path: str = ""


def problem(message: str, reason: str = INVALID, path: str = "") -> PydanticCustomError:
    """The error a validator raises for one problem."""
    return problems([Problem(message, reason, path)])


def problems(found: Sequence[Problem]) -> PydanticCustomError:
    """The error a validator raises for several problems."""
    return PydanticCustomError(CUSTOM_TYPE, "invalid", {"problems": tuple(found)})
