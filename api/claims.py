"""`POST …/functions/{name}/claims`: a worker reports, says what it runs, and waits for more.

The hot path of the product: the caller's token names the worker, the body is read once (`claim_intake.py` bounds how
much of that goes on), one commit applies it and hands out calls, and only a claim that found nothing to do is held. The
rules are in `controlplane/calls/`. A worker repeats a claim that fails with 429 or 5xx and ends itself for 401, 403 and
404, so those mean what they say.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body
from api.claim_intake import ClaimIntake
from api.deps import Target
from controlplane.calls.claims import ClaimAnswer, ClaimMutation
from controlplane.calls.evidence import LateReports
from controlplane.calls.outcomes import CallRules
from controlplane.calls.reports import BlobPresence, Redactor, ReportLimits, parse_claim, prepare_reports
from controlplane.calls.waiting import WaitingClaims
from controlplane.calls.wants import Claimant, Want, WantAnswer
from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.principal import AttemptBinding, Principal
from controlplane.settings import Settings
from controlplane.store.writer import Writer


@dataclass(frozen=True, kw_only=True)
class Applied:
    """A claim that is committed, without what it reported: that may be large, and the claim may be held for long."""

    answer: ClaimAnswer
    want: Want | None
    wait_seconds: float
    draining: bool


class ClaimsRoute:
    """The handler of the claims subresource."""

    def __init__(
        self,
        *,
        writer: Writer,
        waiting: WaitingClaims,
        settings: Settings,
        clock: Clock,
        blob_present: BlobPresence,
        redactor: Redactor,
        late: LateReports,
    ) -> None:
        self._writer = writer
        self._waiting = waiting
        self._clock = clock
        self._intake = ClaimIntake(settings.claims_buffered_bytes_max)
        self._body_seconds_max = settings.claim_body_seconds_max
        self._draining_seconds = settings.draining_claim_seconds
        self._linger_seconds = settings.claim_linger_seconds
        self._rules = CallRules.from_settings(settings)
        self._limits = ReportLimits.from_settings(settings)
        self._blob_present = blob_present
        self._redactor = redactor
        self._late = late

    async def __call__(self, request: Request, caller: Principal, target: Target) -> Response:
        """Answer one claim, at once or when there is work, at the latest after its own `wait`."""
        binding = _binding(caller, target)
        if caller.revoked:
            await self._note_fenced(request, caller.org, binding)
            raise replaced(binding)
        with self._intake.entry(binding.attempt) as count:
            applied = await self._apply(request, caller.org, binding, count)
        answer = await self._answer(request, applied)
        # The node moves the deadlines into the time of its host (`runtime/deadlines.py`).
        now = {"nodus-now": f"{self._clock.now().timestamp():.6f}"}
        content = orjson.dumps({"calls": answer.calls, "cancel": answer.cancel})
        return Response(content, headers=now, media_type="application/json")

    async def _apply(
        self, request: Request, org: str, binding: AttemptBinding, count: Callable[[int], None]
    ) -> Applied:
        """Read the claim and commit it, with the wish it makes."""
        claimant = claimant_of(org, binding)
        body = await prepare_reports(
            parse_claim(await self._read(request, binding, count), self._limits, binding.concurrency),
            org=claimant.org,
            project=claimant.project,
            function_uid=claimant.function_uid,
            limits=self._limits,
            blob_present=self._blob_present,
            redactor=self._redactor,
        )
        want = Want(claimant, body.calls_max, body.running) if body.calls_max > 0 and not body.draining else None
        wait_seconds = body.wait_seconds
        if body.completed and not body.running:
            # The worker has reported all it had and would claim again at once, which costs as much as the call did.
            wait_seconds = max(wait_seconds, self._linger_seconds)
        if want is not None:
            want.hold = wait_seconds > 0
        try:
            answer = await self._writer.write(ClaimMutation(claimant, body, want, self._rules))
            if answer.refused:
                await self._late.note(claimant, answer.refused)
        except BaseException as error:
            if want is not None:
                self._waiting.abandon(want)
            if isinstance(error, ApiError) and error.reason is Reason.NOT_FOUND:
                await self._late.note(claimant, body.completed)
            raise
        return Applied(answer=answer, want=want, wait_seconds=wait_seconds, draining=body.draining)

    async def _note_fenced(self, request: Request, org: str, binding: AttemptBinding) -> None:
        """Keep what a fenced worker still reports as evidence; whatever it sends, the answer stays the same."""
        if not self._late.has_room(binding.attempt):
            return
        with contextlib.suppress(ApiError), self._intake.entry(binding.attempt) as count:
            content = await self._read(request, binding, count)
            body = parse_claim(content, self._limits, binding.concurrency)
            await self._late.note(claimant_of(org, binding), body.completed)

    async def _read(self, request: Request, binding: AttemptBinding, count: Callable[[int], None]) -> bytes:
        """The body, no larger than what this worker can have to tell, and not for longer than a worker waits."""
        bytes_max = self._limits.body_bytes_max(binding.concurrency)
        return await read_body(request, bytes_max, count=count, seconds_max=self._body_seconds_max)

    async def _answer(self, request: Request, applied: Applied) -> WantAnswer:
        given = WantAnswer(calls=[], cancel=[])
        cancel = applied.answer.cancel
        if applied.want is not None and not applied.answer.draining:
            given = await self._given(request, applied.want, 0.0 if cancel else applied.wait_seconds)
        elif applied.answer.draining and not applied.draining and not cancel:
            # It will be told to stop in a moment and sees that between two claims; what it let go waits for its end.
            # An empty answer at once would make it ask again at once.
            await self._until_gone(request, min(applied.wait_seconds, self._draining_seconds))
        return WantAnswer(calls=given.calls, cancel=sorted({*cancel, *given.cancel}))

    async def _given(self, request: Request, want: Want, seconds: float) -> WantAnswer:
        """What the want was given in its own commit, or within `seconds`."""
        if want.answer.done():
            return want.answer.result()
        gone = asyncio.ensure_future(disconnected(request))
        try:
            return await self._waiting.wait(want, seconds, gone)
        finally:
            gone.cancel()

    @staticmethod
    async def _until_gone(request: Request, seconds: float) -> None:
        gone = asyncio.ensure_future(disconnected(request))
        await asyncio.wait({gone}, timeout=seconds)
        gone.cancel()


def _binding(caller: Principal, target: Target) -> AttemptBinding:
    """The worker behind the token. A stranger's 403 ends the process that asks, as a fenced worker's 404 does."""
    binding = caller.binding
    if binding is None or (binding.project, binding.function) != (target.project, target.name):
        raise ApiError(
            Reason.WORKER_NOT_ALLOWED,
            f'only workers of functions.nodus.dev "{target.name}" may claim its calls',
            subject=("functions", target.name),
        )
    return binding


def replaced(binding: AttemptBinding) -> ApiError:
    """What a worker is told that has an heir: it ends itself."""
    return ApiError(Reason.NOT_FOUND, "this worker was replaced", subject=("attempts", binding.attempt), fix="Exit.")


def claimant_of(org: str, binding: AttemptBinding) -> Claimant:
    """The worker behind a token, as the domain names it."""
    return Claimant(
        org=org,
        project=binding.project,
        function=binding.function,
        function_uid=binding.function_uid,
        attempt=binding.attempt,
        epoch=binding.epoch,
    )


async def disconnected(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
