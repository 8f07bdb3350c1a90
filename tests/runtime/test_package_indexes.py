"""Where packages come from, as the real uv and indexes of this host's own say it."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from runtime.package_indexes import KNOWN_PROJECT, NPM_PRESET, PYTHON_PRESET, IndexSettings, PackageIndexes
from runtime.pythons import find_uv

Serve = Callable[[str, str], str]
FILES = ["https://files.example.org/a.whl", "https://files.example.org/b.whl", "https://More.example.org/c.whl"]
JSON = json.dumps({"files": [{"url": url} for url in FILES]})
HTML = "".join(f'<a data-x="1" href="{url}#sha256=0">x</a>' for url in [*FILES, "../here.whl"])


class Pages(BaseHTTPRequestHandler):
    """One index with one project."""

    content: str
    content_type: str
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200 if self.path == f"/simple/{KNOWN_PROJECT}/" else 404)
        self.send_header("content-type", self.content_type)
        self.end_headers()
        self.wfile.write(self.content.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what a test prints."""


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def serve(asked: list[str]) -> Iterator[Serve]:
    """Serve an index; returns its URL."""
    servers = []

    def begin(content: str, content_type: str) -> str:
        handler = type("Index", (Pages,), {"content": content, "content_type": content_type, "asked": asked})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/simple"

    yield begin
    for server in servers:
        server.shutdown()
        server.server_close()


def indexes(settings: IndexSettings | None = None, **environ: str) -> PackageIndexes:
    return PackageIndexes(find_uv(os.environ), {**os.environ, **environ}, settings or IndexSettings())


@pytest.mark.parametrize(
    ("content", "content_type"), [(JSON, "application/vnd.pypi.simple.v1+json"), (HTML, "text/html")]
)
async def test_the_index_of_uv_and_the_hosts_of_its_files_are_learned_once(
    serve: Serve, asked: list[str], content: str, content_type: str
) -> None:
    known = indexes(UV_DEFAULT_INDEX=serve(content, content_type))
    found = await known.hosts([PYTHON_PRESET])
    assert found == ["127.0.0.1", "files.example.org", "more.example.org"]
    assert await known.hosts([PYTHON_PRESET]) == found
    assert len(asked) == 1


async def test_an_operators_index_takes_the_place_of_uvs_and_his_hosts_come_beside_it(serve: Serve) -> None:
    url = serve(JSON, "application/vnd.pypi.simple.v1+json")
    known = indexes(IndexSettings(python_url=url, python_hosts=["wheels.example.org", "files.example.org"]))
    found = await known.hosts([PYTHON_PRESET])
    assert found == ["127.0.0.1", "files.example.org", "more.example.org", "wheels.example.org"]


async def test_an_index_that_does_not_answer_is_not_asked_by_everybody(serve: Serve, asked: list[str]) -> None:
    known = indexes(IndexSettings(python_url=serve("{}", "application/json"), python_hosts=["wheels.example.org"]))
    assert [await known.hosts([PYTHON_PRESET]) for _ in range(3)] == [["wheels.example.org"]] * 3
    assert len(asked) == 1


async def test_npm_names_its_own_host(tmp_path: Path) -> None:
    known = indexes(IndexSettings(npm_hosts=["tarballs.example.org"]), npm_config_registry="https://npm.example.org/x/")
    assert await known.hosts([NPM_PRESET]) == ["npm.example.org", "tarballs.example.org"]
    without = indexes(IndexSettings(npm_hosts=["tarballs.example.org"]), PATH=str(tmp_path))
    assert await without.hosts([NPM_PRESET]) == ["tarballs.example.org"]


async def test_presets_that_are_no_packages_have_no_hosts_here() -> None:
    assert await indexes().hosts(["huggingface", "unknown"]) == []
