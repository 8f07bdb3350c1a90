"""What `make check` promises about the repository itself."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from controlplane.settings import Settings
from tools import check_compose, check_size

ROOT = Path(__file__).resolve().parents[2]
UNITS = (
    "seconds",
    "bytes",
    "days",
    "hours",
    "milliseconds",
    "usd",
    "max",
    "fraction",
    "factor",
    "size",
    "default",
    "per_hour",
    "per_second",
)


def test_modules_and_functions_fit_in_a_head() -> None:
    assert [problem for path in check_size.modules() for problem in check_size.problems_of(path)] == []


@pytest.mark.parametrize("name", sorted(Settings.model_fields))
def test_every_setting_says_what_it_is_for(name: str) -> None:
    description = Settings.model_fields[name].description or ""
    assert description.endswith(".")
    assert len(description.split()) >= 3


@pytest.mark.parametrize(
    "name", sorted(name for name, field in Settings.model_fields.items() if field.annotation in (int, float))
)
def test_every_number_has_its_unit_in_its_name(name: str) -> None:
    assert name.endswith("_port") or any(unit in name.split("_") or name.endswith(unit) for unit in UNITS)


def test_settings_have_defaults_so_that_every_process_starts_without_a_file() -> None:
    assert [name for name, field in Settings.model_fields.items() if field.is_required()] == []


def test_the_compose_file_is_valid() -> None:
    assert check_compose.problems_of(yaml.safe_load(check_compose.FILE.read_text())) == []
    command = check_compose.compose_command()
    assert command is not None or not os.environ.get("CI"), "CI must have Compose"
    if command is not None:
        environment = {**os.environ, **dict.fromkeys(check_compose.SECRETS, "x")}
        done = subprocess.run(
            [*command, "-f", str(check_compose.FILE), "config", "-q"], env=environment, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()


def test_a_compose_file_with_a_misspelt_setting_or_no_health_check_is_told() -> None:
    service = {"environment": {"NODUS_SERVER_DATABSE_URL": "x"}}
    assert check_compose.problems_of({"services": {"api": service}}) == [
        "service api has no healthcheck",
        "service api sets NODUS_SERVER_DATABSE_URL, which no setting reads",
    ]


@pytest.mark.parametrize(
    ("public", "ports", "told"),
    [
        ({}, ["127.0.0.1:9000:9000"], ["which clients outside cannot look up"]),
        ({"NODUS_SERVER_S3_PUBLIC_URL": "https://blobs.example"}, ["9001:9001"], ["publishes no port for 9000"]),
        ({"NODUS_SERVER_S3_PUBLIC_URL": "https://blobs.example"}, ["443:9000"], []),
    ],
)
def test_a_compose_file_whose_blobs_no_client_can_reach_is_told(
    public: dict[str, str], ports: list[str], told: list[str]
) -> None:
    services = {
        "api": {"healthcheck": {}, "environment": {"NODUS_SERVER_S3_ENDPOINT": "minio:9000", **public}},
        "minio": {"healthcheck": {}, "ports": ports},
    }
    found = check_compose.problems_of({"services": services})
    assert len(found) == len(told)
    assert all(words in problem for words, problem in zip(told, found, strict=True))


@pytest.mark.parametrize(
    "name", ["requirements.lock", "requirements-dev.lock", "runtime/worker-requirements.lock", "tools/kubectl.lock"]
)
def test_locks_pin_every_package_by_hash_and_name_no_host(name: str) -> None:
    text = (ROOT / name).read_text()
    assert "://" not in text
    pins = re.findall(r"^[A-Za-z0-9][^ =]*==", text, flags=re.MULTILINE)
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.MULTILINE)[1:]
    assert len(pins) == len(blocks)
    assert all("--hash=sha256:" in block for block in blocks)


def test_the_development_lock_holds_the_servers_own_pins() -> None:
    def pins(name: str) -> set[str]:
        return set(re.findall(r"^([A-Za-z0-9][^ ]*==[^ ]+)", (ROOT / name).read_text(), flags=re.MULTILINE))

    assert pins("requirements.lock") <= pins("requirements-dev.lock")
