"""Who am I: for people's keys `/auth/whoami`, for code inside a worker `/self`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import Deps, origin_of, principal
from controlplane.admission import PROJECT_KIND
from controlplane.identity.principal import PrincipalKind
from controlplane.identity.scopes import require_active, require_worker
from controlplane.machinery.scope_grammar import ALL
from controlplane.store.cache import ObjectCache


class IdentityRoutes:
    """The handlers."""

    def __init__(self, deps: Deps) -> None:
        self._cache = deps.cache
        self._settings = deps.settings

    def routes(self) -> Sequence[BaseRoute]:
        """`/auth/whoami` and `/self`, and where people log in."""
        return (
            Route("/auth/whoami", self.whoami, methods=["GET"]),
            Route("/self", self.self_info, methods=["GET"]),
            Route("/.well-known/nodus-configuration", self.configuration, methods=["GET"]),
        )

    async def whoami(self, request: Request) -> Response:
        """The caller with its projects and scopes, from which the public command line answers `auth can-i`."""
        caller = principal(request)
        require_active(caller)
        told: dict[str, Any] = {
            "kind": "User" if caller.kind is PrincipalKind.USER else "ServiceAccount",
            "org": caller.org,
            "orgName": caller.org,
            "projects": visible_projects(self._cache, caller.org, caller.projects),
            "scopes": sorted(caller.scopes),
        }
        optional = {
            "user": caller.user_uuid,
            "email": caller.email,
            "role": caller.role,
            "serviceAccount": None if caller.kind is PrincipalKind.USER else caller.account or caller.label,
        }
        told |= {name: value for name, value in optional.items() if value is not None}
        return Response(orjson.dumps(told), media_type="application/json")

    async def configuration(self, request: Request) -> Response:
        """Where people go with a browser: `nodus login` opens its page there (`login_pages.py`)."""
        told = {"consoleURL": origin_of(request.scope, self._settings)}
        return Response(orjson.dumps(told), media_type="application/json")

    async def self_info(self, request: Request) -> Response:
        """The Function that the calling worker serves, and which of its attempts the worker is."""
        binding = require_worker(principal(request))
        told = {
            "kind": "Function",
            "name": binding.function,
            "project": binding.project,
            "attempt": binding.attempt,
            "epoch": binding.epoch,
            "index": 0,
        }
        return Response(orjson.dumps(told), media_type="application/json")


def visible_projects(cache: ObjectCache, org: str, projects: Collection[str]) -> list[str]:
    """Names of a caller's projects; for one that may act in all (`*`), of those there are."""
    if ALL not in projects:
        return sorted(projects)
    return sorted(key.name for key, _ in cache.of_kind(PROJECT_KIND) if key.org == org)
