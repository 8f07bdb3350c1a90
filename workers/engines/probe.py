"""One question over HTTP to a server of this host: does it answer 200?

Asked many times a second while something starts, so it is asked without a client library: loading one would cost more
of a start than the server that is waited for.
"""

from __future__ import annotations

import asyncio


async def says_ok(port: int, path: str, seconds_max: float) -> bool:
    """Whether GET `path` at 127.0.0.1:`port` is answered with 200 in time."""
    try:
        async with asyncio.timeout(seconds_max):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
                return b" 200 " in await reader.readline()
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return False
