"""A scripted worker: a process that speaks claims as the public one does and does what its calls ask for.

Only the standard library, since dozens are started and killed in a run. A call's input is JSON that tells what its body
does (`plans.py`); the history learns of the begin and the end of each. Like the public worker it claims when a call
ends and every heartbeat, repeats a claim that fails, judges deadlines by its own clock, and leaves after SIGTERM with a
last claim. Configured by the environment of its process.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import http.client
import json
import os
import random
import signal
import socket
import sys
import time
import uuid
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.faults.history import BEGAN, FINISHED, STARTED, History
from tests.fixtures.eventually import eventually

Record = dict[str, Any]

GONE = frozenset({401, 403, 404})
READ_MARGIN_SECONDS = 15.0
PAUSE_SECONDS_MAX = 3.0
BLOB_FROM_BYTES = 65_536
GATE_SECONDS_MAX = 600.0
TELLING_SECONDS_MAX = 2.0


class FencedError(Exception):
    """The server wants nothing more of this worker."""


class Server:
    """Requests to any of the API's processes; each goes to another one than the one before."""

    def __init__(self, urls: list[str], token: str) -> None:
        self._urls = urls
        self._token = token
        self._sockets: set[socket.socket] = set()

    def interrupt(self) -> None:
        """Give up the requests that are under way."""
        for each in list(self._sockets):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def send(self, method: str, path: str, body: bytes, seconds: float, **headers: str) -> tuple[int, bytes]:
        """One request; OSError or HTTPException when no answer came."""
        self._urls.append(self._urls.pop(0))
        target = urlsplit(self._urls[0])
        connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=seconds)
        try:
            connection.request(method, path, body, {"Authorization": f"Bearer {self._token}", **headers})
            raw: socket.socket = connection.sock
            self._sockets.add(raw)
            try:
                answer = connection.getresponse()
                return answer.status, answer.read()
            finally:
                self._sockets.discard(raw)
        finally:
            connection.close()


class Worker:
    """The loop."""

    def __init__(self, environ: dict[str, str]) -> None:
        self._server = Server(json.loads(environ["FAULTS_URLS"]), environ["FAULTS_TOKEN"])
        self._attempt = environ["FAULTS_ATTEMPT"]
        self._concurrency = int(environ["FAULTS_CONCURRENCY"])
        self._project = environ["FAULTS_PROJECT"]
        self._path = f"/apis/nodus.dev/v1/namespaces/{self._project}/functions/{environ['FAULTS_FUNCTION']}/claims"
        self._wait_seconds = float(environ["FAULTS_WAIT_SECONDS"])
        self._heartbeat_seconds = float(environ["FAULTS_HEARTBEAT_SECONDS"])
        self._lease_seconds = float(environ["FAULTS_LEASE_SECONDS"])
        self._history = History(Path(environ["FAULTS_HISTORY"]), by=f"worker {self._attempt}")
        self._running: dict[str, asyncio.Task[Record]] = {}
        self._repeats: dict[str, int] = {}
        """By call, how often its end is told once more after it was accepted."""
        self._draining = asyncio.Event()

    async def run(self) -> None:
        """Serve until asked to go."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._drain)
        self._history.add(STARTED, attempt=self._attempt, concurrency=self._concurrency, pid=os.getpid())
        completed: list[Record] = []
        while True:
            last = self._draining.is_set() and not self._running
            answer = await self._claim(completed, last=last)
            if last:
                return
            completed = [record for record in completed if self._is_told_again(record["call"])]
            for name in answer["cancel"]:
                if name in self._running:
                    self._running[name].cancel()
            for call in answer["calls"]:
                self._running[call["id"]] = asyncio.create_task(self._body(call))
            if self._running:
                done, _ = await asyncio.wait(
                    self._running.values(), timeout=self._heartbeat_seconds, return_when=asyncio.FIRST_COMPLETED
                )
                ended = [self._ended(name) for name, task in list(self._running.items()) if task in done]
                await self._tell_stopped([record["call"] for record in ended if record["outcome"] == "Cancelled"])
                completed += ended

    def _drain(self) -> None:
        self._draining.set()
        if not self._running:
            # A node releases the long poll of an idle worker for it.
            self._server.interrupt()

    def _ended(self, name: str) -> Record:
        return self._running.pop(name).result()

    def _is_told_again(self, name: str) -> bool:
        self._repeats[name] = self._repeats.get(name, 0) - 1
        return self._repeats[name] >= 0

    async def _tell_stopped(self, names: list[str]) -> None:
        """As the runtime around a public worker does; words that are lost are not missed, since the worker is ended."""
        if not names:
            return
        body = json.dumps({"stopped": names, "wait": "0s"}).encode()
        with contextlib.suppress(OSError, http.client.HTTPException):
            path = self._path.replace("/claims", "/cancels")
            await asyncio.to_thread(self._server.send, "POST", path, body, TELLING_SECONDS_MAX)

    async def _claim(self, completed: list[Record], *, last: bool) -> Record:
        """Claim until it is answered; the same claim again and again, as long as a lease lasts."""
        idle = not self._running and not completed
        draining = self._draining.is_set()
        body = {
            "completed": completed,
            "running": sorted(self._running),
            "max": 0 if draining else self._concurrency - len(self._running),
            "wait": f"{self._wait_seconds if idle and not draining else 0}s",
            "draining": last,
        }
        until = time.monotonic() + self._lease_seconds
        pause = 0.1
        while True:
            try:
                seconds = self._wait_seconds + READ_MARGIN_SECONDS
                status, answer = await asyncio.to_thread(
                    self._server.send, "POST", self._path, json.dumps(body).encode(), seconds
                )
                if status == 200:
                    claimed: Record = json.loads(answer)
                    return claimed
                if status in GONE:
                    raise FencedError(answer.decode())
            except (OSError, http.client.HTTPException):
                if idle and not last and self._draining.is_set():
                    return {"calls": [], "cancel": []}
            if time.monotonic() > until:
                raise FencedError("no answer for the length of a lease")
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    async def _body(self, call: Record) -> Record:
        """Run one call and word its outcome."""
        name, run = call["id"], uuid.uuid4().hex
        self._history.add(BEGAN, attempt=self._attempt, call=name, run=run)
        plan = json.loads(base64.b64decode(call["input"]["inline"]))
        if call["input"]["encoding"] == "JSON":
            plan = plan["kwargs"]
        self._repeats[name] = plan.get("reports", 1) - 1
        left = datetime.fromisoformat(call["deadline"]).timestamp() - time.time()
        record: Record
        try:
            async with asyncio.timeout(left):
                record = await self._outcome(name, run, plan)
        except TimeoutError:
            record = {"call": name, "outcome": "DeadlineExceeded"}
            self._draining.set()
        except asyncio.CancelledError:
            record = {"call": name, "outcome": "Cancelled"}
        digest = record.get("result", {}).get("sha256")
        self._history.add(FINISHED, attempt=self._attempt, call=name, run=run, outcome=record["outcome"], digest=digest)
        return record

    async def _outcome(self, name: str, run: str, plan: Record) -> Record:
        marks = Path(plan["marks"]) / name if "marks" in plan else None
        if marks is not None and not marks.exists():
            marks.touch()
            error = {"type": "ValueError", "message": "not yet", "traceback": "Traceback\nValueError: not yet\n"}
            return {"call": name, "outcome": "RemoteError", "error": error}
        await asyncio.sleep(plan.get("seconds", 0))
        if "gate" in plan:
            await eventually(Path(plan["gate"]).exists, within=GATE_SECONDS_MAX, every=0.1)
        if plan["kind"] == "raise":
            error = {"type": "ValueError", "message": "never", "traceback": "Traceback\nValueError: never\n"}
            return {"call": name, "outcome": "RemoteError", "error": error}
        value = f"{name} {run} ".encode().ljust(plan.get("bytes", 0), b".")
        result: Record = {"encoding": "Pickle", "sha256": hashlib.sha256(value).hexdigest()}
        if len(value) > BLOB_FROM_BYTES:
            result["blob"] = await self._upload(value, result["sha256"])
        else:
            result["inline"] = base64.b64encode(value).decode()
        return {"call": name, "outcome": "Succeeded", "result": result}

    async def _upload(self, value: bytes, digest: str) -> str:
        """Store a blob, however often it takes."""
        asked = json.dumps({"sha256": digest, "size": len(value), "contentType": "application/octet-stream"}).encode()
        while True:
            try:
                if await asyncio.to_thread(self._upload_once, asked, value):
                    return f"sha256:{digest}"
            except (OSError, http.client.HTTPException, ValueError):
                pass  # again in a moment
            await asyncio.sleep(0.2)

    def _upload_once(self, asked: bytes, value: bytes) -> bool:
        status, answer = self._server.send("POST", f"/blobs/v1/namespaces/{self._project}/uploads", asked, 20)
        if status not in (200, 201):
            return False
        told = json.loads(answer)
        if told["exists"]:
            return True
        target = urlsplit(told["url"])
        headers = {**told["headers"], "Content-Type": "application/octet-stream"}
        return self._server.send("PUT", f"{target.path}?{target.query}", value, 20, **headers)[0] < 400


def main() -> int:
    """Serve; 1 when the server let go of this worker."""
    try:
        asyncio.run(Worker(dict(os.environ)).run())
    except FencedError as error:
        print(f"leaving: {error}", file=sys.stderr)  # noqa: T201 - the worker's own log
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
