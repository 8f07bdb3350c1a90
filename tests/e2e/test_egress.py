"""What Functions reach, as their author sees it: the public SDK against a whole system, with names of the outside."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import anyio.to_thread
import pytest

from tests.fixtures.eventually import eventually
from tests.fixtures.names import name_server
from tests.fixtures.system import APPS, System
from tests.runtime.egress.origin import Origin, origin_in

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(400),
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="a name server needs port 53"),
]


CALLER = """
import nodus
for name in ("listed", "denied", "unset"):
    function = nodus.Function.from_name("outward", name)
    for host in ("allowed.test", "other.test", "inside.test"):
        print(f"{{name}} {{host}}:", function.remote(f"{{host}}:{port}"))
"""


@pytest.fixture
async def outside(tmp_path: Path) -> AsyncIterator[tuple[Origin, Path]]:
    """A web server with two names, a third name that leads to the metadata service, and their name server."""
    async with name_server(tmp_path) as (server, resolv_conf), origin_in(tmp_path, tls=False) as origin:
        server.names |= {"allowed.test": ["127.0.0.1"], "other.test": ["127.0.0.1"], "inside.test": ["169.254.169.254"]}
        yield origin, resolv_conf


async def test_a_function_reaches_what_its_policy_lists_and_its_log_tells(
    outside: tuple[Origin, Path], tmp_path: Path
) -> None:
    origin, resolv_conf = outside
    settings = {
        "egress_ports": json.dumps([80, origin.port]),
        "egress_private_ranges": json.dumps(["127.0.0.0/8"]),
        "egress_resolv_conf": str(resolv_conf),
    }
    system = System(tmp_path / "data", settings)
    try:
        await anyio.to_thread.run_sync(system.start)
        await anyio.to_thread.run_sync(lambda: system.nodus("deploy", str(APPS / "outward" / "outward.py")))
        program = CALLER.format(port=origin.port)
        told = (await anyio.to_thread.run_sync(lambda: system.python(program, timeout=240))).splitlines()
        reached, port = f"hello from {{}}:{origin.port}", origin.port
        refused = "403 {} leads to a metadata service of a cloud, which workers do not reach"
        assert told == [
            f"listed allowed.test: {reached.format('allowed.test')}",
            "listed other.test: 403 the host other.test is not in spec.network.egress.allow",
            "listed inside.test: 403 the host inside.test is not in spec.network.egress.allow",
            *(f"denied {name}.test: URLError" for name in ("allowed", "other", "inside")),
            f"unset allowed.test: {reached.format('allowed.test')}",
            f"unset other.test: {reached.format('other.test')}",
            f"unset inside.test: {refused.format('inside.test')}",
        ]
        wanted = f"egress: refused http://other.test:{port}: the host other.test is not in spec.network.egress.allow"
        await eventually(lambda: wanted in system.nodus("logs", "function/outward-listed"))
        promised = [one["status"].get("guarantees", {}) for one in system.objects("attempts")]
        # A worker that has just been asked for promises nothing yet.
        assert {guarantees["network"] for guarantees in promised if guarantees} == {"none", "proxy"}
    finally:
        await anyio.to_thread.run_sync(system.stop)
