"""`/docs/errors/{code}`: the page that the `docs` link of an error leads to, and the list of all pages.

The pages are `docs/errors/*.md`. Each begins with what the error table says (`head`); people wrote the rest: what
happened, the usual causes, what to do. `python -m tools.error_pages` renews the beginnings and the list, and a
test holds table and pages together.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from controlplane.errors import ApiError, Reason, Row

FOLDER = Path(__file__).resolve().parents[1] / "docs" / "errors"
INDEX = "README"


def head(row: Row) -> str:
    """How the page of a code begins."""
    repeat = "may be repeated after a moment" if row.retryable else "would be refused again"
    return f"# {row.wire}\n\nHTTP status {row.http_status}; the same request {repeat}.\n\n**{row.fix}**\n\n"


def index() -> str:
    """The list of all codes."""
    rows = [f"| [{row.wire}]({row.wire}.md) | {row.http_status} | {row.fix} |" for row in (code.row for code in Reason)]
    table = "\n".join(("| code | status | what to do |", "|---|---|---|", *rows))
    return f"# Error codes\n\nEvery error has one of these in `reason`, and a link to its page in `docs`.\n\n{table}\n"


class ErrorPages:
    """The pages, read once; they need no credential."""

    def __init__(self) -> None:
        self._pages = {name: (FOLDER / f"{name}.md").read_bytes() for name in (INDEX, *(r.row.wire for r in Reason))}

    def routes(self) -> Sequence[BaseRoute]:
        """All pages, also under the names of their files, by which they link to each other."""
        return (Route("/docs/errors/{code}", self.page, methods=["GET"]),)

    async def page(self, request: Request) -> Response:
        """One page as Markdown."""
        code = request.path_params["code"].removesuffix(".md")
        page = self._pages.get(code)
        if page is None:
            raise ApiError(
                Reason.NOT_FOUND, f'there is no error code "{code}"', fix=f"GET /docs/errors/{INDEX} lists all codes."
            )
        return Response(page, media_type="text/markdown")
