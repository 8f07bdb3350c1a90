"""The proof at a node's start: what it tries, what it refuses, what it tells of a host. Real sandboxes throughout."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from runtime import canary, sandbox
from runtime.canary import Level
from runtime.cgroups import Cgroups
from runtime.pythons import PythonLocator
from runtime.sandbox import SandboxSpec, SandboxUnavailableError, Tools
from runtime.trials import TRIALS, outcome
from tests.runtime.conftest import OWN_MINOR, TEST_UID

pytestmark = [pytest.mark.root, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]


class Prover:
    """Runs the canary on this host, with parts of it taken away."""

    def __init__(self, tools: Tools, locator: PythonLocator, directory: Path) -> None:
        self.tools = tools
        self._interpreter = locator.locate(OWN_MINOR)
        self._directory = directory

    async def __call__(self, wanted: Level, *, cgroups: Cgroups, uid: int | None = TEST_UID) -> canary.Guarantees:
        return await canary.prove(
            self.tools,
            uid=uid,
            interpreter=self._interpreter,
            cgroups=cgroups,
            directory=self._directory,
            wanted=wanted,
        )


@pytest.fixture
def prove(tools: Tools, locator: PythonLocator, tmp_path: Path) -> Prover:
    return Prover(tools, locator, tmp_path)


async def test_a_host_of_root_with_control_groups_is_strong(prove: Prover, cgroups: Cgroups) -> None:
    found = await prove("strong", cgroups=cgroups)
    limits = (found.memory, found.pids)
    assert (found.level, found.uid, limits, found.missing) == ("strong", "per_attempt", ("hard", "hard"), ())


async def test_a_host_without_control_groups_says_what_it_lacks_and_is_refused_where_that_is_too_little(
    prove: Prover,
) -> None:
    found = await prove("standard", cgroups=Cgroups([]))
    assert (found.level, found.memory, found.pids) == ("standard", "none", "none")
    assert [told.partition(":")[0] for told in found.missing] == ["no limit on memory", "no limit on pids"]
    with pytest.raises(SandboxUnavailableError, match="at level standard, and `isolation_min` asks for strong"):
        await prove("strong", cgroups=Cgroups([]))


def test_what_the_trials_try_can_be_done_outside(tmp_path: Path) -> None:
    """A trial that could not succeed anywhere would prove nothing."""
    with canary._bait(tmp_path) as bait:
        for name in ("read files of the host", "reach the host's ports", "signal processes of the host"):
            assert outcome(TRIALS[name], bait) == "done"


async def test_a_sandbox_that_leaks_is_refused_by_what_it_lets_through(
    prove: Prover, monkeypatch: pytest.MonkeyPatch
) -> None:
    confined = sandbox.options

    def leaky(spec: SandboxSpec, files: Mapping[Path, int], filter_descriptor: int) -> list[str]:
        return [option for option in confined(spec, files, filter_descriptor) if option != "--unshare-net"]

    monkeypatch.setattr(sandbox, "options", leaky)
    with pytest.raises(SandboxUnavailableError, match=r"does not hold: code inside can .*reach the host's ports"):
        await prove("standard", cgroups=Cgroups([]))


async def test_a_host_that_cannot_make_a_sandbox_says_why(prove: Prover, tmp_path: Path) -> None:
    refusing = tmp_path / "bwrap"
    refusing.write_text("#!/bin/sh\necho 'No permissions to create new namespace' >&2\nexit 1\n")
    refusing.chmod(0o755)
    prove.tools = dataclasses.replace(prove.tools, bwrap=refusing)
    with pytest.raises(SandboxUnavailableError, match="No permissions to create new namespace"):
        await prove("standard", cgroups=Cgroups([]))
