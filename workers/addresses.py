"""Where the API of one machine is reached, and which of the addresses is told to whom.

`up` listens on 127.0.0.1, in http and in https. What is handed out (URLs of blobs, the login page, the docs of errors)
names the operator's `public_url` where there is one, since only he knows what stands before us; processes and clients
of this machine use the listeners. Next: `up.py`, which writes them into settings and files.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from workers.configuration import PREFIX

HOST = "127.0.0.1"
HONOURED = frozenset({"public_url", "tls_certificate", "tls_key"})
"""Settings of which `up` takes the operator's word; the others that it decides cannot be given."""


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """The listeners, what the operator gave, and whether local clients shall use https."""

    http_port: int
    https_port: int
    given: str = ""
    """NODUS_SERVER_PUBLIC_URL; empty when there is none."""
    tls: bool = False

    @property
    def http(self) -> str:
        """The listener for the processes of this machine."""
        return f"http://{HOST}:{self.http_port}"

    @property
    def https(self) -> str:
        """For kubectl, which sends tokens over https only."""
        return self._given if self._given.startswith("https://") else f"https://{HOST}:{self.https_port}"

    @property
    def clients(self) -> str:
        """For the SDK and the CLI."""
        return self.https if self.tls else self.http

    @property
    def links(self) -> str:
        """The beginning of every URL that the API hands out."""
        return self._given or self.clients

    @property
    def needs_trust(self) -> bool:
        """Whether the SDK and the CLI meet our certificate, at once or by following a link."""
        return any(url.startswith("https://") for url in (self.clients, self.links))

    @property
    def _given(self) -> str:
        return self.given.rstrip("/")


def passed_over(environ: Mapping[str, str], decided: Iterable[str]) -> list[str]:
    """The variables of settings that the operator gave and `up` decides otherwise."""
    names = (f"{PREFIX}{name.upper()}" for name in decided if name not in HONOURED)
    return sorted(name for name in names if environ.get(name))
