"""`POST …/serviceaccounts/{name}/tokens`: a token for a program, shown once.

What is made is an APIKey (decision 0030), so the token is listed, revoked and repeated under its Idempotency-Key like
any other key; only the request and the answer have a form of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated

import orjson
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body
from api.deps import SubresourceHandler, Target
from api.options import create_options
from api.typed_bodies import typed
from controlplane.clock import Clock, format_time
from controlplane.errors import ApiError, Cause, Reason
from controlplane.identity.principal import Principal
from controlplane.kinds.api_key import API_KEY, ScopeText
from controlplane.kinds.service_account import SERVICE_ACCOUNT, TOKENS
from controlplane.machinery.kind import Document
from controlplane.machinery.model import ApiModel
from controlplane.machinery.quantities import Duration, parse_duration
from controlplane.machinery.scope_grammar import SCOPES_MAX
from controlplane.resources import Resources

DURATION_DEFAULT = timedelta(days=90)
DURATION_MAX = timedelta(hours=8760)
"""Both are the protocol's: a program's token is renewed at least once a year."""
_BODY_BYTES_MAX = 16_384
"""Room for all scopes that one may name."""


class TokenRequestBody(ApiModel):
    """What the token is to be."""

    kind: str | None = None
    api_version: str | None = None
    duration: Duration | None = None
    scopes: Annotated[list[ScopeText] | None, Field(max_length=SCOPES_MAX)] = None


class ServiceAccountRoutes:
    """The handler."""

    def __init__(self, resources: Resources, clock: Clock) -> None:
        self._resources = resources
        self._clock = clock

    def subresources(self) -> Mapping[tuple[str, str, str], SubresourceHandler]:
        """What joins the generic routes."""
        return {(SERVICE_ACCOUNT.plural, TOKENS, "POST"): self.create}

    async def create(self, request: Request, caller: Principal, target: Target) -> Response:
        """A new token of the account."""
        if target.rest:
            raise ApiError(Reason.NOT_FOUND, f"there is nothing below {target.kind.plural}/{target.subresource}")
        content = await read_body(request, _BODY_BYTES_MAX)
        asked = typed(content, TokenRequestBody)
        spec: Document = {
            "project": target.project,
            "serviceAccountName": target.name,
            "expirationTime": self._end(asked),
        }
        if asked.scopes is not None:
            spec["scopes"] = asked.scopes
        body = {"metadata": {"generateName": f"{target.name[:_NAME_LENGTH_MAX]}-"}, "spec": spec}
        answer = await self._resources.creator.create(
            API_KEY, "", body, caller, create_options(request, caller, content)
        )
        made = orjson.loads(answer.body)
        told = {
            "kind": "TokenRequest",
            "apiVersion": API_KEY.api_version,
            "metadata": {"name": made["metadata"]["name"]},
            "token": made["status"].get("token", ""),
            "expirationTime": made["spec"]["expirationTime"],
        }
        return Response(orjson.dumps(told), status_code=answer.status, media_type="application/json")

    def _end(self, asked: TokenRequestBody) -> str:
        duration = DURATION_DEFAULT if asked.duration is None else timedelta(seconds=parse_duration(asked.duration))
        if not timedelta(0) < duration <= DURATION_MAX:
            problem = f"must be more than 0s and at most {int(DURATION_MAX.total_seconds() // 3600)}h"
            raise ApiError(Reason.INVALID, f"`duration` {problem}", causes=(Cause("duration", problem),))
        return format_time(self._clock.now() + duration)


_NAME_LENGTH_MAX = 50
"""Of the account's name in that of a key, which has 63 characters and ends in random ones."""
