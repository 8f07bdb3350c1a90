"""That the tables in docs/ which say what a test shows name tests that exist (docs/cases.md has a test of its own)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
REQUIREMENT = r"R-[A-Z]+-[0-9]+"


def rows(table: str, identifier: str) -> dict[str, list[tuple[str, str]]]:
    """(path, test) of each row by its id."""
    text = (ROOT / "docs" / table).read_text()
    found = re.finditer(rf"^\| ({identifier}) \|(.+)$", text, re.MULTILINE)
    return {row[1]: re.findall(r"`([^`]+)::([^`]+)`", row[2]) for row in found}


REQUIREMENTS = rows("kubernetes.md", REQUIREMENT)
ATTACKS = rows("attacks.md", r"A[0-9]+")


@pytest.mark.parametrize(("row", "tests"), [*REQUIREMENTS.items(), *ATTACKS.items()])
def test_every_row_names_tests_that_exist(row: str, tests: list[tuple[str, str]]) -> None:
    assert tests
    for path, name in tests:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


def test_every_requirement_that_the_code_speaks_of_is_in_the_table() -> None:
    spoken = {
        found
        for package in ("api", "controlplane", "tests")
        for path in (ROOT / package).rglob("*.py")
        for found in re.findall(REQUIREMENT, path.read_text())
    }
    assert spoken
    assert spoken - REQUIREMENTS.keys() == set()


def test_the_attacks_are_numbered_without_a_gap() -> None:
    assert list(ATTACKS) == [f"A{number}" for number in range(1, len(ATTACKS) + 1)]
