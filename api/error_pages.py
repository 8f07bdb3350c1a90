"""`/docs/errors/{code}`: the page that the `docs` link of an error leads to, written from the error table."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from controlplane.errors import ApiError, Reason

_PAGES = {reason.row.wire: reason.row for reason in Reason}


def error_page_routes() -> Sequence[BaseRoute]:
    """One page for each code; they need no credential."""
    return (Route("/docs/errors/{code}", _error_page, methods=["GET"]),)


async def _error_page(request: Request) -> Response:
    code = request.path_params["code"]
    row = _PAGES.get(code)
    if row is None:
        raise ApiError(Reason.NOT_FOUND, f'there is no error code "{code}"', fix=f"Known codes: {', '.join(_PAGES)}.")
    repeat = "Yes: repeat it after a moment." if row.retryable else "No: it would be refused again."
    paragraphs = (
        f"# {row.wire}",
        f"HTTP status {row.http_status}.",
        "## What to do",
        row.fix,
        "## May the same request be repeated?",
        repeat,
    )
    return Response("\n\n".join(paragraphs) + "\n", media_type="text/markdown")
