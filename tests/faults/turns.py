"""Whether sessions were served in turn, read from the change log alone: the rule of `checker.py` that needs a memory.

Only calls on their way to their first dispatch count as waiting: one that comes back after a failure has a place of its
own, and may be waiting for its pause to end or for a worker of its own. A session is passed over when another one is
served twice while a call of it waits, and none of it is coming back, from before the first to after the second time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Change = tuple[int, str, str, Mapping[str, Any]]
"""rv, type, phase and document."""


@dataclass
class _Session:
    """One caller's calls of one Function."""

    waiting: dict[str, int] = field(default_factory=dict)
    """Uids of calls before their first dispatch, in the order they came, with the rv at which they did."""
    served_at: int = 0
    returning: set[str] = field(default_factory=set)
    """Uids of calls that wait for another dispatch."""
    returned_at: int = 0
    """When there was last one of those."""


def waiting_sessions_passed_over(log: Sequence[Change]) -> Iterator[str]:
    """A sentence for each time a session or a call was passed over."""
    functions: dict[str, dict[str, _Session]] = defaultdict(lambda: defaultdict(_Session))
    for rv, type_, phase, document in log:
        uid, spec = document["metadata"]["uid"], document["spec"]
        sessions = functions[spec["function"]]
        name = spec.get("session", "")
        session = sessions[name]
        if type_ == "ADDED" and phase == "Queued":
            session.waiting[uid] = rv
        elif phase == "Running" and uid in session.waiting:
            yield from _served(rv, uid, document["metadata"]["name"], name, sessions)
        elif phase in ("Queued", "Recovering") and uid not in session.waiting:
            session.returning.add(uid)
        else:
            if phase == "Running" and uid in session.returning:
                session.served_at = rv
            if uid in session.returning:
                session.returned_at = rv
            session.returning.discard(uid)
            if phase != "Queued":
                session.waiting.pop(uid, None)


def _served(rv: int, uid: str, call: str, name: str, sessions: Mapping[str, _Session]) -> Iterable[str]:
    """What is wrong with serving this call now; the session counts as served."""
    session = sessions[name]
    since = session.waiting.pop(uid)
    earlier = [other for other, at in session.waiting.items() if at < since]
    if earlier:
        yield f"{call} of session {name!r} was handed out before {len(earlier)} earlier calls of it"
    for other_name, other in sessions.items():
        waits_since = max(min(other.waiting.values(), default=rv), other.served_at, other.returned_at)
        if other_name != name and not other.returning and waits_since < session.served_at:
            yield f"session {name!r} was served twice ({session.served_at}, {rv}) while {other_name!r} waited"
    session.served_at = rv
