"""That the table of docs/cases.md and the tests that claim to show its cases agree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.cases import OPEN, TABLE, read_table, refusal

ROOT = Path(__file__).resolve().parents[2]
ROW = "| {name} | the fault | the answer | {test} |\n"


def marked() -> Iterator[tuple[str, str]]:
    """(case, `path::function`) of every mark in the suite."""
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        text = path.read_text()
        if "mark.case(" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for case in _cases_of(node):
                    yield case, f"{path.relative_to(ROOT).as_posix()}::{node.name}"


def _cases_of(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def test_every_row_names_the_tests_that_carry_its_mark_and_no_others() -> None:
    rows = {(case.name, test) for case in read_table(TABLE.read_text()).values() for test in case.tests}
    marks = set(marked())
    assert marks - rows == set(), "a marked test needs its name in the row of its case in docs/cases.md"
    assert rows - marks == set(), "a test that a row of docs/cases.md names needs the mark of its case"


def test_every_row_has_a_test_or_says_why_not() -> None:
    table = read_table(TABLE.read_text())
    assert [case.name for case in table.values() if not case.tests and len(case.open.split()) < 4] == []


def test_a_row_is_read_as_it_is_written() -> None:
    text = ROW.format(name="C1", test="`tests/a.py::one` and `tests/b.py::two`") + ROW.format(
        name="C2", test=f"{OPEN}nothing counts it yet"
    )
    one, two = read_table(text).values()
    assert (one.tests, one.open) == (("tests/a.py::one", "tests/b.py::two"), "")
    assert (two.tests, two.open) == ((), "nothing counts it yet")


@pytest.mark.parametrize("name", ["C0", "C999", "c17", "case"])
def test_a_case_that_does_not_exist_is_refused_with_those_that_do(name: str) -> None:
    assert f"no case {name}; it has C1, " in str(refusal(name))


def test_a_case_without_a_test_is_refused_with_its_reason() -> None:
    for case in read_table(TABLE.read_text()).values():
        assert (refusal(case.name) is None) == bool(case.tests)
        assert case.tests or case.open in str(refusal(case.name))
