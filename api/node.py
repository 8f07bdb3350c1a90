"""What the nodes of this installation ask: what to run, where to put its output, how far it is.

Only a node's credential opens these routes. Bodies are ours on both sides (`activities/node_api.py`), so they are
versioned by their path and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import principal
from api.typed_bodies import read_typed
from controlplane.capacity.leases import AttemptLeases, Lease
from controlplane.identity.scopes import require_node
from controlplane.kinds.attempt import AttemptGuarantees
from controlplane.kinds.egress import egress_policy
from controlplane.kinds.placing import disk_least
from controlplane.kinds.starting import worker_start
from controlplane.logs.rows import LogChunk, LogWriter
from controlplane.machinery.model import ApiModel
from controlplane.settings import Settings

_BODY_BYTES_MAX = 4_096
"""A few words about an attempt."""
_CHUNKS_MAX = 64
"""Chunks of one batch of lines; a node sends one for each of its attempts that printed."""
_LINES_MAX = 65_536
"""Lines of one chunk, so that one row stays small enough to read at once."""


class LeaseRequest(ApiModel):
    """Which life of the attempt the node means to run."""

    epoch: Annotated[int, Field(ge=0)]


class PhaseReport(ApiModel):
    """How far the worker is."""

    epoch: Annotated[int, Field(ge=0)]
    phase: Literal["Preparing", "Starting", "Ready", "Draining"]
    guarantees: AttemptGuarantees | None = None
    warm_reuse: bool | None = None


class LogChunkBody(ApiModel):
    """Consecutive lines: nanoseconds since 1970, stream, text."""

    seq: Annotated[int, Field(ge=0, lt=1 << 62)]
    # JSON has no tuples, so a strict model must be told that a list will do.
    lines: Annotated[
        list[
            Annotated[
                tuple[Annotated[int, Field(ge=0, lt=1 << 62)], Literal["stdout", "stderr"], str], Field(strict=False)
            ]
        ],
        Field(max_length=_LINES_MAX),
    ]


class LogBatch(ApiModel):
    """Chunks in the order of their numbers."""

    chunks: Annotated[list[LogChunkBody], Field(max_length=_CHUNKS_MAX)]


class NodeRoutes:
    """The routes of nodes."""

    def __init__(self, leases: AttemptLeases, logs: LogWriter, settings: Settings) -> None:
        self._leases = leases
        self._logs = logs
        self._log_bytes_max = settings.log_request_bytes_max

    def routes(self) -> Sequence[BaseRoute]:
        """What the application serves."""
        attempt = "/node/v1/attempts/{uid}"
        return (
            Route(attempt + "/lease", self.lease, methods=["POST"]),
            Route(attempt + "/logs", self.store_log, methods=["POST"]),
            Route(attempt + "/phase", self.report_phase, methods=["POST"]),
            Route("/node/v1/builds/{uid}/logs", self.store_log, methods=["POST"]),
        )

    async def lease(self, request: Request) -> Response:
        """Everything to run one worker, secrets included."""
        require_node(principal(request))
        wanted = await read_typed(request, LeaseRequest, _BODY_BYTES_MAX)
        lease = await self._leases.lease(request.path_params["uid"], wanted.epoch)
        start = worker_start(lease.spec)
        told = {
            "token": lease.token,
            "project": lease.project,
            "function": lease.function,
            "functionUid": lease.function_uid,
            "concurrency": lease.concurrency,
            "python": lease.spec["python"],
            "image": _image_of(lease),
            "resources": lease.spec.get("resources", {}),
            "diskLeast": disk_least(lease.spec),
            "workingDir": lease.spec.get("workingDir"),
            "env": list(lease.variables.items()),
            "egress": egress_policy(lease.spec).to_json(),
            "start": start.to_json(),
            "sidecars": [
                {**sidecar.to_json(), "env": list(variables.items())}
                for sidecar, variables in zip(start.sidecars, lease.sidecar_variables, strict=True)
            ],
        }
        return Response(orjson.dumps(told), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def store_log(self, request: Request) -> Response:
        """Keeps lines of a worker's or a build's output; chunks that are stored already are skipped."""
        require_node(principal(request))
        batch = await read_typed(request, LogBatch, self._log_bytes_max)
        chunks = [LogChunk(chunk.seq, chunk.lines) for chunk in batch.chunks]
        await self._logs.append(request.path_params["uid"], chunks)
        return Response(status_code=204)

    async def report_phase(self, request: Request) -> Response:
        """Shows how far a worker is."""
        require_node(principal(request))
        report = await read_typed(request, PhaseReport, _BODY_BYTES_MAX)
        guarantees = report.guarantees.to_wire() if report.guarantees is not None else None
        await self._leases.report_phase(
            request.path_params["uid"], report.epoch, report.phase, guarantees, warm_reuse=report.warm_reuse
        )
        return Response(status_code=204)


def _image_of(lease: Lease) -> dict[str, str] | None:
    """What the node needs to find a built image; None for one of the catalog, and for an Image that names one."""
    if lease.image is None or "specHash" not in lease.image["status"]:
        return None
    status = lease.image["status"]
    return {"uid": lease.image["metadata"]["uid"], "key": status["specHash"], "digest": status["digest"]}
