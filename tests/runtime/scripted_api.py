"""As much of the API as one worker and its node speak to, over real HTTP, with a script instead of a database.

The unmodified public worker is driven by it in the tests of `runtime/`, which must not know the server's own packages.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import io
import json
import socket
import tarfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.fixtures.eventually import eventually

PASS_GATE = """
import socket
def pass_gate(name):
    with socket.socket(socket.AF_UNIX) as way:
        way.connect("/run/nodus/api.sock")
        way.sendall(f"GET /gate/{name} HTTP/1.1\\r\\nhost: nodus\\r\\n\\r\\n".encode())
        way.recv(1)
"""
"""Source for a Function: `pass_gate(name)` tells the test that it has come this far and stays until it may go on."""


@dataclass
class ScriptedApi:
    """One Function, its queue of calls and what the worker reported."""

    token: str = "nodusatt_test"
    module: str = "app"
    qualname: str = "target"
    cls: bool = False
    code: bytes = b""
    queue: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)
    outcomes: dict[str, dict[str, Any]] = field(default_factory=dict)
    cancels: set[str] = field(default_factory=set)
    stopped: list[str] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    heads: list[dict[str, str]] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    held: int = 0
    ahead_seconds: float = 0.0
    """By how much the worker's host is ahead of this server."""
    url: str = ""
    closing: bool = False
    node_token: str = "the-node"
    leased: dict[str, Any] = field(default_factory=dict)
    lease_refusal: int = 0
    phases: list[str] = field(default_factory=list)
    warm_reuse: list[bool | None] = field(default_factory=list)
    log: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    at_gate: list[str] = field(default_factory=list)
    """Who came to the gate (`PASS_GATE`) and waits there, or did."""
    gate: asyncio.Event = field(default_factory=asyncio.Event)

    def set_code(self, files: dict[str, str]) -> None:
        """The Function's archive: a gzipped tar of `files`, as the public SDK makes it."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as tar:
            for name, text in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(text.encode())
                tar.addfile(member, io.BytesIO(text.encode()))
        self.code = gzip.compress(packed.getvalue())
        self.blobs[hashlib.sha256(self.code).hexdigest()] = self.code

    def call(self, name: str, *args: Any) -> None:
        """Queue one call with JSON arguments."""
        body = json.dumps({"args": args}).encode()
        digest = hashlib.sha256(body).hexdigest()
        self.blobs[digest] = body
        self.queue.append({"id": name, "input": {"encoding": "JSON", "blob": f"sha256:{digest}"}})
        self.changed.set()

    async def function(self, request: Request) -> Response:
        digest = hashlib.sha256(self.code).hexdigest()
        code = {"module": self.module, "qualname": self.qualname, "cls": self.cls, "blob": f"sha256:{digest}"}
        return JSONResponse({"metadata": {"name": request.path_params["name"]}, "spec": {"code": code}})

    async def claim(self, request: Request) -> Response:
        body = await request.json()
        self.claims.append(body)
        for record in body["completed"]:
            self.outcomes[record["call"]] = record
        wait = float(body["wait"].removesuffix("s"))
        if body["max"] and not self.queue and wait:
            self.held += 1
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    while not self.queue and not self.closing:
                        self.changed.clear()
                        await self.changed.wait()
            self.held -= 1
            if await request.is_disconnected():
                return Response(status_code=204)  # Nobody is left to take a call.
        taken = [self.queue.pop(0) for _ in range(min(body["max"], len(self.queue)))]
        now = time.time() - self.ahead_seconds
        for call in taken:
            if "may_run_seconds" in call:
                deadline = datetime.fromtimestamp(now + call.pop("may_run_seconds"), UTC)
                call["deadline"] = deadline.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        return JSONResponse({"calls": taken, "cancel": []}, headers={"nodus-now": f"{now:.6f}"})

    async def cancel(self, request: Request) -> Response:
        body = await request.json()
        self.stopped += body.get("stopped", [])
        wanted: set[str] = set()
        if body["wait"] != "0s":
            with contextlib.suppress(AssertionError):
                await eventually(lambda: self.cancels - set(body["stopping"]) or self.closing, within=5)
            wanted = self.cancels - set(body["stopping"])
        return JSONResponse({"cancel": sorted(wanted)})

    async def upload(self, request: Request) -> Response:
        digest = (await request.json())["sha256"]
        origin = request.headers.get("nodus-data-origin", "http://127.0.0.1:3128")
        url = f"{origin}/blobs/v1/data/{digest}"
        return JSONResponse({"exists": digest in self.blobs, "url": url, "headers": {}})

    async def put(self, request: Request) -> Response:
        self.blobs[request.path_params["digest"]] = await request.body()
        return Response(status_code=200)

    async def download(self, request: Request) -> Response:
        return Response(self.blobs[request.path_params["digest"]])

    async def stay_at_gate(self, request: Request) -> Response:
        self.at_gate.append(request.path_params["name"])
        await self.gate.wait()
        return Response(status_code=204)

    async def myself(self, request: Request) -> Response:
        return JSONResponse({"kind": "Function", "name": "fn", "project": "default", "attempt": "att", "epoch": 1})

    async def lease(self, request: Request) -> Response:
        if self.lease_refusal:
            return JSONResponse({"kind": "Status", "message": "the attempt is over"}, status_code=self.lease_refusal)
        start = {"command": [], "initCommand": {"command": [], "secondsMax": 0}}
        leased = {"egress": {"policy": "Deny", "hosts": [], "presets": []}, "start": start, **self.leased}
        return JSONResponse({"token": self.token, "project": "default", "function": "fn", **leased})

    async def phase(self, request: Request) -> Response:
        told = await request.json()
        self.phases.append(told["phase"])
        self.warm_reuse.append(told.get("warmReuse"))
        return Response(status_code=204)

    async def logs(self, request: Request) -> Response:
        for chunk in (await request.json())["chunks"]:
            self.log += [text for _, _, text in chunk["lines"]]
        return Response(status_code=204)

    def application(self) -> Starlette:
        project = "/namespaces/{project}"
        app = Starlette(
            routes=[
                Route("/self", self.myself),
                Route("/gate/{name}", self.stay_at_gate),
                Route("/node/v1/attempts/{uid}/lease", self.lease, methods=["POST"]),
                Route("/node/v1/attempts/{uid}/phase", self.phase, methods=["POST"]),
                Route("/node/v1/attempts/{uid}/logs", self.logs, methods=["POST"]),
                Route(f"/apis/nodus.dev/v1{project}/functions/{{name}}", self.function),
                Route(f"/apis/nodus.dev/v1{project}/functions/{{name}}/claims", self.claim, methods=["POST"]),
                Route(f"/apis/nodus.dev/v1{project}/functions/{{name}}/cancels", self.cancel, methods=["POST"]),
                Route(f"/blobs/v1{project}/uploads", self.upload, methods=["POST"]),
                Route("/blobs/v1/data/{digest}", self.put, methods=["PUT"]),
                Route(f"/blobs/v1{project}/blobs/{{digest}}", self.download),
            ]
        )

        async def recording(scope: Any, receive: Any, send: Any) -> None:
            if scope["type"] == "http":
                self.paths.append(scope["path"])
                self.heads.append({name.decode(): value.decode() for name, value in scope["headers"]})
                token = self.node_token if scope["path"].startswith("/node/") else self.token
                signed = scope["path"].startswith("/blobs/v1/data/")  # the URL is the credential, as of the real API
                if not signed and f"Bearer {token}" != self.heads[-1].get("authorization"):
                    await Response(status_code=401)(scope, receive, send)
                    return
            await app(scope, receive, send)

        return recording  # type: ignore[return-value]

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncIterator[ScriptedApi]:
        """Serve on a free port of this host."""
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = uvicorn.Config(self.application(), log_level="warning", lifespan="off", timeout_graceful_shutdown=1)
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment,method-assign]
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            yield self
        finally:
            server.should_exit = True
            self.closing = True
            self.changed.set()
            self.gate.set()
            await serving
            listener.close()
