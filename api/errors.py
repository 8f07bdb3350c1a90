"""Any exception → a `Status` body: the one place that turns refusals into HTTP.

Clients of three families decode this body: kubectl by `kind` and `reason`, the public SDK by `reason`, the public CLI
by its three extensions `fix`, `docs` and `requestId`. It never has a top-level `error` string, which the SDK takes for
another product's answer. Retry-After goes with exactly the errors that a plain repetition may cure, because both
command lines repeat whatever carries it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson
from starlette.responses import Response

from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import GROUP

RETRY_AFTER_SECONDS = 1
"""The least that clients can be told in whole seconds; who knows better says so."""
_REASON_OF_STATUS = {row.row.http_status: row for row in reversed(Reason)} | {
    400: Reason.BAD_REQUEST,
    404: Reason.NOT_FOUND,
    409: Reason.CONFLICT,
    413: Reason.REQUEST_ENTITY_TOO_LARGE,
    422: Reason.INVALID,
    429: Reason.TOO_MANY_REQUESTS,
    503: Reason.UNAVAILABLE,
}


def status_body(error: ApiError, request_id: str, docs_prefix: str) -> dict[str, Any]:
    """The Status object of an error; also the object of a watch's ERROR event."""
    row = error.reason.row
    details: dict[str, Any] = dict(error.details)
    if error.subject is not None:
        kind, name = error.subject
        details |= {"name": name, "group": GROUP, "kind": kind}
    if error.causes:
        details["causes"] = [
            {"reason": cause.reason, "field": cause.field, "message": cause.message} for cause in error.causes
        ]
    retry_after_seconds = _retry_after_seconds(error)
    if retry_after_seconds is not None:
        details["retryAfterSeconds"] = retry_after_seconds
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": error.metadata,
        "status": "Failure",
        "message": error.message,
        "reason": row.wire,
        "details": details,
        "code": row.http_status,
        "fix": error.fix,
        "docs": f"{docs_prefix}/{row.wire}",
        "requestId": request_id,
    }


def status_response(error: ApiError, request_id: str, docs_prefix: str) -> Response:
    """The HTTP answer to an error, with the headers its code asks for."""
    headers = {}
    retry_after_seconds = _retry_after_seconds(error)
    if retry_after_seconds is not None:
        headers["Retry-After"] = str(retry_after_seconds)
    if error.reason is Reason.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(error.allowed)
    if error.reason is Reason.UNAUTHORIZED:
        headers["WWW-Authenticate"] = "Bearer"
    return Response(
        orjson.dumps(status_body(error, request_id, docs_prefix)),
        status_code=error.reason.row.http_status,
        headers=headers,
        media_type="application/json",
    )


def from_http_status(http_status: int, detail: str, path: str, allowed: Iterable[str]) -> ApiError:
    """The error for a refusal that the router or the server made without us; `allowed` is what the path offers."""
    reason = _REASON_OF_STATUS.get(http_status, Reason.BAD_REQUEST if http_status < 500 else Reason.INTERNAL_ERROR)
    if http_status == 404:
        # kubectl knows this sentence; it tells "no such route" from "no such object".
        return ApiError(reason, f"the server could not find the requested resource: {path}")
    if http_status == 405:
        told = f"the server does not allow this method on the requested resource: {path}"
        return ApiError(reason, told, allowed=allowed)
    return ApiError(reason, detail)


def internal_error() -> ApiError:
    """What a client learns of a bug: nothing but that there is one, and the request id to report."""
    return ApiError(Reason.INTERNAL_ERROR, "an internal error occurred; it was logged under this request id")


def _retry_after_seconds(error: ApiError) -> int | None:
    """Seconds a client should wait, or None when repeating the same request is pointless."""
    if error.retry_after_seconds is not None:
        return error.retry_after_seconds
    row = error.reason.row
    if row.retryable and row.http_status != 500:
        return RETRY_AFTER_SECONDS
    return None
