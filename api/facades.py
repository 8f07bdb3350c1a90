"""Routes of other APIs that clients insist on, answered from our own objects.

kubectl asks for a core/v1 Namespace after each 404, to word its message, and for core/v1 Events in `describe`; the
public command line sends Prometheus queries for `top`. None of these is listed in discovery.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import Deps, principal
from api.watch import is_watch
from controlplane.admission import PROJECT_KIND
from controlplane.errors import ApiError, Reason
from controlplane.identity.scopes import require
from controlplane.machinery.kind import API_VERSION, Document, Verb
from controlplane.machinery.selectors import FieldTerm, parse_fields, parse_labels
from controlplane.resources import ListOptions, Page
from controlplane.store.contract import Selection

_EVENTS = "events"
_PROJECTS = "projects"
_FUNCTIONS = "functions"


class FacadeRoutes:
    """The handlers."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._resources = deps.resources

    def routes(self) -> Sequence[BaseRoute]:
        """Namespaces, events and metrics queries."""
        return (
            Route("/api/v1/namespaces", self.namespaces, methods=["GET"]),
            Route("/api/v1/namespaces/{project}", self.namespace, methods=["GET"]),
            Route("/api/v1/events", self.events, methods=["GET"]),
            Route("/api/v1/namespaces/{project}/events", self.events, methods=["GET"]),
            Route("/metrics/v1/namespaces/{project}/api/v1/query", self.metrics, methods=["GET", "POST"]),
        )

    async def namespaces(self, request: Request) -> Response:
        """The caller's projects as core/v1 Namespaces."""
        caller = principal(request)
        kind = self._deps.kinds[_PROJECTS]
        require(caller, kind.scope_resource, Verb.LIST, None)
        selection = Selection(
            kind=kind.kind,
            org=caller.org,
            project="",
            labels=parse_labels(request.query_params.get("labelSelector", "")),
            fields=parse_fields(request.query_params.get("fieldSelector", ""), kind),
            projects=caller.project_limit,
            project_field=kind.project_field,
        )
        page, found = await self._list(request, selection)
        return _core_list("NamespaceList", [_namespace(project) for project in found], page)

    async def namespace(self, request: Request) -> Response:
        """One project as a core/v1 Namespace."""
        caller, name = principal(request), request.path_params["project"]
        kind = self._deps.kinds[_PROJECTS]
        require(caller, kind.scope_resource, Verb.GET, name)
        project = await self._resources.admission.lookup(caller.org, "").get(PROJECT_KIND, name)
        if project is None:
            raise ApiError(
                Reason.NOT_FOUND, f'namespaces "{name}" not found', details={"name": name, "kind": "namespaces"}
            )
        return Response(orjson.dumps(_namespace(project)), media_type="application/json")

    async def events(self, request: Request) -> Response:
        """Events as core/v1 has them, of one project or of all that the caller may see."""
        caller = principal(request)
        kind = self._deps.kinds[_EVENTS]
        project = request.path_params.get("project")
        require(caller, kind.scope_resource, Verb.LIST, project)
        fields = parse_fields(request.query_params.get("fieldSelector", ""), kind)
        if project is not None:
            fields = (*fields, FieldTerm("involvedObject.namespace", True, project))
        selection = Selection(
            kind.kind, caller.org, "", fields=fields, projects=caller.project_limit, project_field=kind.project_field
        )
        page, found = await self._list(request, selection)
        return _core_list("EventList", [_core_event(event) for event in found], page)

    async def metrics(self, request: Request) -> Response:
        """An empty vector: workers are not metered by the second, so `top` shows what an object's status tells."""
        require(
            principal(request), self._deps.kinds[_FUNCTIONS].scope_resource, Verb.GET, request.path_params["project"]
        )
        empty = {"status": "success", "data": {"resultType": "vector", "result": []}}
        return Response(orjson.dumps(empty), media_type="application/json")

    async def _list(self, request: Request, selection: Selection) -> tuple[Page, list[Document]]:
        if is_watch(request.query_params):
            raise ApiError(Reason.METHOD_NOT_ALLOWED, "this list cannot be watched; watch the kind of nodus.dev/v1")
        query = request.query_params
        options = ListOptions(limit=query.get("limit", ""), continue_token=query.get("continue", ""))
        page = await self._resources.reader.list(selection, options)
        return page, [orjson.loads(document) for document in page.documents]


def _core_list(kind: str, items: list[Document], page: Page) -> Response:
    body = {"kind": kind, "apiVersion": "v1", "metadata": page.metadata, "items": items}
    return Response(orjson.dumps(body), media_type="application/json")


def _namespace(project: Document) -> Document:
    terminating = "deletionTimestamp" in project["metadata"]
    return {
        "kind": "Namespace",
        "apiVersion": "v1",
        "metadata": project["metadata"],
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Terminating" if terminating else "Active"},
    }


def _core_event(event: Document) -> Document:
    """The Event in the words of core/v1, which sorts and ages by its timestamps."""
    involved: dict[str, Any] = {"apiVersion": API_VERSION, **event["involvedObject"]}
    last = event["lastTime"]
    return {
        "kind": "Event",
        "apiVersion": "v1",
        "metadata": {**event["metadata"], "namespace": involved.get("namespace", "default")},
        "involvedObject": involved,
        "type": event["type"],
        "reason": event["reason"],
        "message": event["message"],
        "source": {"component": "nodus-server"},
        "firstTimestamp": event.get("firstTime", last),
        "lastTimestamp": last,
        "count": event.get("count", 1),
    }
