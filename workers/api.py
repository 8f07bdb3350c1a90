"""The `api` process: one application on plain http, and on https when a certificate is configured.

It is stateless: any number of them share a database. On SIGTERM it says it is not ready, ends streams and held claims,
answers what is in flight and commits what waits. When its change feed ends, it does the same and fails, so that its
supervisor starts a fresh one. Next: `edge.py` for what the application is made of, `api/app.py`
for what it does.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.config import STARTUP_FAILURE

from controlplane.settings import Settings
from workers.connections import BoundedProtocol, ConnectionCount
from workers.edge import open_api
from workers.heap import keep
from workers.tls import TlsFiles, served_tls

log = structlog.get_logger("api")

BACKLOG = 4_096
KEEP_ALIVE_SECONDS = 75
"""Longer than clients keep an idle connection, so it is never closed under a request of theirs."""
FINISH_SECONDS = 10
DESCRIPTORS_BESIDE = 512
"""Of the database, files, listeners and logs, beside those of connections."""


class Listener(uvicorn.Server):
    """A uvicorn server whose process handles the signals, since two of them share it; patient for so long."""

    def __init__(self, config: uvicorn.Config, settings: Settings) -> None:
        super().__init__(config)
        self._write_stall_milliseconds_max = 1_000 * settings.write_stall_seconds_max
        self._handshake_seconds_max = settings.http_head_seconds_max

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; every connection inherits how long it may stall.

        uvicorn would give a TLS handshake, which is no connection yet that `BoundedProtocol` could end, a minute. The
        kernel is the one who knows whether a client takes anything. A timer of ours would not see what it has buffered,
        nor what is left of a connection that was closed before its client had read everything.
        """
        config = self.config
        protocol = cast(Callable[..., asyncio.Protocol], config.http_protocol_class)
        try:
            server = await asyncio.get_running_loop().create_server(
                partial(protocol, config=config, server_state=self.server_state, app_state=self.lifespan.state),
                host=config.host,
                port=config.port,
                ssl=config.ssl,
                ssl_handshake_timeout=self._handshake_seconds_max if config.ssl else None,
                backlog=config.backlog,
            )
        except OSError as error:
            log.critical("the port cannot be served", port=config.port, error=str(error))
            sys.exit(STARTUP_FAILURE)
        for listening in server.sockets:
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self._write_stall_milliseconds_max)
        self.servers = [server]
        self.started = True

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


async def serve_api(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT; raises what ended the change feed when that comes first, and StartError for https
    without a certificate."""
    tls = served_tls(settings)
    _allow_descriptors(settings.http_connections_max + DESCRIPTORS_BESIDE)
    if settings.basic_auth:
        log.warning("HTTP Basic is taken: whoever reads a connection over plain http reads the keys of its clients")
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with open_api(settings) as (app, feed, prepare_to_stop):
        # The routes, the kinds and their documents are as permanent as the code.
        keep()
        listeners = [Listener(config, settings) for config in _configs(app, settings, tls)]
        serving = [asyncio.create_task(listener.serve(), name="listener") for listener in listeners]
        stopped = asyncio.create_task(stop.wait())
        feed_ended = asyncio.create_task(feed.ended())
        # A listener that cannot bind its port ends at once; then the process must end too.
        await asyncio.wait([stopped, feed_ended, *serving], return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        prepare_to_stop()
        for listener in listeners:
            listener.should_exit = True
        await asyncio.gather(*serving)
        if feed_ended.done():
            log.critical("this process ends because it no longer learns of changes; its supervisor starts another")
            await feed_ended
        feed_ended.cancel()
        log.info("stopped")


def _allow_descriptors(wanted: int) -> None:
    """Let the process have a descriptor for each connection; out of them, it could accept none and answer nobody."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted or soft == resource.RLIM_INFINITY:
        return
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    if allowed < wanted:
        log.warning("fewer descriptors than connections: raise the hard limit", wanted=wanted, allowed=allowed)


def _configs(app: ASGIApp, settings: Settings, tls: TlsFiles | None) -> Iterator[uvicorn.Config]:
    count = ConnectionCount()
    yield _config(app, settings, settings.http_port, count)
    if tls is not None:
        config = _config(app, settings, settings.https_port, count)
        config.ssl_certfile = tls.certificate
        config.ssl_keyfile = tls.key
        yield config


def _config(app: ASGIApp, settings: Settings, port: int, count: ConnectionCount) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.http_host,
        port=port,
        http=cast(type[asyncio.Protocol], partial(BoundedProtocol, settings, count)),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        # Whom to believe is the operator's to say (`api/forwarding.py`); uvicorn believes whoever is on this host.
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
