"""What the server may import: never a pickle, never the public SDK, only along the layers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVER_PACKAGES = ("api", "workflows", "activities", "workers", "controlplane", "runtime")
UNPICKLERS = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
PROCESSES = ("workers.api", "workers.control", "workers.node", "workers.up")


@pytest.fixture(scope="module")
def graph() -> grimp.ImportGraph:
    return grimp.build_graph(*SERVER_PACKAGES, include_external_packages=True, cache_dir=None)


@pytest.mark.parametrize("forbidden", sorted(UNPICKLERS | {"nodus"}))
def test_no_module_of_the_server_imports(graph: grimp.ImportGraph, forbidden: str) -> None:
    if forbidden in graph.modules:
        assert graph.find_modules_that_directly_import(forbidden) == set()


def test_the_graph_sees_what_it_should(graph: grimp.ImportGraph) -> None:
    # Without this, a graph of nothing would pass the test above.
    assert "orjson" in graph.modules
    files = [path for package in SERVER_PACKAGES for path in (ROOT / package).rglob("*.py")]
    ours = [
        name for name in graph.modules if name.split(".")[0] in SERVER_PACKAGES and not graph.is_module_squashed(name)
    ]
    assert len(ours) >= len(files)


@pytest.mark.parametrize("process", PROCESSES)
def test_a_running_process_has_neither_cloudpickle_nor_the_sdk_loaded(process: str) -> None:
    program = f"import sys, {process}; print(*({{'cloudpickle', 'dill', 'nodus'}} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (told.stderr, told.stdout.strip()) == ("", "")


def test_the_supervisor_loads_nothing_that_its_start_would_wait_for() -> None:
    heavy = "{'temporalio', 'alembic', 'sqlalchemy', 'fastapi', 'httpx', 'minio'}"
    program = f"import sys, workers.up; print(*({heavy} & set(sys.modules)))"
    told = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (told.stderr, told.stdout.strip()) == ("", "")


def test_the_layers_hold() -> None:
    told = subprocess.run(
        [sys.executable, "-c", "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports())"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 0, told.stdout
