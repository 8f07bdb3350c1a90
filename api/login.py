"""How a program gets a key of a person without seeing another one: the routes that the program asks.

`nodus login --device` shows a code and asks `/auth/device/token` until a person has decided on the page
(`login_pages.py`); `nodus login` opens the page itself and is called back by the person's browser with a code for
`/auth/cli-keys/redeem`. Both end in an APIKey of the person, made as any other, which `nodus logout` deletes. Nobody is
authenticated here, so requests are counted by address. `controlplane/identity/logins.py` keeps the state.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
from collections.abc import Sequence
from datetime import timedelta
from urllib.parse import parse_qsl

import orjson
from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from api.auditing import acts_as
from api.bodies import read_body
from api.deps import origin_of, source_of
from api.login_pages import LoginDeps
from api.typed_bodies import typed
from controlplane.clock import format_time
from controlplane.errors import ApiError, Reason
from controlplane.identity.logins import TEXT_LENGTH_MAX, Approved, Asking, Grant, Refused
from controlplane.kinds.api_key import API_KEY
from controlplane.machinery.kind import Document
from controlplane.machinery.model import ApiModel
from controlplane.resources import CreateOptions
from controlplane.store.idempotency import KeyedRequest

DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
_BODY_BYTES_MAX = 8_192
"""Codes, and what clients add to them."""
_NAME_LENGTH_MAX = 50
"""Of what a key is named after: its name has 63 characters and ends in random ones."""
_FORM = "application/x-www-form-urlencoded"
_TOLD = {
    Refused.PENDING: "nobody has decided about this login yet; ask again after the interval",
    Refused.SLOW_DOWN: "asked sooner than the interval allows, which is five seconds longer from now on",
    Refused.DENIED: "the login was denied",
    Refused.EXPIRED: "the code has expired; begin again",
    Refused.UNKNOWN: "the code is unknown or was used already; begin again",
}


class _Code(ApiModel):
    """Clients may send what later versions of the standard add."""

    model_config = ConfigDict(extra="ignore", alias_generator=None)

    client_id: str = Field(min_length=1, max_length=TEXT_LENGTH_MAX)


class _Token(ApiModel):
    model_config = ConfigDict(extra="ignore", alias_generator=None)

    device_code: str = Field(default="", max_length=TEXT_LENGTH_MAX)
    grant_type: str = ""


class _Redemption(ApiModel):
    model_config = ConfigDict(extra="ignore")

    code: str = Field(max_length=TEXT_LENGTH_MAX)
    code_verifier: str = Field(max_length=TEXT_LENGTH_MAX)


class LoginRoutes:
    """The handlers."""

    def __init__(self, deps: LoginDeps) -> None:
        self._deps = deps

    def routes(self) -> Sequence[BaseRoute]:
        """What programs ask; none needs a credential."""
        return (
            Route("/auth/device/code", self.code, methods=["POST"]),
            Route("/auth/device/token", self.token, methods=["POST"]),
            Route("/auth/cli-keys/redeem", self.redeem, methods=["POST"]),
        )

    async def code(self, request: Request) -> Response:
        """Begin a login: codes for the program and for the person, and where the person is to go."""
        self._deps.limits.require_attempt(request)
        asked = typed(await _json_body(request), _Code)
        asking = Asking(
            client=f"{asked.client_id} ({request.headers.get('user-agent', '')[:TEXT_LENGTH_MAX]})",
            host="",
            address=source_of(request.scope),
            since=self._deps.clock.now(),
        )
        secret, user_code = await self._deps.logins.begin(asking)
        page = f"{origin_of(request.scope, self._deps.settings)}/auth/device"
        return _told(
            {
                "device_code": secret,
                "user_code": user_code,
                "verification_uri": page,
                "verification_uri_complete": f"{page}?user_code={user_code}",
                "expires_in": self._deps.settings.login_seconds_max,
                "interval": self._deps.settings.login_poll_seconds,
            }
        )

    async def token(self, request: Request) -> Response:
        """What became of it: the key, or one of the errors of RFC 8628, in its form and not in ours."""
        self._deps.limits.require_poll(request)
        asked = typed(await _json_body(request), _Token)
        if asked.grant_type != DEVICE_GRANT:
            return _refused("unsupported_grant_type", f"`grant_type` must be {DEVICE_GRANT}")
        outcome = await self._deps.logins.ask(asked.device_code, _asked_with(request))
        if isinstance(outcome, Approved) and outcome.challenge is not None:
            outcome = Refused.UNKNOWN
        if isinstance(outcome, Refused):
            return _refused(outcome.value, _TOLD[outcome])
        keys = await self._keys(outcome, asked.device_code)
        return _told({"keys": keys}) if keys else _refused(Refused.DENIED.value, _NO_MEMBER)

    async def redeem(self, request: Request) -> Response:
        """The key for a code that the person's browser brought, to whoever knows what its challenge was made of."""
        self._deps.limits.require_attempt(request)
        asked = typed(await read_body(request, _BODY_BYTES_MAX), _Redemption)
        outcome = await self._deps.logins.ask(asked.code, _asked_with(request))
        if isinstance(outcome, Refused) or not _answers(outcome.challenge, asked.code_verifier):
            raise ApiError(
                Reason.BAD_REQUEST,
                "the code is unknown, expired or used, or `codeVerifier` is not what its challenge was made of",
                fix="Run `nodus login` again.",
            )
        keys = await self._keys(outcome, asked.code)
        if not keys:
            raise ApiError(Reason.FORBIDDEN, _NO_MEMBER)
        return _told({"keys": keys})

    async def _keys(self, approved: Approved, secret: str) -> list[Document]:
        """A key for each organisation in which the person still is a Member; the same ones when it is asked again."""
        name = hashlib.sha256(secret.encode()).hexdigest()
        return [
            made
            for grant in approved.grants
            if (made := await self._key(approved.asking, grant, KeyedRequest(f"login/{grant.org}", name, "")))
            is not None
        ]

    async def _key(self, asking: Asking, grant: Grant, keyed: KeyedRequest) -> Document | None:
        person = await self._deps.logins.grantee(grant)
        if person is None:
            return None
        ends = self._deps.clock.now() + timedelta(days=self._deps.settings.login_key_days)
        spec: Document = {
            "description": f"login of {asking.client} at {asking.address}"[:256],
            "expirationTime": format_time(ends),
        }
        body = {"metadata": {"generateName": f"{_name(asking)}-"}, "spec": spec}
        acts_as(person)
        answer = await self._deps.creator.create(API_KEY, "", body, person, CreateOptions(keyed=keyed))
        made = orjson.loads(answer.body)
        if answer.status >= 400:
            raise ApiError(Reason.FORBIDDEN, made["message"])
        return {
            "org": grant.org,
            "orgName": grant.org,
            "project": grant.project,
            "key": made["status"]["token"],
            "name": made["metadata"]["name"],
        }


_NO_MEMBER = "whoever approved this is no Member of the organisation any more"


async def _json_body(request: Request) -> bytes:
    """The body as JSON; RFC 8628 sends a form, the public command line JSON."""
    content = await read_body(request, _BODY_BYTES_MAX)
    if request.headers.get("content-type", "").partition(";")[0].strip() == _FORM:
        return orjson.dumps(dict(parse_qsl(content.decode("utf-8", "replace"))))
    return content


def _asked_with(request: Request) -> str:
    """The name of a request that may be repeated; one without a key is like no other."""
    return request.headers.get("idempotency-key") or secrets.token_hex(16)


def _answers(challenge: str | None, verifier: str) -> bool:
    """Whether the challenge was made of the verifier (S256 of RFC 7636)."""
    made = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
    return challenge is not None and hmac.compare_digest(made, challenge.encode())


def _name(asking: Asking) -> str:
    """What the key is named after: the program, and its computer where it told that."""
    words = f"{asking.client.partition(' ')[0]}-{asking.host}".lower()
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in words)
    return "-".join(word for word in plain.split("-") if word)[:_NAME_LENGTH_MAX] or "login"


def _told(answer: Document) -> Response:
    return Response(orjson.dumps(answer), media_type="application/json", headers={"Cache-Control": "no-store"})


def _refused(error: str, description: str) -> Response:
    return Response(
        orjson.dumps({"error": error, "error_description": description}),
        status_code=400,
        media_type="application/json",
        headers={"Cache-Control": "no-store"},
    )
