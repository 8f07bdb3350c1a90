"""Where a request comes from when proxies stand before the server.

Anybody can write an X-Forwarded-For. It is believed of the proxies that the operator names and of nobody else, one hop
at a time from the last to the first: what a trusted proxy says of its client is true, and what that client says of
another only if it is such a proxy as well. The audit log, the limits of addresses and the pages of logins take what
comes out of it for the source. Next: `middleware.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.types import ASGIApp, Receive, Scope, Send

Address = IPv4Address | IPv6Address
_SCHEMES = (b"http", b"https")


class Forwarding:
    """An ASGI application that tells another one the client and the scheme which trusted proxies name."""

    def __init__(self, app: ASGIApp, trusted: Collection[IPv4Network | IPv6Network]) -> None:
        self._app = app
        self._trusted = trusted

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        peer = _address(scope["client"][0]) if scope.get("client") else None
        if peer is not None and self._is_trusted(peer):
            headers: Sequence[tuple[bytes, bytes]] = scope["headers"]
            scope["client"] = (str(self.source(peer, _values(headers, b"x-forwarded-for"))), 0)
            scheme = next(reversed(list(_values(headers, b"x-forwarded-proto"))), b"").strip().lower()
            if scheme in _SCHEMES:
                scope["scheme"] = scheme.decode()
        await self._app(scope, receive, send)

    def source(self, peer: Address, forwarded: Iterator[bytes]) -> Address:
        """The last address of the way that is no trusted proxy's; of a hop that names no address, who passed it on."""
        for hop in reversed(b",".join(forwarded).split(b",")):
            if not self._is_trusted(peer):
                break
            before = _address(_without_port(hop.decode("latin-1").strip()))
            if before is None:
                break
            peer = before
        return peer

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


def _values(headers: Sequence[tuple[bytes, bytes]], name: bytes) -> Iterator[bytes]:
    return (value for header, value in headers if header == name)


def _without_port(hop: str) -> str:
    """`192.0.2.1:80` and `[2001:db8::1]:80` as some proxies write them; anything else as it is."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    host, _, port = hop.partition(":")
    return host if port.isdigit() and "." in host else hop


def _address(text: str) -> Address | None:
    try:
        address = ip_address(text)
    except ValueError:
        return None
    # What listens on both families sees clients of the older one in a range of the newer.
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
