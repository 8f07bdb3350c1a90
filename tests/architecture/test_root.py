"""What only root can try is tried in CI."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.root import VARIABLE

PROJECT = Path(__file__).parents[2]
SKIPPED = """
import pytest

@pytest.mark.root
@pytest.mark.skipif(True, reason="needs root")
def test_as_root():
    pass

@pytest.mark.skipif(True, reason="needs a printer")
def test_of_anybody():
    pass
"""


@pytest.mark.parametrize(("required", "code", "told"), [("required", 1, "needs root; with"), ("", 0, "2 skipped")])
def test_a_test_of_root_that_is_skipped_fails_where_it_is_required(
    tmp_path: Path, required: str, code: int, told: str
) -> None:
    (tmp_path / "test_some.py").write_text(SKIPPED)
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)),
            *("-p", "no:cacheprovider", "-p", "tests.fixtures.root", str(tmp_path)),
        ],
        cwd=PROJECT,
        env={**os.environ, VARIABLE: required, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert (done.returncode, told in done.stdout) == (code, True), done.stdout


def test_ci_requires_them() -> None:
    assert f"{VARIABLE}=required make test" in (PROJECT / ".ci" / "run").read_text()
