"""Whether this process answers, and whether it should be sent requests.

`/healthz` says that the process runs. `/readyz` runs the checks of `Deps`: a required one that fails makes the process
unready (503, first line its name), an optional one only shows, because calls go on without the engine for a while.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.deps import Deps, ReadinessCheck

CHECK_SECONDS_MAX = 2.0
"""Clients give the whole probe five seconds."""


class HealthRoutes:
    """The handlers of the two probes; both need no credential."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps

    def routes(self) -> Sequence[BaseRoute]:
        """`/healthz` and `/readyz`."""
        return (
            Route("/healthz", self.healthz, methods=["GET"]),
            Route("/readyz", self.readyz, methods=["GET"]),
        )

    async def healthz(self, request: Request) -> Response:
        """The process runs its event loop."""
        return self._told(200, ["ok"])

    async def readyz(self, request: Request) -> Response:
        """Every required check is well, and the process was not asked to stop."""
        if self._deps.stopping.is_set():
            return self._told(503, ["stopping"])
        failing = await _failing(self._deps.required)
        if failing:
            return self._told(503, failing)
        return self._told(200, ["ok", *(f"degraded {name}" for name in await _failing(self._deps.optional))])

    def _told(self, status: int, lines: Sequence[str]) -> Response:
        return Response(
            "".join(f"{line}\n" for line in lines),
            status_code=status,
            media_type="text/plain",
            headers={"X-Nodus-Release": self._deps.release, "Cache-Control": "no-store"},
        )


async def _failing(checks: Mapping[str, ReadinessCheck]) -> list[str]:
    """Names of the checks that do not say yes in time; one that raises does not say yes."""
    answers = await asyncio.gather(*(_is_well(check) for check in checks.values()))
    return [name for name, well in zip(checks, answers, strict=True) if not well]


async def _is_well(check: ReadinessCheck) -> bool:
    try:
        async with asyncio.timeout(CHECK_SECONDS_MAX):
            return await check()
    except Exception:  # whatever a check meets, it is not well
        return False
