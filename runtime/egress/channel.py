"""How a node and its egress proxy speak: messages of JSON on a socket pair, listeners handed over beside them.

The node sends `open` with the rules of an attempt and the listening socket that only this attempt's worker can connect
to, and `close` at its end. The proxy says `line` for the attempt's log, and `closed`. Nothing of either waits: a node
whose proxy does not take its messages ends it, and a proxy whose node does not take its lines drops them.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

MESSAGE_BYTES_MAX = 131_072
"""An allow-list of 128 names of 253 characters beside presets."""


@dataclass(frozen=True)
class Message:
    """One message and the descriptors that came with it, which are now the receiver's."""

    word: str
    attempt: str
    content: Mapping[str, Any]
    descriptors: tuple[int, ...] = ()


def pair() -> tuple[socket.socket, socket.socket]:
    """(the node's end, the proxy's end), both non-blocking."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in ends:
        end.setblocking(False)
    return ends


def send(end: socket.socket, message: Message) -> None:
    """Send at once; OSError (BlockingIOError too) when the other side is gone or does not take it."""
    body = json.dumps([message.word, message.attempt, message.content]).encode()
    socket.send_fds(end, [body], list(message.descriptors))


def receive(end: socket.socket) -> Message | None:
    """The next message, None when the other side is gone; BlockingIOError when there is none yet."""
    body, descriptors, _, _ = socket.recv_fds(end, MESSAGE_BYTES_MAX, 1)
    if not body:
        return None
    word, attempt, content = json.loads(body)
    return Message(word, attempt, content, tuple(descriptors))
