"""What clients ask before anything else: groups, kinds, verbs, schemas, version.

The documents are made once from the table of kinds (`controlplane/machinery/discovery.py`, `openapi.py`) and sent as
they are; here is decided which form of them a client gets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import Deps
from controlplane.kinds import core_openapi
from controlplane.kinds.core import CORE_VERSION, DISCOVERED
from controlplane.machinery import discovery
from controlplane.machinery.kind import API_VERSION
from controlplane.machinery.openapi import GROUP_PATH, document_hash, openapi_document, openapi_index

_AGGREGATED_VERSIONS = ("v2", "v2beta1")
_OPENAPI_V2_PROTOBUF = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
KUBERNETES_MINOR = "36"
"""The Kubernetes release whose API conventions are followed; kubectl warns when its own is more than one away."""
HASHED_SECONDS = 31_536_000
"""A year, the longest that HTTP caches are told, for a document whose URL names its hash."""


class DiscoveryRoutes:
    """The handlers, over documents that never change while the process runs."""

    def __init__(self, deps: Deps) -> None:
        kinds = tuple(deps.kinds.values())
        schemas = {
            GROUP_PATH: _body(openapi_document(kinds, release=deps.release)),
            **{path: _body(document) for path, document in core_openapi.documents(deps.release).items()},
        }
        self._documents = {
            "/api": _body({"kind": "APIVersions", "apiVersion": "v1", "versions": [CORE_VERSION]}),
            f"/api/{CORE_VERSION}": _body(discovery.api_resource_list(DISCOVERED, CORE_VERSION)),
            "/apis": _body(discovery.api_group_list()),
            **{f"/apis/{group}": _body(discovery.api_group(group)) for group in discovery.GROUPS},
            **{
                f"/apis/{review.group_version}": _body(discovery.review_resource_list(review.group))
                for review in discovery.REVIEWS
            },
            f"/apis/{API_VERSION}": _body(discovery.api_resource_list(kinds)),
            "/openapi/v3": _body(openapi_index(schemas)),
            **{f"/openapi/v3/{path}": document for path, document in schemas.items()},
            "/version": _body(_version(deps.release)),
        }
        self._aggregated = {
            (path, version): _body(document)
            for version in _AGGREGATED_VERSIONS
            for path, document in (
                ("/apis", discovery.aggregated_with_reviews(kinds, version)),
                ("/api", discovery.aggregated(DISCOVERED, version)),
            )
        }
        self._hashes = {body: document_hash(body) for body in (*self._documents.values(), *self._aggregated.values())}

    def routes(self) -> Sequence[BaseRoute]:
        """A route for each document."""
        return [Route(path, self.document, methods=["GET"]) for path in self._documents] + [
            Route("/openapi/v2", self.openapi_v2, methods=["GET"])
        ]

    async def document(self, request: Request) -> Response:
        """The document of the path, aggregated if the client prefers that and it exists."""
        path: str = request.scope["path"]
        aggregated = _wanted_aggregation(request.headers.get("accept", ""))
        if aggregated is not None and (path, aggregated) in self._aggregated:
            body, media_type = self._aggregated[(path, aggregated)], discovery.aggregated_media_type(aggregated)
        else:
            body, media_type = self._documents[path], "application/json"
        digest = self._hashes[body]
        headers = {"Vary": "Accept", "ETag": f'"{digest}"'}
        if request.query_params.get("hash") == digest:
            # A path with this hash can never answer anything else.
            headers["Cache-Control"] = f"private, immutable, max-age={HASHED_SECONDS}"
        if digest in _known(request.headers.get("if-none-match", "")):
            return Response(status_code=304, headers=headers)
        return Response(body, headers={**headers, "Content-Type": media_type})

    async def openapi_v2(self, request: Request) -> Response:
        """An empty document: clients from before v3 then validate nothing instead of failing (R-DISC-6)."""
        if "proto-openapi.spec.v2" in request.headers.get("accept", ""):
            # An `@` in this type, as Kubernetes has it, is not valid and breaks Go's parser.
            return Response(b"", headers={"Content-Type": _OPENAPI_V2_PROTOBUF})
        empty = {"swagger": "2.0", "info": {"title": API_VERSION, "version": "v1"}, "paths": {}, "definitions": {}}
        return Response(orjson.dumps(empty), media_type="application/json")


def _known(if_none_match: str) -> set[str]:
    """The hashes of the documents that the client has."""
    return {tag.strip().removeprefix("W/").strip('"') for tag in if_none_match.split(",")}


def _wanted_aggregation(accept: str) -> str | None:
    """The version of the aggregated form that the client names first, or None when it wants the legacy one."""
    for media_range in accept.split(","):
        media_type, *parameters = (part.strip() for part in media_range.split(";"))
        if media_type != "application/json":
            continue
        if not parameters:
            return None
        asked = dict(part.split("=", 1) for part in parameters if "=" in part)
        if asked.get("as") == "APIGroupDiscoveryList" and asked.get("v") in _AGGREGATED_VERSIONS:
            return asked["v"]
    return None


def _version(release: str) -> dict[str, str]:
    """What `kubectl version` shows; it compares only major and minor."""
    return {
        "major": "1",
        "minor": KUBERNETES_MINOR,
        "gitVersion": f"v1.{KUBERNETES_MINOR}.0+nodus.{release}",
        "gitCommit": release,
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    }


def _body(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document)
