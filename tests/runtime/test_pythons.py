"""Which interpreter a minor version stands for on a host."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from controlplane.kinds.catalog import PYTHONS
from runtime.pythons import MINORS, PythonLocator, PythonMissingError
from tests.runtime.conftest import OWN_MINOR


def looked_at(locator: PythonLocator, minor: str) -> tuple[str, ...]:
    """What the locator looked at in vain."""
    with pytest.raises(PythonMissingError) as caught:
        locator.locate(minor)
    return caught.value.looked_at


@pytest.mark.parametrize("minor", MINORS)
def test_all_minors_that_functions_may_ask_for_are_found_here(locator: PythonLocator, minor: str) -> None:
    found = locator.locate(minor)
    assert found.version.startswith(f"{minor}.")
    assert found.executable.is_relative_to(found.prefix)


def test_our_own_minor_is_the_base_interpreter_not_our_environment(locator: PythonLocator) -> None:
    found = locator.locate(OWN_MINOR)
    assert found.prefix == Path(sys.base_prefix).resolve()
    assert not found.executable.is_relative_to(sys.prefix)


def test_a_variable_names_the_interpreter(locator: PythonLocator) -> None:
    path = locator.locate("3.12").executable
    told = PythonLocator({"NODUS_PYTHON_3_12": str(path)}).locate("3.12")
    assert told.executable == path


def test_a_variable_that_names_another_minor_is_refused_not_passed_over(locator: PythonLocator) -> None:
    environ = {**os.environ, "NODUS_PYTHON_3_12": str(locator.locate("3.10").executable)}
    [seen] = looked_at(PythonLocator(environ), "3.12")
    assert "is cpython 3.10" in seen


def test_a_command_that_does_not_run_is_passed_over_for_the_next(locator: PythonLocator, tmp_path: Path) -> None:
    # This is what a pyenv shim does for a version that is not switched on.
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    real = locator.locate("3.12").executable
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)}
    assert f"{shim} does not run" in looked_at(PythonLocator(environ), "3.12")
    assert PythonLocator({**environ, "PATH": f"{tmp_path}:{real.parent}"}).locate("3.12").executable == real


def test_the_newest_patch_of_pyenv_is_taken_by_number(tmp_path: Path) -> None:
    for patch in (2, 10, 9):
        folder = tmp_path / "versions" / f"3.77.{patch}" / "bin"
        folder.mkdir(parents=True)
        (folder / "python3.77").write_text("#!/bin/sh\nexit 1\n")
        (folder / "python3.77").chmod(0o755)
    told = " ".join(looked_at(PythonLocator({"PYENV_ROOT": str(tmp_path), "PATH": "/bin"}), "3.77"))
    assert told.index("3.77.10") < told.index("3.77.9") < told.index("3.77.2")


def test_a_minor_that_is_not_here_is_an_error_that_names_those_that_are_and_no_path(tmp_path: Path) -> None:
    fake = tmp_path / "python3.99"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    with pytest.raises(PythonMissingError) as caught:
        PythonLocator({**os.environ, "NODUS_PYTHON_3_99": str(fake)}).locate("3.99")
    assert str(caught.value) == (
        "Python 3.99 is not on this node: it has 3.10, 3.11, 3.12, 3.13, of which `spec.python` may name one. "
        "Its operator may install it, or set NODUS_PYTHON_3_99 to the path of its interpreter."
    )
    assert caught.value.looked_at == (f"{fake} does not run",)


def test_a_host_without_any_python_says_so(tmp_path: Path) -> None:
    environ = {f"NODUS_PYTHON_3_{minor}": str(tmp_path / "gone") for minor in range(10, 14)}
    with pytest.raises(PythonMissingError, match="it has no other either"):
        PythonLocator(environ).locate("3.10")


@pytest.mark.parametrize("text", ["", "3", "3.12.1", "../3.12", "2.7", "python3.12"])
def test_only_a_minor_version_is_looked_for(text: str) -> None:
    with pytest.raises(PythonMissingError, match="is not a Python minor version"):
        PythonLocator(os.environ).locate(text)


def test_a_python_too_old_to_unpack_safely_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python3.11"
    answer = {"implementation": "cpython", "version": "3.11.2", "safe_tar": False}
    fake.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    fake.chmod(0o755)
    [seen] = looked_at(PythonLocator({"NODUS_PYTHON_3_11": str(fake)}), "3.11")
    assert "3.11.2, too old" in seen


def test_the_minors_that_are_looked_for_are_those_that_a_function_may_name() -> None:
    assert MINORS == PYTHONS
