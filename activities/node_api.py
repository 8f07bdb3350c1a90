"""A node's own requests to the API: what to run, how far it is, what it printed.

They carry the node's token, never an attempt's; what a worker asks for goes another way (`runtime/proxy.py`). The
routes are in `api/node.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import orjson

from controlplane.machinery.quantities import quantity_bytes, quantity_milli
from runtime.gpus import GpuRequest
from runtime.logs import Chunk, SinkRefusedError, SinkUnavailableError
from runtime.plans import EgressPlan, SidecarPlan, StartPlan

MESSAGE_CHARACTERS_MAX = 1_000
_TRY_LATER = frozenset({408, 425, 429, 500, 502, 503, 504})


class ApiUnavailableError(Exception):
    """The API did not answer, or asks to be asked again."""


class ApiRefusedError(Exception):
    """The API will not do it: the attempt is over, fenced or unknown, or the node is not allowed."""


@dataclass(frozen=True, kw_only=True)
class LeasedImage:
    """The built image that a worker starts from: its Image's uid, its name on the node, what it must contain."""

    uid: str
    key: str
    digest: str


@dataclass(frozen=True, kw_only=True)
class Lease:
    """What an attempt is to run, and the token that speaks for it. Held in memory only.

    `memory_bytes`, `disk_bytes` and `cpus` are what the Function asks for at least; None when it does not say.
    """

    token: str
    project: str
    function: str
    concurrency: int
    python: str
    variables: tuple[tuple[str, str], ...]
    directory: str | None
    egress: EgressPlan = field(default_factory=EgressPlan)
    presets: tuple[str, ...] = ()
    start: StartPlan = field(default_factory=StartPlan)
    sidecars: tuple[SidecarPlan, ...] = ()
    gpus: GpuRequest | None = None
    image: LeasedImage | None = None
    memory_bytes: int | None = None
    disk_bytes: int | None = None
    cpus: float | None = None


@dataclass(frozen=True, kw_only=True)
class ImagePlan:
    """What a build is made from: the Python, the Image's spec, and a signed path for each blob that it reads."""

    python: str
    spec: Mapping[str, Any]
    blobs: Mapping[str, str]


class NodeApi:
    """The node's client of the API."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    async def lease(self, attempt_uid: str, epoch: int) -> Lease:
        """Take the attempt and learn all about it. Repeating it gives a new token and ends the one before.

        Raises ApiUnavailableError or ApiRefusedError.
        """
        told = await self._post(f"/node/v1/attempts/{attempt_uid}/lease", {"epoch": epoch})
        resources = told.get("resources") or {}
        return Lease(
            token=told["token"],
            project=told["project"],
            function=told["function"],
            concurrency=int(told["concurrency"]),
            python=told["python"],
            variables=tuple((name, value) for name, value in told.get("env") or ()),
            directory=told.get("workingDir") or None,
            image=LeasedImage(**told["image"]) if told.get("image") else None,
            memory_bytes=quantity_bytes(resources["memory"]) if "memory" in resources else None,
            disk_bytes=quantity_bytes(told["diskLeast"]) if told.get("diskLeast") else None,
            cpus=quantity_milli(resources["cpu"]) / 1_000 if "cpu" in resources else None,
            egress=EgressPlan(policy=told["egress"]["policy"], hosts=told["egress"]["hosts"]),
            presets=tuple(told["egress"].get("presets") or ()),
            start=StartPlan(
                command=tuple(told["start"]["command"]),
                init_command=tuple(told["start"]["initCommand"]["command"]),
                init_seconds_max=told["start"]["initCommand"]["secondsMax"],
            ),
            gpus=_gpus(resources.get("gpu")),
            sidecars=tuple(_sidecar(sidecar) for sidecar in told.get("sidecars") or ()),
        )

    async def report_phase(
        self, attempt_uid: str, epoch: int, phase: str, guarantees: Mapping[str, Any], *, warm_reuse: bool | None
    ) -> None:
        """Tell how far the worker is, how it is isolated and, once that is known, whether it had been started ahead.
        Raises like `lease`."""
        told: dict[str, Any] = {"epoch": epoch, "phase": phase, "guarantees": guarantees}
        if warm_reuse is not None:
            told["warmReuse"] = warm_reuse
        await self._post(f"/node/v1/attempts/{attempt_uid}/phase", told)

    async def store_log(self, attempt_uid: str, chunk: Chunk) -> None:
        """Store lines of the worker's output; a repeat of the same chunk is harmless. For `runtime.logs.Sink`."""
        await self._store(f"/node/v1/attempts/{attempt_uid}/logs", chunk)

    async def store_build_log(self, build: str, chunk: Chunk) -> None:
        """Store lines that a build printed; like `store_log`."""
        await self._store(f"/node/v1/builds/{build}/logs", chunk)

    async def image_plan(self, image_uid: str, generation: int) -> ImagePlan:
        """What to build. Raises ApiRefusedError when nobody waits for it any more, ApiUnavailableError."""
        told = await self._post(f"/node/v1/images/{image_uid}/plan", {"generation": generation})
        return ImagePlan(python=told["python"], spec=told["spec"], blobs=told["blobs"])

    async def report_stage(self, image_uid: str, generation: int, stage: str) -> None:
        """Tell how far a build is. Raises like `image_plan`."""
        await self._post(f"/node/v1/images/{image_uid}/stage", {"generation": generation, "stage": stage})

    async def report_missing_image(self, image_uid: str, digest: str, message: str) -> None:
        """Tell that what was built is not here any more, so that it is built again. Raises like `image_plan`."""
        told = {"digest": digest, "message": message[:MESSAGE_CHARACTERS_MAX]}
        await self._post(f"/node/v1/images/{image_uid}/missing", told)

    async def named_images(self, keys: Sequence[str]) -> frozenset[str]:
        """Which of these some Image still names. Raises like `image_plan`."""
        told = await self._post("/node/v1/named-images", {"keys": list(keys)})
        return frozenset(told["named"])

    async def fetch_blob(self, path: str, reference: str, target: Path, bytes_max: int) -> None:
        """Write the bytes of a blob to a file, by a signed path of the API, and check that they are the blob's.

        Raises ApiUnavailableError, also for bytes that are not the ones asked for.
        """
        digest = hashlib.sha256()
        size_bytes = 0
        try:
            async with self._client.stream("GET", path) as answer:
                if not answer.is_success:
                    raise ApiUnavailableError(f"the API gives {answer.status_code} instead of {reference}")
                with target.open("wb") as file:
                    async for chunk in answer.aiter_bytes():
                        size_bytes += len(chunk)
                        if size_bytes > bytes_max:
                            raise ApiUnavailableError(f"{reference} is larger than {bytes_max} bytes")
                        digest.update(chunk)
                        file.write(chunk)
        except httpx.TransportError as error:
            raise ApiUnavailableError(f"{reference} cannot be fetched: {type(error).__name__} {error}") from error
        if f"sha256:{digest.hexdigest()}" != reference:
            raise ApiUnavailableError(f"what the API gives for {reference} is not it")

    async def _store(self, path: str, chunk: Chunk) -> None:
        try:
            await self._post(path, {"chunks": [{"seq": chunk.seq, "lines": chunk.lines}]})
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


def _gpus(told: Mapping[str, Any] | None) -> GpuRequest | None:
    if told is None:
        return None
    return GpuRequest(
        types=tuple(told["type"]),
        count=told["count"],
        memory_bytes_min=quantity_bytes(told["minMemory"]) if told.get("minMemory") else 0,
        exact=bool(told.get("exact")),
        linked=told.get("interconnect") == "NVLink",
    )


def _sidecar(told: Mapping[str, Any]) -> SidecarPlan:
    return SidecarPlan(
        name=told["name"],
        command=tuple(told["command"]),
        variables=tuple((name, value) for name, value in told["env"]),
        python=told["python"],
        start_seconds_max=told["secondsMax"],
    )


def _message(answer: httpx.Response) -> str:
    """The sentence of a `Status` body, or nothing when the answer is no such body."""
    try:
        status = orjson.loads(answer.content)
    except ValueError:
        return answer.reason_phrase
    return str(status.get("message", "")) if isinstance(status, dict) else answer.reason_phrase
