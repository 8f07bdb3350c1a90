"""Answering a repeated request with its first answer.

`store/idempotency.py` keeps status and body beside the change they answer. Refusals are kept as well, in the parts an
edge needs to word them again, so that a client that lost a 404 does not get a 201 from a state it never asked about.
Not kept is what may end differently a moment later by itself: rate limits, faults, and the lack of a credential.
"""

from __future__ import annotations

import orjson

from controlplane.errors import ApiError, Cause, Reason
from controlplane.resources.answers import Answer
from controlplane.store.contract import Reads, Tx
from controlplane.store.idempotency import LOOKUP, KeyedRequest, StoredAnswer, store_answer, stored_answer

_HTTP_ERROR = 400
"""Statuses from here on are refusals."""
_PASSING = frozenset(
    {
        Reason.UNAUTHORIZED,
        Reason.FORBIDDEN,
        Reason.REQUEST_IN_PROGRESS,
        Reason.IDEMPOTENCY_KEY_REUSED,
        Reason.QUOTA_EXCEEDED,
        Reason.COMPUTE_SUSPENDED,
        Reason.TOO_MANY_REQUESTS,
    }
)
_REASON_OF_WIRE = {reason.row.wire: reason for reason in Reason}


def first_answer(tx: Tx, request: KeyedRequest) -> Answer | None:
    """What was answered to this key before, or None; raises the refusal if it was one."""
    stored = stored_answer(tx, request)
    if stored is None:
        return None
    if stored.status >= _HTTP_ERROR:
        raise _refusal(stored.body)
    return Answer(stored.status, stored.body)


def keep_answer(tx: Tx, request: KeyedRequest, answer: Answer) -> None:
    """Remember what is about to be answered; call it last, after everything that can raise."""
    store_answer(tx, request, StoredAnswer(answer.status, answer.body))


class Recall:
    """Looks for the first answer when this time the request was refused; without one, the refusal becomes it.

    A repeated create may be refused before its mutation ran, for instance because the Function was deleted since: the
    first answer still holds.
    """

    def __init__(self, request: KeyedRequest, refusal: ApiError) -> None:
        self._request = request
        self._refusal = refusal

    def reads(self) -> Reads:
        return Reads(loads=((LOOKUP, self._request.argument),))

    def apply(self, tx: Tx) -> Answer | None:
        answer = first_answer(tx, self._request)
        if answer is None:
            body = _refusal_body(self._refusal)
            store_answer(tx, self._request, StoredAnswer(self._refusal.reason.row.http_status, body))
        return answer


def is_final(refusal: ApiError) -> bool:
    """Whether repeating the request would give the same refusal, so that it may be kept."""
    return refusal.reason.row.http_status < 500 and refusal.reason not in _PASSING


def _refusal_body(refusal: ApiError) -> bytes:
    return orjson.dumps(
        {
            "reason": refusal.reason.row.wire,
            "message": refusal.message,
            "causes": [[cause.field, cause.message, cause.reason] for cause in refusal.causes],
            "details": refusal.details,
            "fix": refusal.fix,
            "subject": refusal.subject,
        }
    )


def _refusal(body: bytes) -> ApiError:
    stored = orjson.loads(body)
    return ApiError(
        _REASON_OF_WIRE[stored["reason"]],
        stored["message"],
        causes=tuple(Cause(*cause) for cause in stored["causes"]),
        details=stored["details"],
        fix=stored["fix"],
        subject=tuple(stored["subject"]) if stored["subject"] else None,
    )
