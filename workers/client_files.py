"""What a user needs to reach the system: shell assignments for the public SDK and CLI, a kubeconfig for kubectl.

Both hold the admin key, so both are readable by their owner alone. `up` writes them when the system is ready, and only
then: scripts wait for `client.env`, which a stop and the next start take away.
"""

from __future__ import annotations

import base64
import shlex
from dataclasses import dataclass
from pathlib import Path

import yaml

from workers.state import write_private

CLUSTER = "nodus"
PROJECT = "default"
"""The project that the first start makes; equal to the one in `controlplane/identity/bootstrap.py`."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Where the API is and who the user is."""

    api_url: str
    https_url: str
    api_key: str
    project: str = PROJECT
    trusted: Path | None = None
    """Certificates that the SDK and CLI must trust when `api_url` is https; None leaves it to the system."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of the public SDK and CLI."""
        told = {"NODUS_API_URL": self.api_url, "NODUS_API_KEY": self.api_key, "NODUS_PROJECT": self.project}
        return told if self.trusted is None else {**told, "SSL_CERT_FILE": str(self.trusted)}


def write_client_env(path: Path, access: Access) -> None:
    """Assignments that `. client.env` or `set -a; . client.env` reads."""
    lines = (f"{name}={shlex.quote(value)}\n" for name, value in access.variables.items())
    write_private(path, "".join(lines))


def write_kubeconfig(path: Path, access: Access, authority: Path) -> None:
    """A kubeconfig over https; Go clients send no token over plain http."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": CLUSTER,
                "cluster": {
                    "server": access.https_url,
                    "certificate-authority-data": base64.b64encode(authority.read_bytes()).decode(),
                },
            }
        ],
        "users": [{"name": CLUSTER, "user": {"token": access.api_key}}],
        "contexts": [{"name": CLUSTER, "context": {"cluster": CLUSTER, "user": CLUSTER, "namespace": access.project}}],
        "current-context": CLUSTER,
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False))
