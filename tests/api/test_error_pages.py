"""The pages of error codes: one for each row of the error table, and what they say is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from api.error_pages import FOLDER, INDEX, head, index
from controlplane.errors import Reason
from tests.fixtures.app import ServedApi, client_of
from tools.error_pages import REST

ROOT = Path(__file__).resolve().parents[2]
LINES_MAX = 40
NOT_RAISED = "does not answer with this code"
PASSED_ON = {"controlplane/errors.py", "controlplane/resources/replay.py", "api/errors.py"}
"""Where codes are named that others raise."""


def test_every_code_has_a_page_and_every_page_a_code() -> None:
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.md" for name in (INDEX, *(r.row.wire for r in Reason))}


@pytest.mark.parametrize("reason", Reason)
def test_a_page_says_what_the_table_says_and_then_what_happened_why_and_what_helps(reason: Reason) -> None:
    page = (FOLDER / f"{reason.row.wire}.md").read_text()
    assert page.startswith(head(reason.row)), "run python -m tools.error_pages"
    told = page.removeprefix(head(reason.row))
    assert re.fullmatch(r"[^#]{30,}\n\n## Usual causes\n\n(\* .+\n)+\n## What to do\n\n[^#]{30,}\n", told)
    assert told != REST
    assert page.count("\n") <= LINES_MAX
    for linked in re.findall(r"\]\(([^)]+)\)", page):
        assert (FOLDER / linked).exists()


def test_the_list_of_codes_is_the_table() -> None:
    assert (FOLDER / f"{INDEX}.md").read_text() == index(), "run python -m tools.error_pages"


def test_a_page_says_so_when_this_server_never_answers_with_its_code() -> None:
    texts = {
        str(path.relative_to(ROOT)): path.read_text()
        for folder in ("api", "controlplane", "activities", "workers")
        for path in (ROOT / folder).rglob("*.py")
    }
    raised = {
        name for path, text in texts.items() if path not in PASSED_ON for name in re.findall(r"Reason\.([A-Z_]+)", text)
    }
    told = {reason.name for reason in Reason if NOT_RAISED in (FOLDER / f"{reason.row.wire}.md").read_text()}
    assert told == {reason.name for reason in Reason} - raised


async def test_pages_are_served_to_everybody_and_lead_to_each_other(shared_api: ServedApi) -> None:
    async with client_of(shared_api.url) as stranger:
        listed = await stranger.get(f"/docs/errors/{INDEX}")
        assert (listed.status_code, listed.text) == (200, index())
        for linked in re.findall(r"\]\(([^)]+)\)", listed.text):
            page = await stranger.get(str(listed.url.join(linked)))
            assert (page.status_code, page.content) == (200, (FOLDER / linked).read_bytes())
        absent = await stranger.get("/docs/errors/Nope")
        assert (absent.status_code, absent.json()["fix"]) == (404, f"GET /docs/errors/{INDEX} lists all codes.")
