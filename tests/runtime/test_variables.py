"""Which variables a worker starts with."""

from __future__ import annotations

import pytest

from runtime.variables import WorkerIdentity, worker_variables

IDENTITY = WorkerIdentity(attempt="att_1", project="default", function="hello-square", concurrency=4)


def test_the_public_worker_finds_its_function_and_the_api() -> None:
    variables, refused = worker_variables(IDENTITY, [])
    assert refused == []
    assert {name: value for name, value in variables.items() if name.startswith("NODUS_")} == {
        "NODUS_FUNCTION": "hello-square",
        "NODUS_PROJECT": "default",
        "NODUS_FUNCTION_CONCURRENCY": "4",
        "NODUS_ATTEMPT": "att_1",
        "NODUS_CODE_DIR": "/nodus/code",
        "NODUS_RUNTIME_SOCKET": "/run/nodus/api.sock",
    }
    assert variables["PYTHONUNBUFFERED"] == "1"
    assert variables["PYTHONPATH"] == "/workspace"


def test_nothing_of_the_servers_environment_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "secret")
    variables, _ = worker_variables(IDENTITY, [])
    assert "DATABASE_URL" not in variables


@pytest.mark.parametrize(
    "name", ["NODUS_API_KEY", "NODUS_API_URL", "NODUS_RUNTIME_SOCKET", "NODUS_ATTEMPT", "", "A=B", "A\0"]
)
def test_names_of_the_servers_own_and_malformed_ones_are_refused(name: str) -> None:
    plain, _ = worker_variables(IDENTITY, [])
    assert worker_variables(IDENTITY, [(name, "x")]) == (plain, [name])


def test_users_may_change_what_any_program_expects() -> None:
    variables, _ = worker_variables(
        IDENTITY, [("PATH", "/opt/bin"), ("PYTHONPATH", "/opt/lib"), ("A", "1"), ("A", "2")]
    )
    assert variables["PATH"] == "/opt/bin"
    assert variables["PYTHONPATH"] == "/opt/lib:/workspace"
    assert variables["A"] == "2"
