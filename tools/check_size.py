"""Refuse modules and functions that no longer fit in a head.

A module has at most 400 lines and a function at most 60, counted from `def` to its last line. Exceptions stand in
`ALLOWED` with their reason. `make check` runs this.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

MODULE_LINES_MAX = 400
FUNCTION_LINES_MAX = 60

ROOT = Path(__file__).resolve().parents[1]

ALLOWED: dict[str, str] = {}
"""Path, or `path:function`, to the reason why it may be longer."""


def modules() -> list[Path]:
    """Every Python file that git knows or would add, but generated migrations."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    return [ROOT / name for name in sorted(set(listed)) if not name.startswith("migrations/versions/")]


def problems_of(path: Path) -> list[str]:
    """The sentences to print about one module."""
    name = path.relative_to(ROOT).as_posix()
    text = path.read_text()
    found = []
    lines = text.count("\n")
    if lines > MODULE_LINES_MAX and name not in ALLOWED:
        found.append(f"{name} has {lines} lines; at most {MODULE_LINES_MAX}: split it by noun")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX and f"{name}:{node.name}" not in ALLOWED:
                found.append(f"{name}:{node.lineno} {node.name} has {length} lines; at most {FUNCTION_LINES_MAX}")
    return found


def main() -> None:
    """Print every problem; exit 1 when there is one."""
    found = [problem for path in modules() if path.exists() for problem in problems_of(path)]
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
