"""What nodes ask and tell about images: the steps of a build, how far it is, what it printed, what is still named.

Like `node.py`, for a node's credential only.
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
from controlplane.blobs.service import BlobStore
from controlplane.blobs.signing import BlobAddress
from controlplane.errors import ApiError, Reason, not_found
from controlplane.identity.scopes import require_node
from controlplane.images.builds import BuildReference, NoteStage, RequestBuild
from controlplane.images.use import image_use
from controlplane.kinds.image import blobs_of
from controlplane.kinds.references import digest_of
from controlplane.machinery.model import ApiModel
from controlplane.store.cache import ObjectCache
from controlplane.store.contract import Document, Key
from controlplane.store.writer import Writer

_BODY_BYTES_MAX = 4_096
"""A few words about a build."""
_KEYS_MAX = 10_000
"""Images of one node; each takes tens of megabytes."""
_KEYS_BODY_BYTES_MAX = 1 << 20
"""So many keys, with room."""


class PlanRequest(ApiModel):
    """Which generation the node means to build."""

    generation: Annotated[int, Field(ge=1)]


class StageReport(ApiModel):
    """How far its build is."""

    generation: Annotated[int, Field(ge=1)]
    stage: Literal["Queued", "Building", "Pushing"]


class MissingReport(ApiModel):
    """That a node does not have what was built, and why."""

    digest: Annotated[str, Field(max_length=80)]
    message: Annotated[str, Field(max_length=1_000)]


class KeysReport(ApiModel):
    """What a node has."""

    keys: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=_KEYS_MAX)]


class NodeImageRoutes:
    """The routes."""

    def __init__(self, cache: ObjectCache, writer: Writer, blobs: BlobStore) -> None:
        self._cache = cache
        self._writer = writer
        self._blobs = blobs

    def routes(self) -> Sequence[BaseRoute]:
        """What the application serves."""
        image = "/node/v1/images/{uid}"
        return (
            Route(image + "/plan", self.plan, methods=["POST"]),
            Route(image + "/stage", self.stage, methods=["POST"]),
            Route(image + "/missing", self.missing, methods=["POST"]),
            Route("/node/v1/named-images", self.named, methods=["POST"]),
        )

    async def plan(self, request: Request) -> Response:
        """The steps of a build, with a signed path for each blob they read; Conflict when nobody waits for it."""
        require_node(principal(request))
        wanted = await read_typed(request, PlanRequest, _BODY_BYTES_MAX)
        key, document = self._image(request.path_params["uid"])
        if not BuildReference(key, request.path_params["uid"], wanted.generation).waits_in(document):
            raise ApiError(Reason.CONFLICT, f'nobody waits for this build of images.nodus.dev "{key.name}"')
        references = dict.fromkeys(reference for _, reference in blobs_of(document["spec"]))
        paths = {
            reference: self._blobs.signer.download_path(BlobAddress(key.org, key.project, digest_of(reference)))
            for reference in references
        }
        told = {"python": document["status"]["python"], "spec": document["spec"], "blobs": paths}
        return Response(orjson.dumps(told), media_type="application/json", headers={"Cache-Control": "no-store"})

    async def stage(self, request: Request) -> Response:
        """Shows how far a build is."""
        require_node(principal(request))
        told = await read_typed(request, StageReport, _BODY_BYTES_MAX)
        key, _ = self._image(request.path_params["uid"])
        build = BuildReference(key, request.path_params["uid"], told.generation)
        await self._writer.write(NoteStage(build, told.stage))
        return Response(status_code=204)

    async def missing(self, request: Request) -> Response:
        """Has an image built again that a node was to start a worker from and does not have."""
        require_node(principal(request))
        told = await read_typed(request, MissingReport, _BODY_BYTES_MAX)
        key, _ = self._image(request.path_params["uid"])
        await self._writer.write(RequestBuild(key, request.path_params["uid"], told.digest, told.message))
        return Response(status_code=204)

    async def named(self, request: Request) -> Response:
        """Which of a node's images some Function still names; others are built again when one does."""
        require_node(principal(request))
        told = await read_typed(request, KeysReport, _KEYS_BODY_BYTES_MAX)
        functions = self._cache.of_kind("Function")
        named = {image_use(key, document, self._cache).environment for key, document in functions}
        return Response(orjson.dumps({"named": sorted(named.intersection(told.keys))}), media_type="application/json")

    def _image(self, uid: str) -> tuple[Key, Document]:
        document = self._cache.by_uid(uid)
        key = self._cache.key_of(uid)
        if document is None or key is None or key.kind != "Image":
            raise not_found("images", uid)
        return key, document
