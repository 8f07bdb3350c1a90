"""Where a worker may connect to, as its Function's `spec.network.egress` says: names, `*.suffix` and ports.

`Target` is what a client asks for, read strictly: whatever a lenient reader somewhere could take for something else (a
number for an address, a user before an `@`, a second dot at the end) is refused here, before any name is looked up.
Names travel as ASCII; a name with other letters is asked for in its `xn--` form, as all common clients do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from typing import Literal

from runtime.egress.addresses import Address

Policy = Literal["Deny", "AllowList", "Open"]

FIELD = "spec.network.egress"
NAME_CHARACTERS_MAX = 253
_SHOWN_CHARACTERS_MAX = 80
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_LIKE_A_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
_PORT = re.compile(r"[0-9]{1,5}")


class RefusedError(Exception):
    """The proxy will not connect. `code` is the HTTP status of its answer, `fix` what there is to do about it."""

    def __init__(self, why: str, fix: str = "", code: int = 403) -> None:
        super().__init__(why)
        self.why = why
        self.fix = fix
        self.code = code


@dataclass(frozen=True)
class Target:
    """A host in lower case without a dot at its end, and a port. `address` is set when the host is an IP literal."""

    host: str
    port: int
    address: Address | None = None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass(frozen=True, kw_only=True)
class EgressRules:
    """The policy of one attempt. `hosts` are names and `*.suffix`, with AllowList only; so are `ports`.

    `closed_ports` are those that Open does not reach.
    """

    policy: Policy
    hosts: frozenset[str] = frozenset()
    ports: frozenset[int] = frozenset()
    closed_ports: frozenset[int] = frozenset()

    def check(self, target: Target) -> None:
        """RefusedError unless the policy lets a worker speak to `target`; its address is another question."""
        if self.policy == "Open":
            if target.port in self.closed_ports:
                raise RefusedError(f"port {target.port} is closed for workers", "Use another port of that service.")
            return
        if self.policy != "AllowList" or not self._lists(target):
            what = "the address" if target.address is not None else "the host"
            raise RefusedError(
                f"{what} {target.host} is not in {FIELD}.allow", f'Add "{target.host}" to `{FIELD}.allow`.'
            )
        if target.port not in self.ports:
            known = ", ".join(str(port) for port in sorted(self.ports))
            raise RefusedError(
                f"port {target.port} is not one of {known}", f"Use one of them, or `{FIELD}.policy: Open`."
            )

    def _lists(self, target: Target) -> bool:
        if target.host in self.hosts:
            return True
        if target.address is not None:
            return False
        labels = target.host.split(".")
        return any("*." + ".".join(labels[count:]) in self.hosts for count in range(1, len(labels)))


def allowed_hosts(hosts: Iterable[str]) -> frozenset[str]:
    """Hosts of a Function as `EgressRules` compares them."""
    return frozenset(host.lower() for host in hosts)


def parse_target(authority: str, default_port: int | None = None) -> Target:
    """Read `host:port`; RefusedError (400) when it is anything else, or has no port where there is no default."""
    if authority.startswith("["):
        literal, bracket, rest = authority[1:].partition("]")
        colon, port = rest[:1], rest[1:]
        if not bracket or colon not in ("", ":"):
            raise _malformed(authority)
        return _ipv6_target(literal, _port(authority, colon, port, default_port), authority)
    host, colon, port = authority.partition(":")
    number = _port(authority, colon, port, default_port)
    name = host.lower().removesuffix(".")
    labels = name.split(".")
    if len(name) > NAME_CHARACTERS_MAX or not all(_LABEL.fullmatch(label) for label in labels):
        raise _malformed(authority)
    if not _LIKE_A_NUMBER.fullmatch(labels[-1]):
        return Target(name, number)
    # Resolvers read `2130706433`, `0177.0.0.1` and `127.1` as 127.0.0.1; here only the plain form is an address.
    try:
        return Target(name, number, IPv4Address(name))
    except ValueError:
        raise _malformed(authority) from None


def _ipv6_target(literal: str, port: int, authority: str) -> Target:
    try:
        address = IPv6Address(literal)
    except ValueError:
        raise _malformed(authority) from None
    if address.scope_id is not None:
        raise _malformed(authority)
    return Target(str(address), port, address)


def _port(authority: str, colon: str, port: str, default: int | None) -> int:
    if not colon and default is not None:
        return default
    if not _PORT.fullmatch(port) or not 0 < int(port) < 65_536:
        raise _malformed(authority)
    return int(port)


def _malformed(authority: str) -> RefusedError:
    shown = authority if len(authority) <= _SHOWN_CHARACTERS_MAX else authority[:_SHOWN_CHARACTERS_MAX] + "…"
    return RefusedError(f"{shown!a} is not a host name and a port", "Ask for `name:port`, the name in ASCII.", code=400)
