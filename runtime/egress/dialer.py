"""From a name to a connection: look it up once, judge every address, connect to one that was judged.

The resolver is libc's, so the hosts file and the name servers are the operator's. It is asked only for names that the
policy lets through: a name that is refused leaves this host in no form, and so carries nothing out.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from ipaddress import ip_address

from runtime.egress.addresses import Address, Network, refusal
from runtime.egress.limits import EgressLimits
from runtime.egress.rules import RefusedError, Target

ADDRESSES_MAX = 8
"""Of one name; the next ones are not tried."""
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What all attempts of a node share.

    `opened` are ranges that the operator lets workers reach although they are not public; `closed_endpoints`, (host,
    port), are the server's own parts, which they never reach.
    """

    opened: Sequence[Network]
    closed_endpoints: Sequence[tuple[str, int]]
    threads: Executor


class Dialer:
    """Connects for one attempt."""

    def __init__(self, surroundings: Surroundings, limits: EgressLimits) -> None:
        self._surroundings = surroundings
        self._limits = limits
        self._lookups = asyncio.Semaphore(limits.lookups_max)

    async def connect(self, target: Target) -> Streams:
        """A connection to `target`; RefusedError when no address of it may be reached (403) or answers (502, 504)."""
        seconds = self._limits.connect_seconds_max
        try:
            async with asyncio.timeout(seconds):
                return await self._connect_to_one(target, await self._permitted(target))
        except TimeoutError:
            raise RefusedError(f"{target} did not answer within {seconds:g} s", code=504) from None

    async def _permitted(self, target: Target) -> list[Address]:
        found = [target.address] if target.address is not None else await self._look_up(target.host, target.port)
        refusals = {address: refusal(address, self._surroundings.opened) for address in found}
        permitted = [address for address in found if refusals[address] is None]
        if not permitted:
            what = next(iter(refusals.values()))
            raise RefusedError(f"{target.host} leads to {what}, which workers do not reach", _ADDRESS_FIX)
        for host, port in self._surroundings.closed_endpoints:
            if port == target.port and not set(permitted).isdisjoint(await self._look_up(host, port)):
                raise RefusedError(f"{target} is a part of the server itself", "Use the SDK: it has a way of its own.")
        return permitted[:ADDRESSES_MAX]

    async def _look_up(self, host: str, port: int) -> list[Address]:
        """The addresses of a name. The permit is kept until libc returns, also when nobody waits for it any more."""
        loop = asyncio.get_running_loop()
        await self._lookups.acquire()
        search = loop.run_in_executor(
            self._surroundings.threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        search.add_done_callback(lambda _: self._lookups.release())
        try:
            found = await asyncio.shield(search)
        except (OSError, UnicodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "no such name"
            raise RefusedError(f"{host} has no address: {reason}", "Check the name.", code=502) from None
        texts = [str(entry[4][0]).partition("%")[0] for entry in found]
        return [ip_address(text) for text in dict.fromkeys(texts)]

    async def _connect_to_one(self, target: Target, addresses: Sequence[Address]) -> Streams:
        problem = ""
        for address in addresses:
            try:
                return await asyncio.open_connection(str(address), target.port)
            except OSError as error:
                problem = os.strerror(error.errno) if error.errno else str(error)
        raise RefusedError(f"{target} cannot be reached: {problem}", "Check host and port.", code=502)


_ADDRESS_FIX = (
    "Reach it by a public address, or ask the operator of the server to allow its range (`egress_private_ranges`)."
)
