"""`POST …/functions/{name}/cancels`: the runtime around a worker hears of cancels and tells what has stopped.

Beside the claims, which are the public worker's own: `runtime/worker_start.py` asks here, with the same token, through
the same socket. The rules are in `controlplane/calls/cancels.py`. The answer is `{"cancel": [names]}`; the request is
held up to its own `wait` until there is a name.
"""

from __future__ import annotations

import asyncio

import orjson
from starlette.requests import Request
from starlette.responses import Response

from api.bodies import read_body
from api.claims import claimant_of, disconnected, replaced
from api.deps import Target
from controlplane.calls.cancels import EndStopped, WaitingCancels, parse_word
from controlplane.calls.outcomes import CallRules
from controlplane.calls.reports import ReportLimits
from controlplane.identity.principal import Principal
from controlplane.identity.scopes import require_claim
from controlplane.settings import Settings
from controlplane.store.writer import Writer

_NAME_BYTES_MAX = 256
"""A call's name in both lists of a body, quoted."""
_ENVELOPE_BYTES_MAX = 1_024
"""What stands around the names: `wait`, brackets, spaces."""


class CancelsRoute:
    """The handler of the cancels subresource."""

    def __init__(self, writer: Writer, waiting: WaitingCancels, settings: Settings) -> None:
        self._writer = writer
        self._waiting = waiting
        self._rules = CallRules.from_settings(settings)
        self._limits = ReportLimits.from_settings(settings)
        self._body_seconds_max = settings.claim_body_seconds_max

    async def __call__(self, request: Request, caller: Principal, target: Target) -> Response:
        """End what has stopped, then answer with what is to stop."""
        binding = require_claim(caller, target.project, target.name)
        if caller.revoked:
            raise replaced(binding)
        bytes_max = _ENVELOPE_BYTES_MAX + binding.concurrency * _NAME_BYTES_MAX
        body = await read_body(request, bytes_max, seconds_max=self._body_seconds_max)
        word = parse_word(body, self._limits, binding.concurrency)
        claimant = claimant_of(caller.org, binding)
        if word.stopped:
            await self._writer.write(EndStopped(claimant, word.stopped, self._rules))
        cancel: list[str] = []
        if word.wait_seconds > 0:
            gone = asyncio.ensure_future(disconnected(request))
            try:
                cancel = await self._waiting.wait(claimant, word, gone)
            finally:
                gone.cancel()
        return Response(orjson.dumps({"cancel": cancel}), media_type="application/json")
