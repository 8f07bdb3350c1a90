"""Which Python `make setup` takes: one that can run user code, or a sentence that says how to get it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from controlplane.kinds.catalog import PYTHONS

ROOT = Path(__file__).resolve().parents[2]
BASE = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout as far as its setup needs one, and a folder `bin` whose programs are all that it finds."""
    made = tmp_path / "checkout"
    (made / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "setup", made / "tools" / "setup")
    shutil.copy(ROOT / "requirements-dev.lock", made)
    (made / "bin").mkdir()
    for name in ("sh", "dirname", "uname", "cmp", "awk", "mktemp", "rm", "cat"):
        found = shutil.which(name)
        assert found is not None
        (made / "bin" / name).symlink_to(found)
    return made


def add_python(checkout: Path, name: str, change: str) -> None:
    """Put a Python on the path, changed by `change` before anything else runs, which makes no environments."""
    changed = checkout / f"of-{name}"
    changed.mkdir()
    (changed / "sitecustomize.py").write_text(change)
    program = checkout / "bin" / name
    program.write_text(
        f'#!/bin/sh\n[ "$2" = venv ] && echo "{name} asked for $3" >&2 && exit 1\n'
        f'PYTHONPATH="{changed}" exec "{BASE}" "$@"\n'
    )
    program.chmod(0o755)


def set_up(checkout: Path, **variables: str) -> str:
    """What setup tells, which fails for want of a Python or because none of these makes environments."""
    done = subprocess.run(
        [str(checkout / "tools" / "setup")],
        env={"PATH": str(checkout / "bin"), "TMPDIR": os.environ.get("TMPDIR", "/tmp"), **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    return done.stdout + done.stderr


OLD = "import sys, tarfile\ndel tarfile.data_filter\nsys.version_info = (3, 11, 2)\n"
NEW = "import sys\nsys.version_info = (3, 14, 0)\n"


@pytest.mark.parametrize("change", [OLD, NEW])
def test_a_python_that_cannot_run_user_code_is_passed_over_for_the_next(checkout: Path, change: str) -> None:
    add_python(checkout, "python3", change)
    add_python(checkout, "python3.12", "")
    told = set_up(checkout)
    assert "python3.12 asked for .venv" in told
    assert "python3-venv" in told


def test_where_no_python_suits_uv_is_asked_and_then_the_message_says_what_to_do(checkout: Path) -> None:
    add_python(checkout, "python3", OLD)
    told = set_up(checkout)
    assert "asking uv for 3.12" in told
    assert "A Python from 3.11.4 to 3.13 is needed" in told
    assert "make setup PYTHON=$(~/.local/bin/uv python find 3.12)" in told


def test_a_python_that_was_named_is_taken_or_refused(checkout: Path) -> None:
    add_python(checkout, "python3", OLD)
    add_python(checkout, "python3.12", "")
    told = set_up(checkout, PYTHON="python3")
    assert "A Python from 3.11.4 to 3.13 is needed" in told
    assert "asked for" not in told


def test_the_newest_python_that_is_taken_is_the_newest_that_workers_run() -> None:
    assert PYTHONS[-1] == "3.13"
    assert "<= (3, 13)" in (ROOT / "tools" / "setup").read_text()
