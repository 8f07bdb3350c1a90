"""Reading request bodies: bounded, in whatever of the accepted types they are written.

FastAPI would refuse a body without a Content-Type, which a common Kubernetes client sends, so routes read the bytes
themselves. `controlplane/machinery/validation.py` turns the bytes into a document.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.requests import Request

from api.buffered_bytes import COUNT_BODY
from controlplane.errors import ApiError, Reason

BODY_SECONDS_MAX = "nodus.body_seconds_max"
"""Key in the ASGI scope of how long a body may take."""


async def read_body(
    request: Request,
    bytes_max: int,
    refusal: Reason = Reason.REQUEST_ENTITY_TOO_LARGE,
    count: Callable[[int], None] | None = None,
    seconds_max: float | None = None,
) -> bytes:
    """The whole body; 413 as soon as it is known to be larger than `bytes_max`, 415 when it is compressed, 504 when it
    takes longer than `seconds_max`, by default the setting `body_seconds_max`.

    `count` is told the size of each piece before it is kept, and may raise to keep no more; by default that counts
    towards the bodies of all requests (`buffered_bytes.py`).
    """
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ApiError(
            Reason.UNSUPPORTED_MEDIA_TYPE, f'bodies with "Content-Encoding: {encoding}" are not read; send it plain'
        )
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > bytes_max:
        raise too_large(refusal, bytes_max)
    chunks: list[bytes] = []
    size = 0
    count = request.scope[COUNT_BODY] if count is None else count
    seconds_max = request.scope[BODY_SECONDS_MAX] if seconds_max is None else seconds_max
    try:
        async with asyncio.timeout(seconds_max):
            async for chunk in request.stream():
                size += len(chunk)
                if size > bytes_max:
                    raise too_large(refusal, bytes_max)
                count(len(chunk))
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(Reason.TIMEOUT, f"the body of the request did not come within {seconds_max:g} s") from None
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def too_large(reason: Reason, bytes_max: int) -> ApiError:
    """The 413 that names the limit."""
    return ApiError(reason, f"the body of the request must be at most {bytes_max} bytes")
