"""Uploads, downloads and the signed data route of blobs.

A client asks for an upload, PUTs the bytes to the URL it is given, and names the blob by its digest from then on; a
download is a redirect to a URL for the bytes. Workers reach nothing but this API and follow no redirect, so their
URLs point to the data route at the address their sandbox knows, and their downloads are answered with the bytes.
The Idempotency-Key of an upload is not looked at: asking twice is harmless, and a replayed answer would hold a URL that
has expired.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from api.deps import principal
from api.typed_bodies import read_typed
from controlplane.blobs.backend import ByteStream
from controlplane.blobs.service import BlobStore, StoredBlob, blob_not_found
from controlplane.blobs.signing import DATA_PATH, BlobAddress, UploadGrant
from controlplane.errors import ApiError, Cause, Reason
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.identity.scopes import require_download, require_upload
from controlplane.machinery.model import ApiModel
from controlplane.settings import Settings

RequireProject = Callable[[str, str], Awaitable[object]]
"""Raises NotFound unless the organisation has the project."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_BODY_BYTES_MAX = 4_096
"""A digest, a size and a media type."""


class UploadRequest(ApiModel):
    """What a client wants to store."""

    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
    size: Annotated[int, Field(ge=0)]
    content_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$&^_.+-]{1,60}/[A-Za-z0-9!#$&^_.+-]{1,60}$")] = (
        "application/octet-stream"
    )


class BlobRoutes:
    """The routes of blobs over one store."""

    def __init__(self, store: BlobStore, require_project: RequireProject, settings: Settings) -> None:
        self._store = store
        self._require_project = require_project
        self._settings = settings

    def routes(self) -> Sequence[BaseRoute]:
        """What the application serves; the data route must be reachable without a credential."""
        data = DATA_PATH + "/{org}/{project}/{digest}"
        return (
            Route("/blobs/v1/namespaces/{project}/uploads", self.upload, methods=["POST"]),
            Route("/blobs/v1/namespaces/{project}/blobs/{digest}", self.download, methods=["GET"]),
            Route(data, self.put_data, methods=["PUT"]),
            Route(data, self.get_data, methods=["GET"]),
        )

    async def upload(self, request: Request) -> Response:
        """`{"exists": true}`, or where to PUT the bytes; QuotaExceeded when they would not fit."""
        caller = principal(request)
        project = request.path_params["project"]
        require_upload(caller, project)
        await self._require_project(caller.org, project)
        wanted = await read_typed(request, UploadRequest, _BODY_BYTES_MAX)
        if wanted.size > self._settings.blob_bytes_max:
            message = f"must be at most {self._settings.blob_bytes_max}"
            raise ApiError(Reason.INVALID, f"the body is invalid: size: {message}", causes=(Cause("size", message),))
        grant = UploadGrant(BlobAddress(caller.org, project, wanted.sha256), wanted.size, wanted.content_type)
        if await self._store.find(grant.address) is not None:
            return _json({"exists": True})
        await self._store.require_room(grant.address, grant.size_bytes)
        headers = {"Content-Type": grant.content_type}
        return _json({"exists": False, "url": self._upload_url(request, caller, grant), "headers": headers})

    async def download(self, request: Request) -> Response:
        """The bytes for a worker, a redirect to them for everyone else."""
        caller = principal(request)
        project, digest = request.path_params["project"], request.path_params["digest"]
        require_download(caller, project)
        blob = await self._found(BlobAddress(caller.org, project, digest))
        if caller.kind is PrincipalKind.ATTEMPT:
            return BlobResponse(blob, await self._store.open(blob))
        direct = self._store.direct
        if direct is not None:
            location = direct.download_url(blob.location)
        else:
            location = self._origin(request) + self._store.signer.download_path(blob.address)
        return Response(status_code=302, headers={"Location": location, "X-Nodus-SHA256": digest})

    async def put_data(self, request: Request) -> Response:
        """Takes the bytes that a signed URL allows; the URL is the credential."""
        grant = self._store.signer.check_upload(_address(request), request.query_params)
        declared = request.headers.get("content-length")
        if declared is not None and declared != str(grant.size_bytes):
            raise ApiError(
                Reason.INVALID,
                f"the blob is not stored: the body has {declared} bytes, {grant.size_bytes} were announced",
                causes=(Cause("size", f"must be {grant.size_bytes}"),),
            )
        await self._store.receive(grant, request.stream())
        return Response(status_code=200)

    async def get_data(self, request: Request) -> Response:
        """Gives the bytes that a signed URL allows; the URL is the credential."""
        address = _address(request)
        self._store.signer.check_download(address, request.query_params)
        blob = await self._found(address)
        return BlobResponse(blob, await self._store.open(blob))

    async def _found(self, address: BlobAddress) -> StoredBlob:
        blob = await self._store.find(address) if _DIGEST.fullmatch(address.digest) else None
        if blob is None:
            raise blob_not_found(address)
        return blob

    def _upload_url(self, request: Request, caller: Principal, grant: UploadGrant) -> str:
        path = self._store.signer.upload_path(grant)
        if caller.kind is PrincipalKind.ATTEMPT:
            # A worker without a sandbox has no port of its own; its node says in this header where it reaches us.
            return request.headers.get("nodus-data-origin", self._settings.sandbox_api_origin) + path
        if self._store.direct is not None:
            return self._store.direct.upload_url(grant.address)
        return self._origin(request) + path

    def _origin(self, request: Request) -> str:
        """Where this client reaches us: as configured, else as it has just done."""
        return self._settings.public_url.rstrip("/") or f"{request.url.scheme}://{request.url.netloc}"


class BlobResponse(Response):
    """Streams a blob and closes it however the answer ends.

    Bytes and type are a user's, and the origin also serves a console: a browser must only ever save them.
    """

    def __init__(self, blob: StoredBlob, stream: ByteStream) -> None:
        super().__init__(
            media_type=blob.content_type,
            headers={
                "Content-Length": str(blob.size_bytes),
                "Content-Disposition": "attachment",
                "X-Content-Type-Options": "nosniff",
                "X-Nodus-SHA256": blob.address.digest,
            },
        )
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            while chunk := await self._stream.read():
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            await self._stream.close()


def _address(request: Request) -> BlobAddress:
    parameters = request.path_params
    return BlobAddress(parameters["org"], parameters["project"], parameters["digest"])


def _json(value: dict[str, Any]) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
