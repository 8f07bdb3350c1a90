"""The name in a ClientHello, of real TLS clients and of what pretends to be one."""

from __future__ import annotations

import ssl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.egress.hello import HELLO_BYTES_MAX, NotTlsError, server_name


def hello(name: str | None, **changes: ssl.TLSVersion) -> bytes:
    """What OpenSSL sends first."""
    context = ssl.create_default_context()
    context.check_hostname = name is not None
    for setting, value in changes.items():
        setattr(context, setting, value)
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname=name)
    with pytest.raises(ssl.SSLWantReadError):
        connection.do_handshake()
    return outgoing.read()


def in_records(message: bytes, size: int) -> bytes:
    """A handshake message cut into records of `size` bytes."""
    pieces = [message[at : at + size] for at in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + len(piece).to_bytes(2, "big") + piece for piece in pieces)


def message(*names: tuple[int, bytes], extensions: bytes | None = None) -> bytes:
    """A ClientHello by hand."""
    if extensions is None:
        listed = b"".join(bytes([kind]) + len(name).to_bytes(2, "big") + name for kind, name in names)
        content = len(listed).to_bytes(2, "big") + listed
        extensions = b"\0\0" + len(content).to_bytes(2, "big") + content
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\2\x13\x01" + b"\1\0" + len(extensions).to_bytes(2, "big") + extensions
    return b"\1" + len(body).to_bytes(3, "big") + body


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_the_name_of_a_real_client(version: ssl.TLSVersion) -> None:
    assert server_name(hello("files.example.org", maximum_version=version)) == "files.example.org"


def test_a_client_that_names_nobody() -> None:
    assert server_name(hello(None)) == ""


def test_every_beginning_asks_for_more_and_none_is_taken_for_a_whole() -> None:
    whole = hello("files.example.org")
    assert {server_name(whole[:size]) for size in range(len(whole))} == {None}
    assert server_name(whole + b"\x14\x03\x03\0\1\1") == "files.example.org"


@pytest.mark.parametrize("size", [16, 33, 100])
def test_a_hello_in_many_records(size: int) -> None:
    cut = in_records(hello("files.example.org")[5:], size)
    assert server_name(cut) == "files.example.org"
    assert server_name(cut[:-1]) is None


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not those of TLS"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not those of TLS"),
        (b"\x80\x2e\1\3\1", "not those of TLS"),  # SSL 2
        (b"\x16\x02\0\0\5", "not those of TLS"),
        (b"\x16\x03\1\0\0", "impossible length"),
        (b"\x16\x03\1\xff\xff", "impossible length"),
        (b"\x16\x03\1\0\4\2\0\0\0", "not a ClientHello"),
        (in_records(b"\1" + (HELLO_BYTES_MAX + 1).to_bytes(3, "big"), 4), "longer than"),
        (in_records(message((0, b"a" * 200)), 2), "too many records"),
        (in_records(message((0, b"a.test"), (0, b"b.test")), 500), "names two servers"),
        (in_records(message(extensions=b"\0\0\0\x09\0\7\0\0\4a"), 500), "ends too early"),
        (in_records(b"\1\0\0\3abc", 500), "ends too early"),
    ],
)
def test_what_is_not_a_hello_is_named(data: bytes, why: str) -> None:
    with pytest.raises(NotTlsError, match=why):
        server_name(data)


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(noise: bytes) -> None:
    for data in (noise, b"\x16\x03\1\1\x2c" + noise, in_records(message(extensions=noise), 16_000)):
        try:
            found = server_name(data)
        except NotTlsError:
            continue
        assert found is None or isinstance(found, str)
