"""Programs that people use, unmodified and in a real sandbox: they find the proxy by the variables of the worker."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from runtime import sandbox
from runtime.cgroups import Cgroups, Limits
from runtime.environments import Environment
from runtime.process import Command, SandboxProcess
from runtime.sandbox import SandboxSpec, Tools
from runtime.variables import WorkerIdentity, worker_variables
from tests.fixtures.names import NameServer
from tests.runtime.conftest import TEST_UID
from tests.runtime.egress.conftest import Make, needs_root
from tests.runtime.egress.origin import Origin

pytestmark = needs_root

Run = Callable[..., Awaitable[list[str]]]
IDENTITY = WorkerIdentity(attempt="att_test", project="default", function="fn", concurrency=1)


@pytest.fixture
async def run_inside(
    tools: Tools, environment: Environment, cgroups: Cgroups, outlet: Make, secure: Origin, tmp_path: Path
) -> Run:
    """Run Python source as a worker that may reach allowed.test; returns the lines it printed."""

    async def run(source: str, *arguments: str) -> list[str]:
        await outlet("allowed.test", owner=TEST_UID)
        prefix = environment.interpreter.prefix
        read_only = [
            (prefix, prefix),
            (environment.path, sandbox.ENVIRONMENT),
            (tmp_path / "att_test/run", sandbox.RUN),
        ]
        read_only.append((secure.certificate, Path("/nodus/origin.crt")))
        variables, _ = worker_variables(IDENTITY, [("SSL_CERT_FILE", "/nodus/origin.crt")], proxied=True)
        python = sandbox.ENVIRONMENT / "bin" / "python"
        process = await SandboxProcess.start(
            SandboxSpec(uid=TEST_UID, read_only=read_only, scratch_bytes_max=32 << 20),
            Command(
                python=python,
                arguments=[str(python), "-u", "-c", source, *arguments],
                environment=variables,
                directory="/workspace",
            ),
            tools,
            cgroups.create("inside", Limits()),
        )
        try:
            async with asyncio.timeout(90):
                await process.wait()
            said = b""
            for descriptor in (process.stdout, process.stderr):
                while piece := os.read(descriptor, 65_536):
                    said += piece
        finally:
            process.close_output()
        return said.decode().splitlines()

    return run


PROGRAMS = {
    "curl": ["curl", "-sS", "--cacert", "/nodus/origin.crt"],
    "git": ["git", "-c", "http.sslCAInfo=/nodus/origin.crt", "ls-remote"],
}

URLLIB = """
import sys, urllib.request
try:
    print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())
except OSError as error:
    print(error)
"""

HTTPX = """
import sys, httpx
try:
    print(httpx.get(sys.argv[1], timeout=30).text)
except httpx.HTTPError as error:
    print(error)
"""

SUBPROCESS = """
import json, subprocess, sys
done = subprocess.run(json.loads(sys.argv[1]), capture_output=True, text=True, timeout=60)
print(done.stdout + done.stderr)
"""


@pytest.mark.parametrize("source", [URLLIB, HTTPX], ids=["urllib", "httpx"])
async def test_libraries_reach_a_listed_host(run_inside: Run, secure: Origin, source: str) -> None:
    assert await run_inside(source, f"https://allowed.test:{secure.port}/") == [
        f"hello from allowed.test:{secure.port}"
    ]


@pytest.mark.parametrize("source", [URLLIB, HTTPX], ids=["urllib", "httpx"])
async def test_libraries_show_why_another_is_refused(
    run_inside: Run, secure: Origin, source: str, names: tuple[NameServer, Path]
) -> None:
    names[0].names["other.test"] = ["127.0.0.1"]
    said = await run_inside(source, f"https://other.test:{secure.port}/")
    assert "403 the host other.test is not in spec.network.egress.allow" in said[0]


async def test_curl_reaches_what_is_listed_by_https_and_http(run_inside: Run, secure: Origin, plain: Origin) -> None:
    program = json.dumps(
        [*PROGRAMS["curl"], f"https://allowed.test:{secure.port}/", f"http://allowed.test:{plain.port}/"]
    )
    said = await run_inside(SUBPROCESS, program)
    assert said[0] == f"hello from allowed.test:{secure.port}hello from allowed.test:{plain.port}"


async def test_git_speaks_to_what_is_listed(run_inside: Run, secure: Origin) -> None:
    await run_inside(SUBPROCESS, json.dumps([*PROGRAMS["git"], f"https://allowed.test:{secure.port}/repository.git"]))
    assert secure.heads[0].startswith(b"GET /repository.git/info/refs?service=git-upload-pack ")


async def test_npm_speaks_to_what_is_listed(run_inside: Run, secure: Origin) -> None:
    registry = f"--registry=https://allowed.test:{secure.port}"
    program = ["npm", "view", "left-pad", registry, "--cafile=/nodus/origin.crt", "--fetch-retries=0"]
    await run_inside(SUBPROCESS, json.dumps(program))
    # It asks for news of itself as well.
    assert any(head.startswith(b"GET /left-pad ") for head in secure.heads)


AROUND = """
import json, socket, sys, urllib.request
def met(act):
    try:
        act()
    except OSError as error:
        return type(error).__name__
    return "nothing"
port = int(sys.argv[1])
print(json.dumps({
    "directly": met(lambda: socket.create_connection(("127.0.0.1", port), 5)),
    "by name": met(lambda: socket.getaddrinfo("allowed.test", port)),
    "with no proxy": met(lambda: urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
        f"http://allowed.test:{port}/", timeout=5)),
    "by datagram": met(lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"x", ("1.1.1.1", 53))),
    "raw": met(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, 1)),
    "as a packet": met(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "by ipv6": met(lambda: socket.create_connection(("2606:4700::1111", 443), 5)),
    "another socket": met(lambda: socket.socket(socket.AF_UNIX).connect("/run/nodus/../other/egress.sock")),
    "its abstract name": met(lambda: socket.socket(socket.AF_UNIX).connect("\\0nodus")),
}))
"""


async def test_there_is_no_way_around_the_proxy(run_inside: Run, plain: Origin) -> None:
    assert json.loads((await run_inside(AROUND, str(plain.port)))[0]) == {
        "directly": "ConnectionRefusedError",
        "by name": "gaierror",
        "with no proxy": "URLError",
        "by datagram": "OSError",
        "raw": "PermissionError",
        "as a packet": "OSError",
        "by ipv6": "OSError",
        "another socket": "FileNotFoundError",
        "its abstract name": "ConnectionRefusedError",
    }
    assert not plain.connections
