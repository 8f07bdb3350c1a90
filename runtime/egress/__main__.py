"""The proxy's own process: one for each node, with a user of its own, no capability, and a view of nothing.

It parses what hostile code sends and holds the only way out, so it is kept from everything else: it runs in a sandbox
that has the host's network and no file of the host but what a resolver reads, holds no token, and knows of its
attempts by their listeners (`gate.py` starts it and hands them over). It needs the standard library and h11 only.

    argv: the descriptor of the node's channel, and the settings as JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from runtime.egress import channel
from runtime.egress.addresses import parse_networks
from runtime.egress.channel import Message
from runtime.egress.decisions import DecisionLog
from runtime.egress.dialer import Dialer, Surroundings
from runtime.egress.limits import LOOKUP_THREADS, EgressLimits
from runtime.egress.rules import EgressRules
from runtime.egress.server import Door


class _Proxy:
    """All attempts of one node."""

    def __init__(self, node: socket.socket, limits: EgressLimits, surroundings: Surroundings) -> None:
        self._node = node
        self._limits = limits
        self._surroundings = surroundings
        self._doors: dict[str, tuple[Door, asyncio.Server]] = {}

    async def run(self) -> None:
        """Serve until the node is gone."""
        told = asyncio.Event()
        asyncio.get_running_loop().add_reader(self._node, told.set)
        while True:
            try:
                message = channel.receive(self._node)
            except BlockingIOError:
                told.clear()
                await told.wait()
                continue
            if message is None:
                return
            # One after the other: the end of an attempt must not overtake its beginning.
            if message.word == "open":
                await self._open(message)
            else:
                self._close(message.attempt)

    async def _open(self, message: Message) -> None:
        rules = _rules(message.content)
        listener = socket.socket(fileno=message.descriptors[0])
        listener.setblocking(False)
        decisions = DecisionLog(self._limits.decisions_max, lambda line: self._say("line", message.attempt, line))
        door = Door(rules, self._limits, Dialer(self._surroundings, self._limits), decisions)
        server = await asyncio.start_unix_server(door.serve, sock=listener, limit=self._limits.head_bytes_max)
        self._doors[message.attempt] = (door, server)

    def _close(self, attempt: str) -> None:
        found = self._doors.pop(attempt, None)
        if found is not None:
            door, server = found
            server.close()
            door.close()
            self._say("closed", attempt, door.decisions.summary())

    def _say(self, word: str, attempt: str, line: str | None) -> None:
        try:
            channel.send(self._node, Message(word, attempt, {"line": line}))
        except OSError:
            pass  # The node does not keep up or is gone: a line of a log is lost, and nothing else.


def _rules(told: Mapping[str, Any]) -> EgressRules:
    return EgressRules(
        policy=told["policy"],
        hosts=frozenset(told["hosts"]),
        ports=frozenset(told["ports"]),
        closed_ports=frozenset(told["closedPorts"]),
    )


def main() -> None:
    """Run the proxy; returns when the node has gone."""
    node = socket.socket(fileno=int(sys.argv[1]))
    node.setblocking(False)
    told = json.loads(sys.argv[2])
    surroundings = Surroundings(
        opened=parse_networks(told["opened"]),
        closed_endpoints=[(host, port) for host, port in told["closedEndpoints"]],
        threads=ThreadPoolExecutor(LOOKUP_THREADS),
    )
    asyncio.run(_Proxy(node, EgressLimits(**told["limits"]), surroundings).run())
    # Not sys.exit: a thread may wait for a resolver, and nothing here needs a farewell.
    os._exit(0)


if __name__ == "__main__":
    main()
