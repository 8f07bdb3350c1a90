"""The application of the HTTP edge: start reading here.

`create_app` puts the routes together and wraps them in `middleware.Edge`, which every request passes first. The generic
routes of all kinds are in `resources.py`; claims, logs, blobs and nodes join through `Deps`.
"""

from __future__ import annotations

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from api.deps import Deps
from api.discovery import DiscoveryRoutes
from api.error_pages import ErrorPages
from api.facades import FacadeRoutes
from api.forwarding import Forwarding
from api.health import HealthRoutes
from api.identity import IdentityRoutes
from api.middleware import Edge, ErrorHandlers
from api.resources import ResourceRoutes
from api.reviews import ReviewRoutes
from controlplane.errors import ApiError


def create_app(deps: Deps) -> ASGIApp:
    """Everything that is served, ready for a server."""
    # FastAPI's own documents describe none of these routes; discovery serves the right ones.
    app = FastAPI(openapi_url=None, docs_url=None, redoc_url=None, redirect_slashes=False)
    handlers = ErrorHandlers(deps)
    app.add_exception_handler(ApiError, handlers.api_error)
    app.add_exception_handler(HTTPException, handlers.http_exception)
    app.add_exception_handler(Exception, handlers.unexpected)
    app.router.routes[:] = routes_of(deps)
    edge, proxies = Edge(app, deps), deps.settings.trusted_proxies
    return Forwarding(edge, proxies) if proxies else edge


def routes_of(deps: Deps) -> list[BaseRoute]:
    """Every route. They are tried in order: what workers and callers ask all day comes first."""
    return [
        *ResourceRoutes(deps).routes(),
        *deps.routes,
        *HealthRoutes(deps).routes(),
        *IdentityRoutes(deps).routes(),
        *DiscoveryRoutes(deps).routes(),
        *ReviewRoutes(deps).routes(),
        *FacadeRoutes(deps).routes(),
        *ErrorPages().routes(),
    ]
