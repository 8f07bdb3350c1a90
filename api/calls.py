"""`GET …/functioncalls/{name}/wait`, `/timeline` and `/charges`: why a call waits, what happened to it, what it cost.

Objects of their own that are made when they are asked for (`controlplane/calls/inspection.py`), served to whoever may
read the call.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.deps import SubresourceHandler, Target
from api.negotiation import negotiate
from api.rendering import pretty
from controlplane.calls.inspection import CallInspector
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.kinds.function_call import FUNCTION_CALL
from controlplane.machinery.kind import Document
from controlplane.store.contract import Key


class CallRoutes:
    """The handlers."""

    def __init__(self, inspector: CallInspector) -> None:
        self._views = {"wait": inspector.wait, "timeline": inspector.timeline, "charges": inspector.charges}

    def subresources(self) -> Mapping[tuple[str, str, str], SubresourceHandler]:
        """What joins the generic routes."""
        return {(FUNCTION_CALL.plural, name, "GET"): self.view for name in self._views}

    async def view(self, request: Request, caller: Principal, target: Target) -> Response:
        """One view of one call."""
        if target.rest:
            raise ApiError(Reason.NOT_FOUND, f"there is nothing below {target.kind.plural}/{target.subresource}")
        negotiate(request.headers.get("accept", ""))  # refuses who takes no JSON; a view has no other form
        shown: Document = await self._views[target.subresource](
            Key(target.kind.kind, caller.org, target.project, target.name)
        )
        body = orjson.dumps(shown)
        if request.query_params.get("pretty", "").lower() in ("true", "1"):
            body = pretty(body)
        return Response(body, media_type="application/json")
