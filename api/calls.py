"""`GET …/functioncalls/{name}/wait`, `/timeline` and `/charges`: why a call waits, what happened to it, what it cost;
and `…/functions/{name}/charges`, what a Function cost.

Objects of their own that are made when they are asked for (`controlplane/calls/inspection.py`, `function_charges.py`),
served to whoever may read the call or the Function.
"""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.deps import SubresourceHandler, Target
from api.negotiation import negotiate
from api.rendering import pretty
from controlplane.calls.function_charges import FunctionAuditor
from controlplane.calls.inspection import CallInspector
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.kinds.function import FUNCTION
from controlplane.kinds.function_call import FUNCTION_CALL
from controlplane.machinery.kind import Document
from controlplane.store.contract import Key


class ViewRoutes:
    """The handlers."""

    def __init__(self, inspector: CallInspector, auditor: FunctionAuditor) -> None:
        self._views = {
            (FUNCTION_CALL.plural, "wait"): inspector.wait,
            (FUNCTION_CALL.plural, "timeline"): inspector.timeline,
            (FUNCTION_CALL.plural, "charges"): inspector.charges,
            (FUNCTION.plural, "charges"): auditor.charges,
        }

    def subresources(self) -> Mapping[tuple[str, str, str], SubresourceHandler]:
        """What joins the generic routes."""
        return {(plural, name, "GET"): self.view for plural, name in self._views}

    async def view(self, request: Request, caller: Principal, target: Target) -> Response:
        """One view of one call or Function."""
        if target.rest:
            raise ApiError(Reason.NOT_FOUND, f"there is nothing below {target.kind.plural}/{target.subresource}")
        negotiate(request.headers.get("accept", ""))  # refuses who takes no JSON; a view has no other form
        shown: Document = await self._views[target.kind.plural, target.subresource](
            Key(target.kind.kind, caller.org, target.project, target.name)
        )
        body = orjson.dumps(shown)
        if request.query_params.get("pretty", "").lower() in ("true", "1"):
            body = pretty(body)
        return Response(body, media_type="application/json")
