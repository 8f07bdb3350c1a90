"""Judge docker-compose.yml: Compose's own check where it is installed, that it speaks of settings that exist, and that
clients outside can follow the addresses they are given.

`make check` runs this; CI installs Compose, so there its word counts always.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

from controlplane.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docker-compose.yml"
SECRETS = ("NODUS_SECRET_KEY", "NODUS_NODE_TOKEN", "NODUS_DATABASE_PASSWORD", "NODUS_S3_SECRET_KEY")
ONE_SHOT = frozenset({"init", "temporal-schema", "temporal-namespace"})
"""Services that end; all others must say how their health is seen."""


def compose_command() -> list[str] | None:
    """Compose, as a program of its own or as a plug-in of docker."""
    if shutil.which("docker-compose"):
        return ["docker-compose"]
    if shutil.which("docker"):
        plugin = subprocess.run(["docker", "compose", "version"], capture_output=True, check=False)
        return ["docker", "compose"] if plugin.returncode == 0 else None
    return None


def problems_of(document: dict[str, Any]) -> list[str]:
    """What Compose cannot know: settings that do not exist, services without a health check, names that only they
    know given to clients."""
    known = {f"NODUS_SERVER_{name.upper()}" for name in Settings.model_fields}
    found = []
    for name, service in document["services"].items():
        if name not in ONE_SHOT and "healthcheck" not in service:
            found.append(f"service {name} has no healthcheck")
        ours = (variable for variable in service.get("environment", {}) if variable.startswith("NODUS_SERVER_"))
        found += [
            f"service {name} sets {variable}, which no setting reads" for variable in ours if variable not in known
        ]
        found += _unreachable_storage(name, service.get("environment", {}), document["services"])
    return found


def _unreachable_storage(name: str, environment: dict[str, Any], services: dict[str, Any]) -> list[str]:
    """URLs of blobs are signed for a host, and only services can look up the name of a service."""
    host, _, port = environment.get("NODUS_SERVER_S3_ENDPOINT", "").partition(":")
    if host not in services:
        return []
    if not environment.get("NODUS_SERVER_S3_PUBLIC_URL"):
        return [
            f"service {name} keeps blobs at {host}, which clients outside cannot look up: set "
            "NODUS_SERVER_S3_PUBLIC_URL to where they reach it"
        ]
    if not any(str(published).rpartition(":")[2] == port for published in services[host].get("ports", [])):
        return [f"service {host} publishes no port for {port}, at which clients outside send and fetch blobs"]
    return []


def main() -> None:
    """Print every problem; exit 1 when there is one, or when CI has no Compose."""
    found = problems_of(yaml.safe_load(FILE.read_text()))
    command = compose_command()
    if command is not None:
        environment = {**os.environ, **dict.fromkeys(SECRETS, "checked")}
        done = subprocess.run(
            [*command, "-f", str(FILE), "config", "-q"], capture_output=True, text=True, env=environment, check=False
        )
        if done.returncode != 0:
            found.append(done.stderr.strip())
    elif os.environ.get("CI"):
        found.append("Compose is not installed, and CI must ask it: apt-get install docker-compose")
    for problem in found:
        print(f"docker-compose.yml: {problem}")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
