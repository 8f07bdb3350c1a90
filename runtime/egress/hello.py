"""The server name in a TLS ClientHello, read without taking part in the conversation.

Under an allow-list the proxy must know that a tunnel goes to the name it was opened for: a provider that serves many
names on one address would otherwise be a door to all of them. TLS says the name in its first message, in the clear
(RFC 8446 §4.1.2, RFC 6066 §3). That message may come in many records and many more packets; what is not a ClientHello
is not TLS. With Encrypted Client Hello the name outside is the one that counts; the one inside stays hidden, and so
does the `Host` header of a request within TLS. A host that serves such requests for another name is a way past the
list: list only hosts that are trusted not to.
"""

from __future__ import annotations

HELLO_BYTES_MAX = 32_768
"""A ClientHello with key shares of post-quantum cryptography takes 2 KiB; tickets may add some."""
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_HOST_NAME = 0
_RECORD_BYTES_MAX = 16_384
_RECORDS_MAX = 64
"""Some clients cut their hello into pieces; every piece is read again with each packet, so there is an end to it."""


class NotTlsError(Exception):
    """The bytes do not begin a TLS connection; the message says how one sees."""


def server_name(data: bytes) -> str | None:
    """The name in the ClientHello that `data` begins with, "" when it has none, None when more bytes must come first.

    Raises NotTlsError.
    """
    message = _handshake_bytes(data)
    if message[:1] not in (b"", bytes([_CLIENT_HELLO])):
        raise NotTlsError("the first message is not a ClientHello")
    size = int.from_bytes(message[1:4], "big")
    if size > HELLO_BYTES_MAX:
        raise NotTlsError(f"the ClientHello is longer than {HELLO_BYTES_MAX} bytes")
    if not _is_whole(message):
        return None
    return _name_in(_Reader(message[4 : 4 + size]))


def _handshake_bytes(data: bytes) -> bytes:
    """What the records at the start of `data` carry together; the last of them may not be whole."""
    carried = bytearray()
    at = records = 0
    while at < len(data) and len(carried) < HELLO_BYTES_MAX + 4:
        header = data[at : at + 5]
        records += 1
        if header[0] != _HANDSHAKE or header[1:2] not in (b"", b"\x03"):
            # Other records may follow the hello of a client that sends data early; they are not looked at.
            if _is_whole(bytes(carried)):
                break
            raise NotTlsError("the first bytes are not those of TLS")
        size = int.from_bytes(header[3:5], "big")
        if len(header) == 5 and not 0 < size <= _RECORD_BYTES_MAX:
            raise NotTlsError("a record has an impossible length")
        if records > _RECORDS_MAX and not _is_whole(bytes(carried)):
            raise NotTlsError("the ClientHello comes in too many records")
        carried += data[at + 5 : at + 5 + size]
        at += 5 + size
    return bytes(carried)


def _is_whole(message: bytes) -> bool:
    return len(message) >= 4 and len(message) >= 4 + int.from_bytes(message[1:4], "big")


class _Reader:
    """Takes fields off the front of some bytes; NotTlsError when there are fewer."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def empty(self) -> bool:
        return not self._data

    def rest(self) -> bytes:
        return self.take(len(self._data))

    def take(self, count: int) -> bytes:
        if len(self._data) < count:
            raise NotTlsError("the ClientHello ends too early")
        taken, self._data = self._data[:count], self._data[count:]
        return taken

    def number(self, count: int) -> int:
        return int.from_bytes(self.take(count), "big")

    def vector(self, length_bytes: int) -> _Reader:
        """A field that begins with its own length."""
        return _Reader(self.take(self.number(length_bytes)))


def _name_in(hello: _Reader) -> str:
    hello.take(2 + 32)  # version and random
    for length_bytes in (1, 2, 1):  # session id, cipher suites, compression methods
        hello.vector(length_bytes)
    if hello.empty:
        return ""
    names: list[str] = []
    extensions = hello.vector(2)
    while not extensions.empty:
        kind, content = extensions.number(2), extensions.vector(2)
        if kind == _SERVER_NAME:
            names += _host_names(content)
    if len(names) > 1:
        raise NotTlsError("the ClientHello names two servers")
    return names[0] if names else ""


def _host_names(content: _Reader) -> list[str]:
    listed = content.vector(2)
    names = []
    while not listed.empty:
        kind, name = listed.number(1), listed.vector(2)
        if kind == _HOST_NAME:
            names.append(name.rest().decode("ascii", "replace"))
    return names
