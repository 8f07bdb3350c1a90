"""The tour of `make run`, through the public command line, and what it leaves behind."""

from __future__ import annotations

import re
import subprocess
from decimal import Decimal

import httpx
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.system import OBJECTS, ROOT, System

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def tour(shared_system: System) -> subprocess.CompletedProcess[str]:
    return shared_system.run("nodus", "run", str(ROOT / "examples" / "hello.py"), cwd=ROOT, timeout=240)


@pytest.fixture(scope="module")
def told(tour: subprocess.CompletedProcess[str]) -> str:
    return tour.stdout


@pytest.fixture(scope="module")
def app(tour: subprocess.CompletedProcess[str]) -> str:
    """The ephemeral App of this run; other tests run and deploy the same file."""
    names = set(re.findall(r"nodus: (hello-[0-9a-f]{6})-\w+ has no warm worker", tour.stderr))
    assert len(names) == 1, tour.stderr
    return str(names.pop())


def test_a_call_its_result_and_its_log_line_reach_the_caller(told: str) -> None:
    assert "hello, world" in told
    assert "greeting world, in the worker" in told


def test_spawned_calls_are_collected_later(told: str) -> None:
    assert "hello, Ada, hello, Grace" in told


def test_a_map_of_100_inputs_keeps_their_order(told: str) -> None:
    assert "[0, 1, 4, 9, 16] … 9801" in told


def test_an_exception_arrives_as_its_own_type_with_the_remote_traceback(told: str) -> None:
    assert "ValueError: invalid literal for int() with base 10: 'twelve'" in told
    assert re.search(r'File ".*hello\.py", line \d+, in parse', told)


def test_a_class_is_entered_and_keeps_its_state(told: str) -> None:
    assert "counter opened, in the worker" in told
    assert "105 112" in told


def test_a_result_of_one_megabyte_arrives(told: str) -> None:
    assert "1,000,000 bytes" in told


async def test_the_app_and_all_it_owns_are_gone_but_its_calls_tell_what_they_cost(app: str, system: System) -> None:
    await eventually(lambda: app not in [one["metadata"]["name"] for one in system.objects("apps")])
    await eventually(
        lambda: not [f for f in system.objects("functions") if f["metadata"]["name"].startswith(f"{app}-")]
    )
    calls = [call for call in system.objects("functioncalls") if call["spec"]["function"].startswith(f"{app}-")]
    assert len(calls) == 1 + 2 + 100 + 1 + 2 + 1
    assert {call["status"]["phase"] for call in calls} == {"Succeeded", "Failed"}
    assert all(Decimal(call["status"]["costUSD"]) > 0 for call in calls)


def test_nothing_of_the_user_is_readable_without_a_key(system: System) -> None:
    url = system.variables["NODUS_API_URL"]
    assert httpx.get(f"{url}{OBJECTS}/functioncalls", trust_env=False).status_code == httpx.codes.UNAUTHORIZED
