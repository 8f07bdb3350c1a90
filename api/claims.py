"""`POST …/functions/{name}/claims`: a worker reports, says what it runs, and waits for more.

The hot path of the product: the caller's token names the worker, the body is read once, one commit applies it and
hands out calls, and only a claim that found nothing to do is held. The rules are in `controlplane/calls/`. A worker
repeats a claim that fails with 429 or 5xx and ends itself for 401, 403 and 404, so those mean what they say.
"""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body
from api.deps import Target
from controlplane.calls.claims import ClaimMutation
from controlplane.calls.outcomes import CallRules
from controlplane.calls.reports import BlobPresence, ClaimBody, Redactor, ReportLimits, parse_claim, prepare_reports
from controlplane.calls.waiting import WaitingClaims
from controlplane.calls.wants import Claimant, Want, WantAnswer
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import Principal
from controlplane.settings import Settings
from controlplane.store.writer import Writer


class ClaimsRoute:
    """The handler of the claims subresource."""

    def __init__(
        self,
        *,
        writer: Writer,
        waiting: WaitingClaims,
        settings: Settings,
        blob_present: BlobPresence,
        redactor: Redactor,
    ) -> None:
        self._writer = writer
        self._waiting = waiting
        self._body_bytes_max = settings.claim_body_bytes_max
        self._rules = CallRules.from_settings(settings)
        self._limits = ReportLimits.from_settings(settings)
        self._blob_present = blob_present
        self._redactor = redactor

    async def __call__(self, request: Request, caller: Principal, target: Target) -> Response:
        """Answer one claim, at once or when there is work, at the latest after its own `wait`."""
        claimant = _claimant(caller, target)
        body = await prepare_reports(
            parse_claim(await read_body(request, self._body_bytes_max), self._limits),
            org=claimant.org,
            project=claimant.project,
            function_uid=claimant.function_uid,
            limits=self._limits,
            blob_present=self._blob_present,
            redactor=self._redactor,
        )
        answer = await self._claim(request, claimant, body)
        return Response(orjson.dumps({"calls": answer.calls, "cancel": answer.cancel}), media_type="application/json")

    async def _claim(self, request: Request, claimant: Claimant, body: ClaimBody) -> WantAnswer:
        want = Want(claimant, body.calls_max, body.running) if body.calls_max > 0 and not body.draining else None
        if want is not None:
            want.hold = body.wait_seconds > 0
        try:
            applied = await self._writer.write(ClaimMutation(claimant, body, want, self._rules))
        except BaseException:
            if want is not None:
                self._waiting.abandon(want)
            raise
        given = WantAnswer(calls=[], cancel=[])
        if want is not None and not applied.draining:
            given = await self._given(request, want, 0.0 if applied.cancel else body.wait_seconds)
        elif applied.draining and not body.draining and not applied.cancel:
            # It will be told to stop in a moment; an empty answer at once would make it ask again at once.
            await self._until_gone(request, body.wait_seconds)
        return WantAnswer(calls=given.calls, cancel=sorted({*applied.cancel, *given.cancel}))

    async def _given(self, request: Request, want: Want, seconds: float) -> WantAnswer:
        """What the want was given in its own commit, or within `seconds`."""
        if want.answer.done():
            return want.answer.result()
        gone = asyncio.ensure_future(_disconnected(request))
        try:
            return await self._waiting.wait(want, seconds, gone)
        finally:
            gone.cancel()

    @staticmethod
    async def _until_gone(request: Request, seconds: float) -> None:
        gone = asyncio.ensure_future(_disconnected(request))
        await asyncio.wait({gone}, timeout=seconds)
        gone.cancel()


def _claimant(caller: Principal, target: Target) -> Claimant:
    """The worker behind the token. A fenced worker's 404 and a stranger's 403 both end the process that asks."""
    binding = caller.binding
    if binding is None or (binding.project, binding.function) != (target.project, target.name):
        raise ApiError(
            Reason.WORKER_NOT_ALLOWED,
            f'only workers of functions.nodus.dev "{target.name}" may claim its calls',
            subject=("functions", target.name),
        )
    if caller.revoked:
        raise ApiError(Reason.NOT_FOUND, "this worker was replaced", subject=("attempts", binding.attempt), fix="Exit.")
    return Claimant(
        org=caller.org,
        project=binding.project,
        function=binding.function,
        function_uid=binding.function_uid,
        attempt=binding.attempt,
        epoch=binding.epoch,
    )


async def _disconnected(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
