"""That docs/kubernetes.md names tests that exist, and knows every requirement that the code speaks of."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ID = r"R-[A-Z]+-[0-9]+"
ROWS = {
    found[1]: re.findall(r"`([^`]+)::([^`]+)`", found[2])
    for found in re.finditer(rf"^\| ({ID}) \|(.+)$", (ROOT / "docs" / "kubernetes.md").read_text(), re.MULTILINE)
}


@pytest.mark.parametrize("requirement", ROWS)
def test_every_requirement_names_tests_that_exist(requirement: str) -> None:
    assert ROWS[requirement]
    for path, name in ROWS[requirement]:
        text = (ROOT / path).read_text()
        assert re.search(rf"^(?:async )?def {name}\(", text, re.MULTILINE), f"{path} has no {name}"


def test_every_requirement_that_the_code_speaks_of_is_in_the_table() -> None:
    spoken = {
        found
        for package in ("api", "controlplane", "tests")
        for path in (ROOT / package).rglob("*.py")
        for found in re.findall(ID, path.read_text())
    }
    assert spoken
    assert spoken - ROWS.keys() == set()
