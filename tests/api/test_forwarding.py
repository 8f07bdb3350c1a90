"""Whose word counts about where a request comes from."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from ipaddress import ip_address, ip_network

import httpx
import pytest

from api.forwarding import Forwarding
from tests.fixtures.app import ROOT, ServedApi, client_of, listening
from tests.fixtures.eventually import eventually

PROXIES = [ip_network("10.0.0.0/8"), ip_network("2001:db8::1/128")]


async def nothing(*_: object) -> None:
    """An application."""


@pytest.mark.parametrize(
    ("peer", "forwarded", "source"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", [b"192.0.2.7"], "192.0.2.7"),
        ("192.0.2.1", [b"192.0.2.7"], "192.0.2.1"),
        ("10.0.0.1", [b"198.51.100.1, 192.0.2.7"], "192.0.2.7"),  # what that client says of another
        ("10.0.0.1", [b"198.51.100.1, 192.0.2.7, 10.9.9.9"], "192.0.2.7"),
        ("10.0.0.1", [b"198.51.100.1", b"192.0.2.7"], "192.0.2.7"),
        ("10.0.0.1", [b"10.0.0.3, 10.0.0.2"], "10.0.0.3"),
        ("10.0.0.1", [b"192.0.2.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", [b"192.0.2.7, \xff\x00<b>, 10.0.0.2"], "10.0.0.2"),
        ("10.0.0.1", [b""], "10.0.0.1"),
        ("10.0.0.1", [b"192.0.2.7:4711"], "192.0.2.7"),
        ("10.0.0.1", [b"[2001:db8::7]:4711"], "2001:db8::7"),
        ("2001:db8::1", [b"2001:db8::7"], "2001:db8::7"),
        ("10.0.0.1", [b"::ffff:192.0.2.7"], "192.0.2.7"),
    ],
)
def test_the_source_is_the_last_hop_that_no_trusted_proxy_made(peer: str, forwarded: list[bytes], source: str) -> None:
    assert str(Forwarding(nothing, PROXIES).source(ip_address(peer), iter(forwarded))) == source


@pytest.fixture
async def proxy(project: ServedApi) -> AsyncIterator[httpx.AsyncClient]:
    """A client whose word is believed."""
    settings = project.deps.settings.model_copy(update={"trusted_proxies": [ip_network("127.0.0.0/8")]})
    async with (
        listening(replace(project.deps, settings=settings)) as url,
        client_of(url, project.key) as client,
    ):
        yield client


async def test_a_trusted_proxy_tells_source_and_scheme(project: ServedApi, proxy: httpx.AsyncClient) -> None:
    told = {"X-Forwarded-For": "198.51.100.1, 192.0.2.7", "X-Forwarded-Proto": "https", "Host": "nodus.example"}
    absent = await proxy.delete(f"{project.path}/apps/nope", headers=told)
    assert absent.json()["docs"] == "https://nodus.example/docs/errors/NotFound"
    assert await source_of(project, "DELETE") == "192.0.2.7"


async def source_of(api: ServedApi, verb: str) -> str:
    """Where the project's only event of the verb came from."""

    async def found() -> list[dict[str, str]]:
        query = {"fieldSelector": f"project={api.project_name},verb={verb.lower()}"}
        items: list[dict[str, str]] = (await api.client.get(f"{ROOT}/auditevents", params=query)).json()["items"]
        return items

    [event] = await eventually(found)
    source: str = event["sourceAddress"]
    return source
