"""Answers the proxy gives by itself, in the API's error form.

A worker is a client of the API like any other: it reads a `Status` and decides by `code` and `reason` whether to try
again.
"""

from __future__ import annotations

import json

RETRY_AFTER_SECONDS = 1


def status_answer(code: int, reason: str, message: str, retry_after_seconds: int = 0) -> bytes:
    """A whole HTTP answer with a `Status` body, the error form of the API, after which the connection closes."""
    status = {
        "apiVersion": "v1",
        "kind": "Status",
        "metadata": {},
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": message,
        "details": {"retryAfterSeconds": retry_after_seconds} if retry_after_seconds else {},
    }
    body = json.dumps(status).encode()
    lines = [f"HTTP/1.1 {code} {reason}", "content-type: application/json", f"content-length: {len(body)}"]
    lines.append("connection: close")
    if retry_after_seconds:
        lines.append(f"retry-after: {retry_after_seconds}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def unavailable(message: str) -> bytes:
    """The 503 a worker repeats its request after."""
    return status_answer(503, "Unavailable", message, RETRY_AFTER_SECONDS)
