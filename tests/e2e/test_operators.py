"""The operator's commands on a running `up`, and what they say where there is nothing to work on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.system import ROOT, System
from workers.engines.child import free_port

pytestmark = pytest.mark.e2e


def command(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "workers", *words],
        cwd=ROOT,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_commands_work_on_the_installation_of_a_folder(system: System) -> None:
    folder = ("--data-dir", str(system.data_dir))
    for words, told in (
        (("ledger", "verify"), "the ledger balances"),
        (("audit", "verify"), "are as they were written"),
        (("admin", "members"), "admin"),
        (("quotas", "list"), ""),
        (("switches", "list"), ""),
    ):
        done = command(*words, *folder)
        assert (done.returncode, done.stderr) == (0, ""), words
        assert told in done.stdout, words


def test_a_folder_that_holds_nothing_is_told(tmp_path: Path) -> None:
    done = command("ledger", "verify", "--data-dir", str(tmp_path))
    assert (done.returncode, done.stdout) == (1, "")
    assert "holds no installation" in done.stderr


def test_a_database_that_does_not_answer_is_told_in_a_sentence() -> None:
    url = f"postgresql://nodus@127.0.0.1:{free_port()}/nodus"
    done = command("audit", "head", NODUS_SERVER_DATABASE_URL=url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "the database does not answer" in done.stderr
    assert "--data-dir" in done.stderr
    assert "Traceback" not in done.stderr
