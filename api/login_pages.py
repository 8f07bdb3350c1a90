"""The pages of a login: a person proves who they are, sees what asks, and decides.

Two steps, each a form. The first takes a code (for a device) and a credential, which is looked at once and kept
nowhere; the second page holds a ticket for the third request, in which the decision comes
(`controlplane/identity/login_tickets.py`). Nothing is in a cookie, so a request that another site makes a browser send
carries nothing of the person; such requests are refused all the same. `login_page.py` writes the HTML.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from api.bodies import read_body
from api.deps import origin_of, source_of
from api.identity import visible_projects
from api.login_page import HEADERS, Choice, ask_whether, ask_who, html, tell
from api.rates import Buckets, Rate
from controlplane.clock import Clock, format_time, parse_time
from controlplane.errors import ApiError, Reason
from controlplane.identity.login_tickets import Tickets
from controlplane.identity.logins import TEXT_LENGTH_MAX, Asking, Grant, Logins
from controlplane.identity.principal import Principal, PrincipalKind
from controlplane.identity.scopes import require_active
from controlplane.resources.creating import Creator
from controlplane.settings import Settings
from controlplane.store.cache import ObjectCache

DEVICE_PAGE = "/auth/device"
LOOPBACK_PAGE = "/cli-auth"
CALLBACK = "/callback"
"""Where `nodus login` waits for its code, on the person's own computer."""
_FORM_BYTES_MAX = 65_536
"""Room for a long token of an identity provider, and for a ticket of many organisations."""
_CHALLENGE = re.compile(r"[A-Za-z0-9._~-]+")
"""What challenges are written in (RFC 7636 §4.2)."""
_PORT_MAX = 65_535
"""Of TCP."""
_SAME_SITE = ("same-origin", "none", "")
_TOO_LATE = tell("Too late", "This login was decided or has expired. Begin again at the program.")
_POLL_BURST = 10
"""Seconds' worth of questions that may come at once."""


class AddressLimits:
    """How often one address may do what needs no credential."""

    def __init__(self, settings: Settings) -> None:
        self._attempts = Rate(settings.login_attempts_per_second, settings.login_attempts_burst_max)
        self._polls = Rate(settings.login_polls_per_second, max(int(settings.login_polls_per_second * _POLL_BURST), 1))
        self._buckets = Buckets(settings.rate_buckets_max)

    def require_attempt(self, request: Request) -> None:
        """TooManyRequests for an address that tries codes or credentials too often."""
        self._take("attempt", request, self._attempts)

    def require_poll(self, request: Request) -> None:
        """TooManyRequests for an address that asks about its logins too often."""
        self._take("poll", request, self._polls)

    def _take(self, what: str, request: Request, rate: Rate) -> None:
        allowed, _ = self._buckets.take((what, source_of(request.scope)), rate)
        if not allowed:
            raise ApiError(
                Reason.TOO_MANY_REQUESTS,
                f"this address has made {rate.burst} requests to log in, and gets {rate.per_second:g} more a second",
                retry_after_seconds=max(int(1 / rate.per_second), 1),
            )


@dataclass(frozen=True, kw_only=True)
class LoginDeps:
    """What logins work with."""

    logins: Logins
    tickets: Tickets
    limits: AddressLimits
    creator: Creator
    identify: Callable[[str], Awaitable[Sequence[Principal]]]
    """Who a credential stands for, in each organisation that it is good for; raises 401."""
    accept: Callable[[str, str], Awaitable[str]]
    """Makes a Member of an organisation of somebody invited to it; who is one already stays who they are."""
    cache: ObjectCache
    settings: Settings
    clock: Clock


class LoginPages:
    """The handlers of both pages."""

    def __init__(self, deps: LoginDeps) -> None:
        self._deps = deps

    def routes(self) -> Sequence[BaseRoute]:
        """The pages; none needs a credential to be seen."""
        return (
            Route(DEVICE_PAGE, self.device, methods=["GET"]),
            Route(DEVICE_PAGE, self.device_step, methods=["POST"]),
            Route(LOOPBACK_PAGE, self.loopback, methods=["GET"]),
            Route(LOOPBACK_PAGE, self.loopback_step, methods=["POST"]),
        )

    async def device(self, request: Request) -> Response:
        """Where a person types the code; the program may have put it into the link."""
        code = request.query_params.get("user_code", "")[:TEXT_LENGTH_MAX]
        return html(ask_who(self._url(request, DEVICE_PAGE), {}, user_code=code))

    async def device_step(self, request: Request) -> Response:
        """The credential, or the decision."""
        code = ""
        try:
            form = await self._form(request)
            if "ticket" in form:
                return await self._device_decided(form)
            self._deps.limits.require_attempt(request)
            code = form.get("user_code", [""])[0][:TEXT_LENGTH_MAX]
            people = await self._people(form)
            asking = await self._deps.logins.find(code)
            if asking is None:
                raise ApiError(
                    Reason.NOT_FOUND, "no program waits under this code: it is mistyped, used or older than its minutes"
                )
        except ApiError as refusal:
            return self._again(request, DEVICE_PAGE, {}, refusal, user_code=code)
        return self._consent(request, DEVICE_PAGE, {"code": code}, asking, people)

    async def loopback(self, request: Request) -> Response:
        """Where `nodus login` sends the person's browser."""
        try:
            asked = _loopback(request.query_params)
        except ApiError as refusal:
            return html(tell("This link is not complete", refusal.message), refusal.reason.row.http_status)
        return html(ask_who(self._url(request, LOOPBACK_PAGE), asked, user_code=None))

    async def loopback_step(self, request: Request) -> Response:
        """The credential, or the decision, which the browser carries back to the program."""
        asked: dict[str, str] = {}
        try:
            form = await self._form(request)
            if "ticket" in form:
                return await self._loopback_decided(form)
            self._deps.limits.require_attempt(request)
            asked = _loopback(QueryParams([(name, values[0]) for name, values in form.items()]))
            people = await self._people(form)
        except ApiError as refusal:
            return self._again(request, LOOPBACK_PAGE, asked, refusal)
        asking = Asking(
            client="nodus", host=asked["host"], address=source_of(request.scope), since=self._deps.clock.now()
        )
        return self._consent(request, LOOPBACK_PAGE, asked, asking, people)

    async def _device_decided(self, form: Mapping[str, list[str]]) -> Response:
        ticket = self._read(DEVICE_PAGE, form)
        if await self._deps.logins.find(ticket["code"]) is None:
            return html(_TOO_LATE, Reason.NOT_FOUND.row.http_status)
        grants = await self._grants(form, ticket) if _is_approval(form) else []
        if not await self._deps.logins.decide(ticket["code"], grants):
            return html(_TOO_LATE, Reason.NOT_FOUND.row.http_status)
        if grants:
            return html(tell("Approved", "The program has its key now. You can close this page."))
        return html(tell("Denied", "The program gets nothing. You can close this page."))

    async def _loopback_decided(self, form: Mapping[str, list[str]]) -> Response:
        ticket = self._read(LOOPBACK_PAGE, form)
        answer = {"state": ticket["state"]}
        if _is_approval(form):
            asking = Asking(**{**ticket["asking"], "since": parse_time(ticket["asking"]["since"])})
            answer["code"] = await self._deps.logins.approve_at_once(
                asking, await self._grants(form, ticket), ticket["code_challenge"]
            )
        else:
            answer["error"] = "access_denied"
        target = f"http://127.0.0.1:{int(ticket['port'])}{CALLBACK}?{urlencode(answer)}"
        return RedirectResponse(target, status_code=303, headers=HEADERS)

    def _consent(
        self, request: Request, page: str, asked: Mapping[str, str], asking: Asking, people: Sequence[Principal]
    ) -> Response:
        choices = [
            Choice(org=person.org, role=person.role or "", projects=self._projects(person.org, person.projects))
            for person in people
        ]
        who = [
            {
                "org": person.org,
                "user": person.user_uuid,
                "scopes": sorted(person.scopes),
                "projects": sorted(person.projects),
            }
            for person in people
        ]
        told = asdict(asking) | {"since": format_time(asking.since)}
        ticket = self._deps.tickets.issue(page, {**asked, "asking": told, "who": who})
        return html(
            ask_whether(
                self._url(request, page), {"ticket": ticket}, asking, choices, self._deps.settings.login_key_days
            ),
            goes_to=f"http://127.0.0.1:{asked['port']}" if "port" in asked else "",
        )

    async def _grants(self, form: Mapping[str, list[str]], ticket: Mapping[str, Any]) -> list[Grant]:
        """What the person gives, of what the ticket says that they have."""
        chosen, grants = set(form.get("org", ())), []
        for person in ticket["who"]:
            if person["org"] not in chosen:
                continue
            project = form.get(f"project.{person['org']}", [""])[0]
            if project not in self._projects(person["org"], person["projects"]):
                raise ApiError(Reason.BAD_REQUEST, "choose one of the projects that the page lists")
            grants.append(
                Grant(
                    org=person["org"],
                    user=await self._deps.accept(person["org"], person["user"]),
                    scopes=tuple(person["scopes"]),
                    projects=(project,) if "only" in form else tuple(person["projects"]),
                    project=project,
                )
            )
        if not grants:
            raise ApiError(Reason.BAD_REQUEST, "choose an organisation, or deny the login")
        return grants

    def _projects(self, org: str, projects: Collection[str]) -> list[str]:
        return visible_projects(self._deps.cache, org, projects)

    async def _people(self, form: Mapping[str, list[str]]) -> Sequence[Principal]:
        credential = form.get("credential", [""])[0].strip()
        people = await self._deps.identify(credential)
        for person in people:
            require_active(person)
            if person.kind is not PrincipalKind.USER or person.user_uuid is None:
                raise ApiError(
                    Reason.FORBIDDEN,
                    "this credential belongs to a program; a login needs one of a person",
                    fix="Use an API key of a Member, or a token of your identity provider.",
                )
        return people

    async def _form(self, request: Request) -> Mapping[str, list[str]]:
        if request.headers.get("sec-fetch-site", "") not in _SAME_SITE:
            raise ApiError(Reason.FORBIDDEN, "this form was sent by a page of another site")
        content = await read_body(request, _FORM_BYTES_MAX)
        try:
            return parse_qs(content.decode(), keep_blank_values=True, max_num_fields=100)
        except ValueError:
            raise ApiError(Reason.BAD_REQUEST, "the form cannot be read") from None

    def _read(self, page: str, form: Mapping[str, list[str]]) -> dict[str, Any]:
        ticket: dict[str, Any] | None = self._deps.tickets.read(page, form["ticket"][0])
        if ticket is None:
            raise ApiError(Reason.FORBIDDEN, "this page is too old, or not ours; show once more who you are")
        return ticket

    def _again(
        self,
        request: Request,
        page: str,
        fields: Mapping[str, str],
        refusal: ApiError,
        user_code: str | None = None,
    ) -> Response:
        """The first page once more, with what was wrong and what to do."""
        content = ask_who(
            self._url(request, page), fields, user_code=user_code, problem=f"{refusal.message}. {refusal.fix}"
        )
        return html(content, refusal.reason.row.http_status)

    def _url(self, request: Request, page: str) -> str:
        return f"{origin_of(request.scope, self._deps.settings)}{page}"


def _loopback(query: QueryParams) -> dict[str, str]:
    """What `nodus login` put into its link; BadRequest when it cannot be answered."""
    asked = {name: query.get(name, "")[:TEXT_LENGTH_MAX] for name in ("code_challenge", "host", "port", "state")}
    port = asked["port"]
    has_challenge = _CHALLENGE.fullmatch(asked["code_challenge"]) is not None
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX and has_challenge):
        raise ApiError(
            Reason.BAD_REQUEST,
            "the link must have `code_challenge` and `port`: run `nodus login` again and use the link that it shows",
        )
    return asked


def _is_approval(form: Mapping[str, list[str]]) -> bool:
    return form.get("decision") == ["approve"]
