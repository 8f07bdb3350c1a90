"""Which addresses the proxy connects to: public ones, and those private ones that the operator has opened.

A name says where a worker wants to go, the address says where it would arrive, and whoever owns a name chooses the
address. So every address is judged after the name was resolved, and the connection goes to the address that was judged:
asking again would let the second answer differ (DNS rebinding). What is not known to be public is refused. The tables
are those of IANA's special-purpose registries (RFC 6890) and of what clouds answer on from inside.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

_NAT64 = IPv6Network("64:ff9b::/96")
"""The well-known prefix (RFC 6052): on a host that has only IPv6, an IPv4 address within it is how to reach that."""
_GLOBAL_UNICAST = IPv6Network("2000::/3")

_ALWAYS_REFUSED: Sequence[tuple[Network, str]] = [
    (ip_network(text), "a metadata service of a cloud")
    for text in (
        "169.254.0.0/16",  # AWS, Google, Azure and most others, with what containers of AWS ask at .170.2
        "fd00:ec2::/32",  # AWS over IPv6
        "fd20:ce::/32",  # Google over IPv6
        "100.100.100.200/32",  # Alibaba
        "168.63.129.16/32",  # Azure's host, on a public address
        "192.0.0.192/32",  # Oracle
    )
]
"""Who reaches these can act as the machine: no setting opens them."""

_SPECIAL: Sequence[tuple[Network, str]] = [
    (ip_network(text), what)
    for text, what in (
        ("0.0.0.0/8", "this host"),
        ("10.0.0.0/8", "a private network"),
        ("100.64.0.0/10", "a carrier's shared network"),
        ("127.0.0.0/8", "loopback"),
        ("172.16.0.0/12", "a private network"),
        ("192.0.0.0/24", "a protocol's own network"),
        ("192.0.2.0/24", "a network of documentation"),
        ("192.88.99.0/24", "a relay of 6to4"),
        ("192.168.0.0/16", "a private network"),
        ("198.18.0.0/15", "a network of benchmarks"),
        ("198.51.100.0/24", "a network of documentation"),
        ("203.0.113.0/24", "a network of documentation"),
        ("224.0.0.0/4", "multicast"),
        ("240.0.0.0/4", "a reserved network"),
        ("::1/128", "loopback"),
        ("::ffff:0:0/96", "an IPv4 address in IPv6 clothes"),
        ("2001::/23", "a protocol's own network"),  # Teredo among them, which embeds IPv4 addresses
        ("2001:db8::/32", "a network of documentation"),
        ("2002::/16", "an IPv4 address in IPv6 clothes"),
        ("3fff::/20", "a network of documentation"),
        ("fc00::/7", "a private network"),
        ("fe80::/10", "link-local"),
        ("ff00::/8", "multicast"),
    )
]


def refusal(address: Address, opened: Sequence[Network]) -> str | None:
    """What makes `address` one that workers must not reach, in words; None when they may.

    `opened` are ranges that the operator allows although they are not public.
    """
    if address.version == 6 and address in _NAT64:
        return refusal(IPv4Address(int(address) & 0xFFFFFFFF), opened)
    for network, what in _ALWAYS_REFUSED:
        if address in network:
            return what
    if any(address in network for network in opened):
        return None
    for network, what in _SPECIAL:
        if address in network:
            return what
    if address.version == 6 and address not in _GLOBAL_UNICAST:
        return "not a public address"
    return "this host" if _is_of_this_host(address) else None


def _is_of_this_host(address: Address) -> bool:
    """Whether this host itself has the public `address`: from inside, it would be reached past any firewall.

    The kernel is asked which of its own addresses it would speak from; to itself it speaks from the address itself.
    Nothing is sent.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # No route: connecting fails as well, with the kernel's own words.
        return ip_address(probe.getsockname()[0].partition("%")[0]) == address


def parse_networks(texts: Sequence[str]) -> tuple[Network, ...]:
    """Ranges such as `10.20.0.0/16`; ValueError names the first that is none."""
    return tuple(ip_network(text) for text in texts)
