"""A node's own requests to the API: what to run, how far it is, what it printed.

They carry the node's token, never an attempt's; what a worker asks for goes another way (`runtime/proxy.py`). The
routes are in `api/node.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import orjson

from runtime.logs import Chunk, SinkRefusedError, SinkUnavailableError

_TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class ApiUnavailableError(Exception):
    """The API did not answer, or asks to be asked again."""


class ApiRefusedError(Exception):
    """The API will not do it: the attempt is over, fenced or unknown, or the node is not allowed."""


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What an attempt is to run, and the token that speaks for it. Held in memory only."""

    token: str
    project: str
    function: str
    concurrency: int
    python: str
    variables: tuple[tuple[str, str], ...]
    directory: str | None


class NodeApi:
    """The node's client of the API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def lease(self, attempt_uid: str, epoch: int) -> Lease:
        """Take the attempt and learn all about it. Repeating it gives a new token and ends the one before.

        Raises ApiUnavailableError or ApiRefusedError.
        """
        told = await self._post(f"/node/v1/attempts/{attempt_uid}/lease", {"epoch": epoch})
        return Lease(
            token=told["token"],
            project=told["project"],
            function=told["function"],
            concurrency=int(told["concurrency"]),
            python=told["python"],
            variables=tuple((name, value) for name, value in told.get("env") or ()),
            directory=told.get("workingDir") or None,
        )

    async def report_phase(self, attempt_uid: str, epoch: int, phase: str, guarantees: Mapping[str, Any]) -> None:
        """Tell how far the worker is and how it is isolated. Raises like `lease`."""
        told = {"epoch": epoch, "phase": phase, "guarantees": guarantees}
        await self._post(f"/node/v1/attempts/{attempt_uid}/phase", told)

    async def store_log(self, attempt_uid: str, chunk: Chunk) -> None:
        """Store lines of the worker's output; a repeat of the same chunk is harmless. For `runtime.logs.Sink`."""
        try:
            await self._post(
                f"/node/v1/attempts/{attempt_uid}/logs", {"chunks": [{"seq": chunk.seq, "lines": chunk.lines}]}
            )
        except ApiUnavailableError as error:
            raise SinkUnavailableError(str(error)) from error
        except ApiRefusedError as error:
            raise SinkRefusedError(str(error)) from error

    async def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            answer = await self._client.post(
                path, content=orjson.dumps(body), headers={"content-type": "application/json"}
            )
        except httpx.TransportError as error:
            raise ApiUnavailableError(f"the API cannot be reached: {type(error).__name__} {error}") from error
        if answer.is_success:
            return dict(orjson.loads(answer.content)) if answer.content else {}
        said = f"{answer.status_code} {_message(answer)}"
        if answer.status_code in _TRY_LATER:
            raise ApiUnavailableError(f"the API says {said}")
        raise ApiRefusedError(f"the API says {said}")


def _message(answer: httpx.Response) -> str:
    """The sentence of a `Status` body, or nothing when the answer is no such body."""
    try:
        status = orjson.loads(answer.content)
    except ValueError:
        return answer.reason_phrase
    return str(status.get("message", "")) if isinstance(status, dict) else answer.reason_phrase
