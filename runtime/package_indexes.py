"""Which hosts packages come from here: learned from the tools of this host, since each has its own index.

Image builds may reach these hosts and no others (`image_builder.py`), and an allow-list may name them by a preset
(`controlplane/kinds/egress.py`). No index is written down anywhere: uv and npm know theirs, from their own
configuration, and an index of Python packages says itself where its files are.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import structlog

PYTHON_PRESET = "python-packages"
NPM_PRESET = "npm-packages"
KNOWN_PROJECT = "nodus-compute"
"""A project that the index must have, because environments of workers are made from it."""
ASK_SECONDS_MAX = 20.0
AGAIN_SECONDS = 60.0
"""Between two questions without an answer: those who start meanwhile do not wait for the same silence."""
PAGE_BYTES_MAX = 8 << 20
"""The page of a project with ten thousand files takes three MiB."""
_ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
_INDEX_OPTION = re.compile(r"^--(?:extra-)?index-url (\S+)$", re.MULTILINE)
_LINK = re.compile(r"""<a\s[^>]*?href\s*=\s*["']([^"'#]+)""", re.IGNORECASE)

log = structlog.get_logger(__name__)


class _UnknownError(Exception):
    """A tool or an index did not answer."""


@dataclass(frozen=True, kw_only=True)
class IndexSettings:
    """What an operator says of the indexes: that of Python instead of uv's own, and hosts beside the learned ones."""

    python_url: str = ""
    python_hosts: Sequence[str] = ()
    npm_hosts: Sequence[str] = ()


class PackageIndexes:
    """The hosts behind each kind of packages, asked for when they are first wanted and until there is an answer."""

    def __init__(self, uv: Path, environ: Mapping[str, str], settings: IndexSettings) -> None:
        self.settings = settings
        self._uv = uv
        self._environ = dict(environ)
        self._learned: dict[str, tuple[str, ...]] = {}
        self._silent_until: dict[str, float] = {}
        self._asking = asyncio.Lock()

    async def hosts(self, presets: Sequence[str]) -> list[str]:
        """The hosts of those of `presets` that are kinds of packages; others have none here."""
        told = {PYTHON_PRESET: self.settings.python_hosts, NPM_PRESET: self.settings.npm_hosts}
        found: dict[str, None] = {}
        for preset in presets:
            if preset in told:
                found.update(dict.fromkeys([*await self._learn(preset), *told[preset]]))
        return list(found)

    async def _learn(self, preset: str) -> tuple[str, ...]:
        ask = {PYTHON_PRESET: self._python, NPM_PRESET: self._npm}[preset]
        async with self._asking:
            if preset not in self._learned and time.monotonic() >= self._silent_until.get(preset, 0):
                try:
                    self._learned[preset] = await asyncio.to_thread(ask)
                except _UnknownError as error:
                    self._silent_until[preset] = time.monotonic() + AGAIN_SECONDS
                    log.warning("the hosts of packages are not known", preset=preset, problem=str(error))
            return self._learned.get(preset, ())

    def _python(self) -> tuple[str, ...]:
        urls = [self.settings.python_url] if self.settings.python_url else self._indexes_of_uv()
        hosts = [host for url in urls for host in (_host(url), *_hosts_of_files(url))]
        return tuple(dict.fromkeys(host for host in hosts if host))

    def _indexes_of_uv(self) -> list[str]:
        # An empty list of requirements compiles to nothing but the indexes that would have been asked.
        program = [str(self._uv), "pip", "compile", "-", "--emit-index-url", "--no-header", "--quiet"]
        urls = _INDEX_OPTION.findall(_said(program, self._environ))
        return [url for url in urls if urlsplit(url).scheme in ("https", "http")]

    def _npm(self) -> tuple[str, ...]:
        npm = shutil.which("npm", path=self._environ.get("PATH"))
        if npm is None:
            if not self.settings.npm_hosts:
                raise _UnknownError("this host has no npm that could name its own; see NODUS_SERVER_EGRESS_NPM_HOSTS")
            return ()
        host = _host(_said([npm, "config", "get", "registry"], self._environ).strip())
        return (host,) if host else ()


def _said(program: Sequence[str], environ: Mapping[str, str]) -> str:
    try:
        done = subprocess.run(
            program,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=ASK_SECONDS_MAX,
            check=True,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise _UnknownError(f"{program[0]} did not say which index it uses: {error!r}") from error
    return done.stdout.decode(errors="replace")


def _hosts_of_files(index_url: str) -> list[str]:
    """Where an index keeps its files, by the page of one project that it has."""
    # `up` loads this module for the limits of a host and asks no index, so its start does not wait for a client.
    import httpx

    page = f"{index_url.rstrip('/')}/{KNOWN_PROJECT}/"
    body = bytearray()
    try:
        with httpx.stream(
            "GET", page, headers={"accept": _ACCEPT}, timeout=ASK_SECONDS_MAX, follow_redirects=True
        ) as answer:
            answer.raise_for_status()
            for piece in answer.iter_bytes():
                body += piece
                if len(body) > PAGE_BYTES_MAX:
                    raise ValueError(f"it is longer than {PAGE_BYTES_MAX} bytes")
            is_json = "+json" in answer.headers.get("content-type", "")
        links = [file["url"] for file in json.loads(body)["files"]] if is_json else _LINK.findall(body.decode())
        if not links:
            raise ValueError("it links to no file")
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, KeyError, TypeError) as error:
        raise _UnknownError(f"the index at {_host(index_url)} has no page of {KNOWN_PROJECT}: {error!r}") from error
    return [_host(urljoin(page, link)) for link in links]


def _host(url: str) -> str:
    """In lower case; empty for what has none, such as a file."""
    return (urlsplit(url).hostname or "").lower()
