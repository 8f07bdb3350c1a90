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
    assert (found.level, found.memory, found.pids) == ("standard", "soft", "soft")
    assert [told.partition(":")[0] for told in found.missing] == ["no hard limit on memory", "no hard limit on pids"]
    with pytest.raises(SandboxUnavailableError, match="at level standard, and `isolation_min` asks for strong"):
        await prove("strong", cgroups=Cgroups([]))


async def test_a_host_with_neither_users_nor_groups_is_basic_and_names_all_it_lacks(prove: Prover) -> None:
    found = await prove("basic", cgroups=Cgroups([]), uid=None)
    assert (found.level, found.uid, found.memory) == ("basic", "shared", "soft")
    with pytest.raises(SandboxUnavailableError) as refused:
        await prove("standard", cgroups=Cgroups([]), uid=None)
    for part in ("run the node as root", "the memory controller", "the pids controller"):
        assert part in str(refused.value)


async def test_a_host_that_is_not_root_and_has_control_groups_is_standard(prove: Prover, cgroups: Cgroups) -> None:
    found = await prove("standard", cgroups=cgroups, uid=None)
    assert (found.level, found.uid, found.memory, found.pids) == ("standard", "shared", "hard", "hard")


async def test_a_limit_of_processes_that_does_not_hold_is_told(prove: Prover, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "limited", lambda command, limits, by_group: command)
    assert (await prove("basic", cgroups=Cgroups([]))).pids == "none"


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
