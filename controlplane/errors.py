"""The error table and the one exception that crosses layers.

Every error a client can meet is a row of `Reason`: its wire name, HTTP status, whether a client may simply repeat the
request, and what to do next when the raiser knows nothing better. Names and statuses equal the registry of the public
SDK (`nodus.errors`), which picks its exception class by them; a contract test holds the two together. `api/errors.py`
renders an `ApiError` as a `Status` body, `activities/errors.py` carries it into Temporal; nothing else translates
errors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any


@dataclass(frozen=True)
class Row:
    """One error code: its wire name, HTTP status, retryability and default advice."""

    wire: str
    http_status: int
    retryable: bool
    fix: str


CAUSES_TOLD = 5
"""Causes in the one-line message of an error; `details.causes` has them all."""

_R = True
_F = False


class Reason(Enum):
    """The error codes this server can answer with."""

    BAD_REQUEST = Row("BadRequest", 400, _F, "Correct the request; the message names the part that cannot be read.")
    UNAUTHORIZED = Row("Unauthorized", 401, _F, "Send `Authorization: Bearer <key>` with a key of this server.")
    BUDGET_EXCEEDED = Row("BudgetExceeded", 402, _F, "Raise the budget or the Function's `spec.maxCostUSD`.")
    INSUFFICIENT_CREDITS = Row(
        "InsufficientCredits", 402, _F, "Add credit, or wait until running work releases its holds."
    )
    ARREARS_OUTSTANDING = Row(
        "ArrearsOutstanding", 402, _F, "Ask whoever runs this server for credit of at least what is owed."
    )
    FORBIDDEN = Row("Forbidden", 403, _F, "Use a key that has the scope or project the message names.")
    COMPUTE_SUSPENDED = Row("ComputeSuspended", 403, _F, "Ask the operator of this server why, and to lift it.")
    WORKER_NOT_ALLOWED = Row("WorkerNotAllowed", 403, _F, "Only this Function's own workers may claim its calls.")
    FUNCTION_NOT_FOUND = Row("FunctionNotFound", 404, _F, "Create the Function first, or correct `spec.function`.")
    NOT_FOUND = Row("NotFound", 404, _F, "Check the name and the project; list the kind to see what exists.")
    METHOD_NOT_ALLOWED = Row("MethodNotAllowed", 405, _F, "Use a verb the kind offers; discovery lists them.")
    NOT_ACCEPTABLE = Row("NotAcceptable", 406, _F, "Accept `application/json`.")
    ALREADY_EXISTS = Row("AlreadyExists", 409, _F, "Choose another name, or patch the existing object.")
    CONFLICT = Row("Conflict", 409, _F, "Read the object again, apply the change to the new version and retry.")
    FIELD_IMMUTABLE = Row("FieldImmutable", 409, _F, "Leave the field as it is, or create a new object.")
    IDEMPOTENCY_KEY_REUSED = Row("IdempotencyKeyReused", 409, _F, "Use a new Idempotency-Key for a different request.")
    REQUEST_IN_PROGRESS = Row("RequestInProgress", 409, _R, "Repeat the request with the same key in a moment.")
    EXPIRED = Row("Expired", 410, _F, "List again and watch from the new resourceVersion.")
    PRECONDITION_FAILED = Row("PreconditionFailed", 412, _F, "Read the current state and send its ETag.")
    FUNCTION_CALL_BATCH_TOO_LARGE = Row("FunctionCallBatchTooLarge", 413, _F, "Send at most 1,000 calls and 8 MiB.")
    REQUEST_ENTITY_TOO_LARGE = Row(
        "RequestEntityTooLarge", 413, _F, "Send a smaller body; upload large payloads as blobs."
    )
    UNSUPPORTED_MEDIA_TYPE = Row("UnsupportedMediaType", 415, _F, "Send one of the media types the message lists.")
    INVALID = Row("Invalid", 422, _F, "Correct the fields listed in `details.causes`.")
    SECRET_VALUE_IN_ENV = Row(
        "SecretValueInEnv", 422, _F, "Use `valueFrom.secretKeyRef` of the variable, or mount the Secret."
    )
    UNSUPPORTED = Row("Unsupported", 422, _F, "Leave the field out; this deployment does not offer it.")
    QUOTA_EXCEEDED = Row("QuotaExceeded", 429, _F, "Delete what is no longer needed, or ask for a higher quota.")
    TOO_MANY_REQUESTS = Row("TooManyRequests", 429, _R, "Wait for the time in Retry-After and repeat the request.")
    INTERNAL_ERROR = Row("InternalError", 500, _R, "Repeat the request; report the request id if it fails again.")
    ADMISSIONS_PAUSED = Row(
        "AdmissionsPaused", 503, _R, "An operator paused new objects of this kind; try again later."
    )
    ENCRYPTION_FAILED = Row("EncryptionFailed", 503, _R, "Nothing was stored; repeat the request.")
    PAYMENTS_NOT_CONFIGURED = Row(
        "PaymentsNotConfigured", 503, _F, "Ask the operator of this server to grant credit; it takes no payments."
    )
    UNAVAILABLE = Row("Unavailable", 503, _R, "A part of the server is down; repeat the request.")
    TIMEOUT = Row("Timeout", 504, _R, "Repeat the request; the server had not caught up yet.")

    @property
    def row(self) -> Row:
        return self.value


@dataclass(frozen=True)
class Cause:
    """One problem in a body: the field's path (`spec.timeout`), a machine word and a sentence."""

    field: str
    message: str
    reason: str = "FieldValueInvalid"


_WANT_STATUSES = frozenset({402, 429})


class ApiError(Exception):
    """A refusal with a code from the table; the only exception that layers let travel to an edge.

    `message` is public. `debug` goes to the log only. `details` holds the code's own keys (`details.budget` …),
    `metadata` those of a list that could not go on (`metadata.continue`). `subject` names the object the error is
    about, as (kind or plural, name). `allowed` are the methods that a 405 offers instead.
    """

    def __init__(
        self,
        reason: Reason,
        message: str,
        *,
        causes: tuple[Cause, ...] = (),
        details: dict[str, Any] | None = None,
        metadata: dict[str, str] | None = None,
        fix: str | None = None,
        retry_after_seconds: int | None = None,
        subject: tuple[str, str] | None = None,
        allowed: Iterable[str] = (),
        debug: str | None = None,
    ) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message
        self.causes = causes
        self.details = details or {}
        self.metadata = metadata or {}
        self.fix = fix or reason.row.fix
        self.retry_after_seconds = retry_after_seconds
        self.subject = subject
        self.allowed = tuple(sorted(allowed))
        self.debug = debug

    @property
    def is_want(self) -> bool:
        """Whether money or quota is wanting for what is right in itself: a rehearsal tells that in its estimate. Not
        what a client should simply repeat."""
        return self.reason.row.http_status in _WANT_STATUSES and not self.reason.row.retryable


def not_found(plural: str, name: str, fix: str | None = None) -> ApiError:
    """The 404 whose wording kubectl users know: `functions.nodus.dev "x" not found` (R-ERR-3)."""
    return ApiError(Reason.NOT_FOUND, f'{plural}.nodus.dev "{name}" not found', subject=(plural, name), fix=fix)


def invalid(plural: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """A 422 that lists every problem found in one object; the message tells the first few of them."""
    return ApiError(
        Reason.INVALID,
        f'{plural}.nodus.dev "{name}" is invalid: {told(causes)}',
        causes=tuple(causes),
        subject=(plural, name),
    )


def told(causes: Sequence[Cause]) -> str:
    """The first causes in one line, and how many more there are."""
    shown = "; ".join(f"{cause.field}: {cause.message}" for cause in causes[:CAUSES_TOLD])
    more = len(causes) - CAUSES_TOLD
    return f"{shown}; and {more} more" if more > 0 else shown
