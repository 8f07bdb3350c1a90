"""Environments of workers: built once, complete or absent, and without anything of ours."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import subprocess
from pathlib import Path

import pytest

from runtime.environments import Environment, EnvironmentFailedError, Environments
from runtime.host import LOCK_FILE
from runtime.pythons import PythonLocator, find_uv
from tests.runtime.conftest import OWN_MINOR

# One small wheel, so that building takes a moment.
SMALL_LOCK = next(block for block in LOCK_FILE.read_text().split("\n\n") if block).partition("\nanyio==")[0]


def small(directory: Path, lock_text: str = SMALL_LOCK) -> Environments:
    directory.mkdir(exist_ok=True)
    lock = directory / "worker.lock"
    lock.write_text(lock_text)
    return Environments(directory=directory / "made", lock_file=lock, uv=find_uv(os.environ), environ=os.environ)


def inside(environment: Environment, code: str) -> str:
    done = subprocess.run(
        [environment.path / "bin" / "python", "-c", code], capture_output=True, text=True, check=True, cwd="/", env={}
    )
    return done.stdout.strip()


def test_the_sdk_is_there_and_nothing_of_ours(environment: Environment) -> None:
    assert inside(environment, "import nodus; print(nodus.__version__)") == "1.0.32"
    code = "from importlib.util import find_spec as f; import json; print(json.dumps([n for n in %r if f(n)]))"
    ours = ["api", "workers", "workflows", "activities", "controlplane", "runtime", "temporalio", "fastapi", "asyncpg"]
    assert json.loads(inside(environment, code % ours)) == []


def test_an_environment_is_compiled_and_readable_by_everyone(environment: Environment) -> None:
    assert list(environment.path.glob("lib/python*/site-packages/nodus/__pycache__/*.pyc"))
    for folder, _, files in os.walk(environment.path):
        assert Path(folder).stat().st_mode & 0o005 == 0o005
        for name in files:
            assert Path(folder, name).stat().st_mode & 0o004
            assert Path(folder, name).stat().st_nlink == 1, "shared with uv's cache"


async def test_a_second_start_finds_it_at_once(environment: Environment, environments: Environments) -> None:
    steps: list[str] = []
    assert await environments.ensure(environment.interpreter, steps.append) == environment
    assert steps == []


async def test_concurrent_starts_build_once(tmp_path: Path, locator: PythonLocator) -> None:
    interpreter = locator.locate(OWN_MINOR)
    steps: list[str] = []
    both = [small(tmp_path), small(tmp_path)]
    made = await asyncio.gather(*(one.ensure(interpreter, steps.append) for one in both))
    assert made[0] == made[1]
    assert len([step for step in steps if step.startswith("creating")]) == 1
    assert len([step for step in steps if step.startswith("waiting")]) == 1
    assert sorted(path.name for path in (tmp_path / "made").iterdir() if not path.name.startswith(".")) == [made[0].key]


async def test_a_build_that_was_killed_is_no_environment_and_does_not_stand_in_the_way(
    tmp_path: Path, locator: PythonLocator
) -> None:
    made = small(tmp_path)
    interpreter = locator.locate(OWN_MINOR)
    remains = tmp_path / "made" / f".{made.key(interpreter)}.building"
    (remains / "lib").mkdir(parents=True)
    environment = await made.ensure(interpreter, lambda _: None)
    assert not remains.exists()
    assert inside(environment, "import annotated_types") == ""


async def test_a_wheel_with_another_hash_is_refused(tmp_path: Path, locator: PythonLocator) -> None:
    lines = SMALL_LOCK.splitlines()
    forged = "\n".join([lines[0].rstrip(" \\") + " \\", "    --hash=sha256:" + "0" * 64])
    with pytest.raises(EnvironmentFailedError, match=r"(?i)hash"):
        await small(tmp_path, forged).ensure(locator.locate(OWN_MINOR), lambda _: None)
    assert list((tmp_path / "made").glob("py*")) == []


def test_whatever_could_change_the_result_is_in_the_key(tmp_path: Path, locator: PythonLocator) -> None:
    interpreter = locator.locate(OWN_MINOR)
    made = small(tmp_path / "a")
    keys = {
        made.key(interpreter),
        made.key(dataclasses.replace(interpreter, version="3.11.99")),
        made.key(dataclasses.replace(interpreter, executable=Path("/elsewhere/python"))),
        made.key(dataclasses.replace(interpreter, platform="linux-aarch64")),
        made.key(dataclasses.replace(interpreter, libc="musl")),
        small(tmp_path / "b", SMALL_LOCK + "\n# changed").key(interpreter),
    }
    assert len(keys) == 6
    assert small(tmp_path / "c").key(interpreter) in keys


def test_the_lock_pins_the_sdk_with_hashes_for_every_minor_and_names_no_registry() -> None:
    text = LOCK_FILE.read_text()
    assert "nodus-compute==1.0.32" in text
    assert "python_full_version < '3.11'" in text
    assert "://" not in text
    pins = [line for line in text.splitlines() if "==" in line and not line.startswith((" ", "#"))]
    assert all(line.endswith("\\") for line in pins)
