"""What passes the egress proxy, what does not, and what its clients are told. The proxy is the one of a node."""

from __future__ import annotations

import asyncio
import contextlib
import os
import ssl
from pathlib import Path

import pytest

from runtime.egress.hello import server_name
from runtime.egress.limits import EgressLimits
from tests.fixtures.eventually import eventually
from tests.fixtures.names import NameServer
from tests.runtime.egress.conftest import HASTY, LIMITS, Make, Outlet, needs_root
from tests.runtime.egress.origin import Origin
from tests.runtime.proxied import answer_to

pytestmark = needs_root

Names = tuple[NameServer, Path]
TLS_ALERT = b"\x15\x03\x01\x00\x02\x02\x70"


def get(origin: Origin, host: str = "allowed.test", *, said: str | None = None, more: bytes = b"") -> bytes:
    """A plain request with a whole URL."""
    authority = f"{host}:{origin.port}"
    return f"GET http://{authority}/path?q=1 HTTP/1.1\r\nhost: {said or authority}\r\n".encode() + more + b"\r\n"


# What passes.


async def test_a_listed_name_is_reached_and_another_is_not(outlet: Make, secure: Origin, names: Names) -> None:
    out = await outlet("allowed.test", "*.parts.test")
    names[0].names |= {"a.parts.test": ["127.0.0.1"], "other.test": ["127.0.0.1"]}
    assert b"hello from allowed.test" in await out.fetch(secure, "allowed.test")
    assert b"hello from a.parts.test" in await out.fetch(secure, "a.parts.test")
    refused = await out.refusal(f"other.test:{secure.port}")
    assert refused == "403 the host other.test is not in spec.network.egress.allow"
    assert out.lines == [
        f"egress: allowed allowed.test:{secure.port}",
        f"egress: allowed a.parts.test:{secure.port}",
        f"egress: refused other.test:{secure.port}: the host other.test is not in spec.network.egress.allow",
    ]


async def test_a_refused_name_is_never_looked_up(outlet: Make, names: Names) -> None:
    out = await outlet("allowed.test")
    await out.refusal("secret-in-a-name.attacker.test:443")
    assert not names[0].asked


async def test_a_refusal_says_what_to_do(outlet: Make) -> None:
    out = await outlet("allowed.test")
    answer = await out.raw(b"CONNECT other.test:443 HTTP/1.1\r\nhost: other.test:443\r\n\r\n")
    assert b"proxy-status: nodus; error=http_request_denied\r\n" in answer
    assert b'Add "other.test" to `spec.network.egress.allow`.' in answer


async def test_open_reaches_any_name_and_any_protocol_but_no_private_address(
    outlet: Make, plain: Origin, names: Names
) -> None:
    out = await outlet(policy="Open")
    names[0].names |= {"any.test": ["127.0.0.1"], "inside.test": ["10.0.0.1"]}
    head, reader, writer = await out.connect(f"any.test:{plain.port}")
    assert head.startswith(b"HTTP/1.1 200 ")
    writer.write(b"GET / HTTP/1.1\r\nhost: not-tls\r\n\r\n")
    assert await reader.readuntil(b"not-tls")
    writer.close()
    assert "leads to a private network" in await out.refusal("inside.test:443")
    assert "port 25 is closed" in await out.refusal("any.test:25")


async def test_plain_http_is_passed_on_with_its_body(outlet: Make, plain: Origin) -> None:
    out = await outlet("allowed.test")
    body = b"x" * 200_000
    request = get(plain, more=b"content-length: %d\r\nx-kept: 1\r\nproxy-authorization: secret\r\n" % len(body))
    answer = await out.raw(request.replace(b"GET", b"POST", 1) + body)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert answer.endswith(f"hello from allowed.test:{plain.port}".encode())
    assert plain.heads[0].startswith(b"POST /path?q=1 HTTP/1.1\r\n")
    assert b"x-kept: 1" in plain.heads[0]
    assert b"secret" not in plain.heads[0]
    assert plain.bodies == [body]


# Attacks on what the policy says.


async def test_another_name_in_tls_than_in_the_tunnel_is_cut(outlet: Make, secure: Origin, names: Names) -> None:
    out = await outlet("allowed.test")
    with pytest.raises((ssl.SSLError, ConnectionError)):
        await out.fetch(secure, "allowed.test", sni="other.test")
    assert not secure.heads
    assert out.lines == [f"egress: refused allowed.test:{secure.port}: the TLS in it asks for the name 'other.test'"]


async def test_tls_without_a_name_is_cut(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test")
    _, reader, writer = await out.connect(f"allowed.test:{secure.port}")
    context = ssl.create_default_context()
    context.check_hostname = False
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    with pytest.raises(ssl.SSLWantReadError):
        context.wrap_bio(incoming, outgoing).do_handshake()
    hello = outgoing.read()
    assert server_name(hello) == ""
    writer.write(hello)
    assert await reader.read() == TLS_ALERT
    assert "asks for no name" in out.lines[0]


async def test_what_is_not_tls_is_cut_and_never_arrives(outlet: Make, plain: Origin) -> None:
    out = await outlet("allowed.test")
    for words in (b"GET / HTTP/1.1\r\nhost: x\r\n\r\n", b"SSH-2.0-x\r\n"):
        _, reader, writer = await out.connect(f"allowed.test:{plain.port}")
        writer.write(words)
        assert await reader.read() == TLS_ALERT
        writer.close()
    assert not plain.heads
    assert "only TLS may pass under an allow-list" in out.lines[0]


async def test_a_hello_in_small_pieces_is_read_to_its_end(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test")
    _, reader, writer = await out.connect(f"allowed.test:{secure.port}")
    context = ssl.create_default_context(cafile=str(secure.certificate))
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    session = context.wrap_bio(incoming, outgoing, server_hostname="allowed.test")
    with pytest.raises(ssl.SSLWantReadError):
        session.do_handshake()
    for byte in outgoing.read():
        writer.write(bytes([byte]))
        await writer.drain()
    async with asyncio.timeout(60):
        incoming.write(await reader.read(65_536))
    with contextlib.suppress(ssl.SSLWantReadError):
        session.do_handshake()
    assert session.cipher() is not None
    writer.close()


async def test_another_name_in_the_host_header_is_refused(outlet: Make, plain: Origin) -> None:
    out = await outlet("allowed.test")
    answer = await out.raw(get(plain, said="other.test"))
    assert answer.startswith(b"HTTP/1.1 403 the Host header names another host than the URL\r\n")
    assert not plain.connections


async def test_within_tls_another_host_header_passes_as_documented(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test")
    assert b"hello from other.test" in await out.fetch(secure, "allowed.test", said="other.test")


async def test_a_second_request_on_one_connection_goes_nowhere(outlet: Make, plain: Origin) -> None:
    out = await outlet("allowed.test")
    answer = await out.raw(get(plain) + get(plain, said="other.test"))
    assert answer.count(b"HTTP/1.1") == 1
    assert len(plain.heads) == 1


@pytest.mark.parametrize(
    ("address", "what"),
    [
        ("169.254.169.254", "a metadata service"),
        ("10.0.0.1", "a private network"),
        ("::ffff:127.0.0.1", "an IPv4 address in IPv6 clothes"),
        ("::ffff:169.254.169.254", "an IPv4 address in IPv6 clothes"),
        ("64:ff9b::a9fe:a9fe", "a metadata service"),
        ("2002:7f00:1::1", "an IPv4 address in IPv6 clothes"),
        ("fe80::1", "link-local"),
        ("0.0.0.0", "this host"),
    ],
)
async def test_an_allowed_name_that_leads_inside_is_refused(
    outlet: Make, names: Names, address: str, what: str
) -> None:
    out = await outlet("allowed.test")
    names[0].names["allowed.test"] = [address]
    assert f"403 allowed.test leads to {what}" in await out.refusal("allowed.test:443")


async def test_a_name_that_changes_between_two_questions_is_asked_once(
    outlet: Make, names: Names, secure: Origin
) -> None:
    """DNS rebinding: the second answer would lead to the metadata service."""
    out = await outlet("allowed.test")
    names[0].names["allowed.test"] = lambda nth: ["127.0.0.1"] if nth == 1 else ["169.254.169.254"]
    assert b"hello" in await out.fetch(secure, "allowed.test")
    assert names[0].asked["allowed.test"] == 1
    assert "metadata" in await out.refusal("allowed.test:443")


async def test_of_a_name_with_good_and_bad_addresses_only_the_good_are_tried(
    outlet: Make, names: Names, secure: Origin
) -> None:
    out = await outlet("allowed.test")
    names[0].names["allowed.test"] = ["169.254.169.254", "10.0.0.1", "127.0.0.1"]
    assert b"hello" in await out.fetch(secure, "allowed.test")


@pytest.mark.parametrize(
    ("authority", "answer"),
    [
        ("169.254.169.254:80", "403 169.254.169.254 leads to a metadata service"),
        ("127.0.0.1:443", "403 127.0.0.1 leads to loopback"),
        ("[::1]:443", "403 ::1 leads to loopback"),
        ("[::ffff:127.0.0.1]:443", "403 ::ffff:7f00:1 leads to an IPv4 address"),
        ("[64:ff9b::127.0.0.1]:443", "403 64:ff9b::7f00:1 leads to loopback"),
        ("2130706433:443", "400 '2130706433:443' is not a host name"),
        ("0177.0.0.1:443", "400 '0177.0.0.1:443' is not"),
        ("0x7f.1:443", "400 '0x7f.1:443' is not"),
        ("user@127.0.0.1:443", "400 'user@127.0.0.1:443' is not"),
        ("localhost:443", "403 localhost leads to loopback"),
        ("LOCALHOST.:443", "403 localhost leads to loopback"),
        ("any.test:99999", "400 'any.test:99999' is not"),
    ],
)
async def test_even_under_open_there_is_no_way_inside(outlet: Make, authority: str, answer: str) -> None:
    out = await outlet(policy="Open", opened=[])
    assert (await out.refusal(authority)).startswith(answer)


async def test_a_literal_address_passes_an_allow_list_only_when_listed(outlet: Make, secure: Origin) -> None:
    out = await outlet("127.0.0.1")
    assert "the address 127.0.0.2 is not in" in await out.refusal(f"127.0.0.2:{secure.port}")
    assert (await out.connect(f"127.0.0.1:{secure.port}"))[0].startswith(b"HTTP/1.1 200 ")


async def test_an_opened_range_does_not_lead_to_the_server_itself(outlet: Make, secure: Origin) -> None:
    """PostgreSQL, Temporal and the API listen in private ranges themselves."""
    out = await outlet("allowed.test", closed_endpoints=[("localhost", secure.port)])
    assert "is a part of the server itself" in await out.refusal(f"allowed.test:{secure.port}")


async def test_a_public_address_of_this_host_is_refused_as_well(outlet: Make, names: Names) -> None:
    """From inside, it would be reached past the firewall in front of it."""
    address = "93.184.215.77"
    os.system(f"ip address add {address}/32 dev lo")
    try:
        out = await outlet("allowed.test")
        names[0].names["allowed.test"] = [address]
        assert "403 allowed.test leads to this host" in await out.refusal("allowed.test:443")
    finally:
        os.system(f"ip address del {address}/32 dev lo")


# Attacks on the proxy.


@pytest.mark.parametrize(
    ("request_bytes", "answer"),
    [
        (b"GET / HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 this is a proxy"),
        (b"GET https://allowed.test/ HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 this is a proxy"),
        (b"GET ftp://allowed.test/ HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 this is a proxy"),
        (b"GET http://u:p@allowed.test/ HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 'u:p@allowed.test' is not"),
        (b"GET http://allowed.test\\@other.test/ HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 "),
        (b"GET http://allowed.test/ HTTP/1.1\r\nhost: allowed.test\r\nhost: other.test\r\n\r\n", b"400 "),
        (b"GET http://allowed.test/ HTTP/1.1\r\n\r\n", b"400 "),
        (b"CONNECT allowed.test HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 'allowed.test' is not"),
        (b"CONNECT http://allowed.test:443 HTTP/1.1\r\nhost: allowed.test\r\n\r\n", b"400 "),
        (b"CONNECT allowed.test\r\nX:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"400 "),
        (b"CONNECT allowed.test\x00:443 HTTP/1.1\r\nhost: x\r\n\r\n", b"400 "),
        (b"GET http://allowed.test/ HTTP/1.1\r\nhost: allowed.test\r\n folded\r\n\r\n", b"400 "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"400 "),
        (b"CONNECT allowed.test:443 HTTP/1.1\r\nhost: x\r\nx: " + b"a" * 20_000 + b"\r\n\r\n", b"431 "),
    ],
)
async def test_requests_that_are_not_plainly_one_thing_are_refused(
    outlet: Make, request_bytes: bytes, answer: bytes
) -> None:
    out = await outlet("allowed.test", "other.test")
    said = await out.raw(request_bytes, finish=True)
    assert said.startswith(b"HTTP/1.1 " + answer), said
    head = said.partition(b"\r\n\r\n")[0]
    assert head.split(b"\r\n")[1:] == [
        b"content-type: text/plain; charset=utf-8",
        head.split(b"\r\n")[2],
        b"connection: close",
        b"proxy-status: nodus; error=http_request_error",
    ]


async def test_bodies_framed_in_two_ways_never_arrive(outlet: Make, plain: Origin) -> None:
    out = await outlet("allowed.test")
    tricky = b"content-length: 4\r\ntransfer-encoding: chunked\r\n"
    smuggled = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: x\r\n\r\n"
    assert (await out.raw(get(plain, more=tricky) + smuggled)).startswith(b"HTTP/1.1 400 the request has two lengths")
    assert not plain.connections


async def test_a_request_that_trickles_in_is_given_up(outlet: Make) -> None:
    out = await outlet("allowed.test", limits=HASTY)
    trickle = (bytes([byte]) for byte in b"CONNECT allowed.test:443 HTTP/1.1\r\n" * 100)
    assert (await answer_to(trickle, out.socket, apart_seconds=0.05)).startswith(b"HTTP/1.1 408 ")


async def test_a_tunnel_that_never_begins_its_tls_is_closed(outlet: Make, secure: Origin) -> None:
    out = await outlet("allowed.test", limits=HASTY)
    _, reader, writer = await out.connect(f"allowed.test:{secure.port}")
    async with asyncio.timeout(60):
        assert await reader.read() == TLS_ALERT
    writer.close()


async def test_a_connection_on_which_nothing_moves_is_closed(outlet: Make, plain: Origin) -> None:
    out = await outlet(policy="Open", limits=HASTY)
    _, reader, writer = await out.connect(f"allowed.test:{plain.port}")
    async with asyncio.timeout(60):
        assert await reader.read() == b""
    writer.close()


async def test_a_worker_has_a_share_of_connections(outlet: Make) -> None:
    out = await outlet("allowed.test")
    held = [await asyncio.open_unix_connection(str(out.socket)) for _ in range(LIMITS.connections_max)]
    answer = await out.raw(b"")
    assert answer.startswith(b"HTTP/1.1 429 this worker has too many connections open\r\n")
    for _, writer in held:
        writer.close()
    await eventually(lambda: _answers(out))


async def _answers(out: Outlet) -> bool:
    # A connection that is over its share is closed at once, perhaps before the question is sent.
    return (await out.raw(b"CONNECT other.test:443 HTTP/1.1\r\nhost: other.test:443\r\n\r\n")).startswith(
        b"HTTP/1.1 403 "
    )


async def test_a_name_server_that_is_silent_costs_a_bounded_time_and_one_worker_only(
    outlet: Make, names: Names, secure: Origin
) -> None:
    first = await outlet("allowed.test", limits=HASTY)
    second = await outlet("127.0.0.1", gate=first.gate, attempt="att_second")
    names[0].silent = True
    slow = [asyncio.create_task(first.refusal("allowed.test:443")) for _ in range(6)]
    assert (await second.connect(f"127.0.0.1:{secure.port}"))[0].startswith(b"HTTP/1.1 200 ")
    assert {(await task)[:3] for task in slow} <= {"502", "504"}


async def test_traffic_is_held_to_its_rate(outlet: Make, plain: Origin) -> None:
    limits = EgressLimits(bytes_per_second_max=100_000)
    out = await outlet("allowed.test", limits=limits)
    body = b"x" * 300_000
    request = get(plain, more=b"content-length: %d\r\n" % len(body)).replace(b"GET", b"POST", 1)
    began = asyncio.get_running_loop().time()
    assert (await out.raw(request + body)).startswith(b"HTTP/1.1 200 ")
    # One second's worth may pass at once.
    assert asyncio.get_running_loop().time() - began > 1.9


async def test_decisions_without_end_become_a_bounded_log(outlet: Make) -> None:
    out = await outlet("allowed.test")
    for number in range(LIMITS.decisions_max + 5):
        await out.refusal(f"host-{number}.test:443")
        await out.refusal("repeated.test:443")
    await out.gate.close("att_test")
    assert len(out.lines) == LIMITS.decisions_max + 1
    assert out.lines[-2].endswith("(further ones are only counted)")
    assert out.lines[-1] == f"egress: 0 connections allowed, {2 * (LIMITS.decisions_max + 5)} refused"
