"""`kubectl auth can-i`, `can-i --list` and `whoami`: questions about oneself, worded as objects to create.

A TokenReview, by which kr8s asks who it is, is answered for the token of the request alone.

Nothing is stored. Every credential may ask; the answers are made in `controlplane/identity/reviews.py` from what the
credential may really do. Go clients send these bodies as protobuf (R-NEG-4), everybody else as JSON.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import orjson
from pydantic import ConfigDict, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.bodies import read_body
from api.deps import Deps, credential, principal
from api.negotiation import BodyType, negotiate, review_type
from controlplane.errors import ApiError, Cause, Reason
from controlplane.identity.principal import Principal
from controlplane.identity.reviews import NON_RESOURCE_URLS, Attributes, Decision, decide, decide_url, rules, user_info
from controlplane.identity.scopes import require_active
from controlplane.machinery.discovery import REVIEWS, Review
from controlplane.machinery.kind import Document
from controlplane.machinery.model import ApiModel
from controlplane.machinery.protobuf import Shape, decode_protobuf
from controlplane.machinery.validation import causes_of, decode_json, decode_object, decode_yaml

Spec = TypeVar("Spec", bound=ApiModel)

_RESOURCE: Shape = {
    1: "namespace",
    2: "verb",
    3: "group",
    4: "version",
    5: "resource",
    6: "subresource",
    7: "name",
}
_SHAPES: Mapping[str, Shape] = {
    "SelfSubjectAccessReview": {
        2: ("spec", {1: ("resourceAttributes", _RESOURCE), 2: ("nonResourceAttributes", {1: "path", 2: "verb"})})
    },
    "SelfSubjectRulesReview": {2: ("spec", {1: "namespace"})},
    "SelfSubjectReview": {},
    "TokenReview": {2: ("spec", {1: "token"})},
}
"""The numbers of the fields in Kubernetes' own protobuf definitions."""


class _Asked(ApiModel):
    """Clients send more than is judged here (selectors, empty metadata), now and in later versions."""

    model_config = ConfigDict(extra="ignore")


class _ResourceAttributes(_Asked):
    namespace: str = ""
    verb: str = ""
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    name: str = ""


class _NonResourceAttributes(_Asked):
    path: str = ""
    verb: str = ""


class _AccessSpec(_Asked):
    resource_attributes: _ResourceAttributes | None = None
    non_resource_attributes: _NonResourceAttributes | None = None


class _RulesSpec(_Asked):
    namespace: str = ""


class _TokenSpec(_Asked):
    token: str = ""


class ReviewRoutes:
    """The handlers."""

    def __init__(self, deps: Deps) -> None:
        self._deps = deps
        self._answers: Mapping[str, Callable[[Request, Principal, Document], Document]] = {
            "SelfSubjectAccessReview": self._access,
            "SelfSubjectRulesReview": self._rules,
            "SelfSubjectReview": self._self,
            "TokenReview": self._token,
        }

    def routes(self) -> Sequence[BaseRoute]:
        """One for each review."""
        return [
            Route(f"/apis/{review.group_version}/{review.plural}", self._handler(review), methods=["POST"])
            for review in REVIEWS
        ]

    def _handler(self, review: Review) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            caller = principal(request)
            require_active(caller)
            negotiate(request.headers.get("accept", ""))
            body = await self._body(request, review)
            told = {
                "kind": review.kind,
                "apiVersion": review.group_version,
                "metadata": {},
                **self._answers[review.kind](request, caller, body),
            }
            return Response(orjson.dumps(told), status_code=201, media_type="application/json")

        return answer

    async def _body(self, request: Request, review: Review) -> Document:
        content = await read_body(request, self._deps.settings.body_bytes_max)
        match review_type(request.headers.get("content-type", "")):
            case BodyType.PROTOBUF:
                body = decode_protobuf(content, _SHAPES)
            case BodyType.YAML:
                body = decode_object(decode_yaml(content))
            case _:
                body = decode_object(decode_json(content))
        expected = {"kind": review.kind, "apiVersion": review.group_version}
        for field, value in expected.items():
            if body.get(field) not in (None, "", value):
                raise ApiError(Reason.BAD_REQUEST, f"`{field}` must be {value}, as the path says")
        return body

    def _access(self, _request: Request, caller: Principal, body: Document) -> Document:
        spec = _spec(_AccessSpec, body)
        resource, url = spec.resource_attributes, spec.non_resource_attributes
        if (resource is None) == (url is None):
            problem = "exactly one of `resourceAttributes` and `nonResourceAttributes` must be given"
            raise ApiError(Reason.INVALID, f"`spec`: {problem}", causes=(Cause("spec", problem),))
        if url is not None:
            decision = decide_url(url.path, url.verb)
        else:
            assert resource is not None, "one of the two is given"
            decision = decide(caller, _attributes(resource), self._deps.kinds)
        return {"spec": body["spec"], "status": _status(decision)}

    def _rules(self, _request: Request, caller: Principal, body: Document) -> Document:
        spec = _spec(_RulesSpec, body)
        if not spec.namespace:
            problem = "must name a project"
            raise ApiError(Reason.INVALID, f"`spec.namespace` {problem}", causes=(Cause("spec.namespace", problem),))
        urls = {"verbs": ["get"], "nonResourceURLs": list(NON_RESOURCE_URLS)}
        status: dict[str, Any] = {
            "resourceRules": rules(caller, spec.namespace, self._deps.kinds),
            "nonResourceRules": [urls],
            "incomplete": False,
        }
        return {"spec": body["spec"], "status": status}

    @staticmethod
    def _self(_request: Request, caller: Principal, _body: Document) -> Document:
        return {"status": {"userInfo": user_info(caller)}}

    @staticmethod
    def _token(request: Request, caller: Principal, body: Document) -> Document:
        asked = _spec(_TokenSpec, body).token.encode()
        own = credential(request).partition(b" ")[2].strip().partition(b" ")[0]
        if not hmac.compare_digest(asked, own):
            return {
                "spec": {},
                "status": {"authenticated": False, "error": "only the token of the request is reviewed"},
            }
        # The token itself is not told again: answers end up in more places than requests.
        return {"spec": {}, "status": {"authenticated": True, "user": user_info(caller)}}


def _attributes(asked: _ResourceAttributes) -> Attributes:
    return Attributes(
        verb=asked.verb,
        group=asked.group,
        resource=asked.resource,
        subresource=asked.subresource,
        namespace=asked.namespace,
        name=asked.name,
    )


def _status(decision: Decision) -> Document:
    return {"allowed": decision.allowed, "reason": decision.reason}


def _spec(model: type[Spec], body: Document) -> Spec:
    try:
        return model.model_validate(body.get("spec") or {})
    except ValidationError as error:
        causes = causes_of(error, "spec", model)
        told = "; ".join(f"{cause.field}: {cause.message}" for cause in causes)
        raise ApiError(Reason.INVALID, f"the review is invalid: {told}", causes=tuple(causes)) from None
