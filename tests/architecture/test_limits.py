"""Every number of the API machinery has a name and a reason: in the settings, or beside the constant."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("api", "controlplane/machinery", "controlplane/resources", "controlplane/store")
MODULES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("*.py"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_constant_that_is_a_number_says_why_it_is_that(path: Path) -> None:
    text = path.read_text()
    lines, body = text.splitlines(), ast.parse(text).body
    bare = []
    for statement, following in zip(body, [*body[1:], None], strict=True):
        if not isinstance(statement, ast.Assign | ast.AnnAssign) or not _is_number(statement.value):
            continue
        told = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
        comment = "#" in lines[statement.lineno - 1] or lines[statement.lineno - 2].startswith("#")
        if not told and not comment:
            bare.append(lines[statement.lineno - 1])
    assert bare == []


def _is_number(value: ast.expr | None) -> bool:
    if isinstance(value, ast.BinOp):
        return _is_number(value.left) and _is_number(value.right)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)
