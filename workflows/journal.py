"""What a workflow tells of itself: where it is, what happened, and what it decided on which facts.

The answers of the queries `state`, `timeline` and `decisions`, and the details that Temporal's own UI shows. It only
remembers what the workflow does anyway, from the workflow's own clock, so it says the same on every replay and adds
nothing to the history. The timeline that clients see is made from SQL (`controlplane/calls/timeline.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from temporalio import workflow

ENTRIES_MAX = 200
"""Of each list; an engine that fails for days repeats itself."""
SHOWN_MAX = 20
"""In the details of the UI, the newest ones."""


class Journal:
    """Of one workflow, whose queries it answers. `carried` is what it had told before it continued as new."""

    def __init__(self, state: str, carried: Mapping[str, Sequence[str]] | None = None) -> None:
        self.state = state
        self.timeline = list((carried or {}).get("timeline", ()))
        self.decisions = list((carried or {}).get("decisions", ()))
        # Here and not as methods of each workflow: all of them answer alike.
        workflow.set_query_handler("state", lambda: self.state)
        workflow.set_query_handler("timeline", lambda: self.timeline)
        workflow.set_query_handler("decisions", lambda: self.decisions)

    def enter(self, state: str) -> None:
        """The workflow waits for something else now."""
        self.state = state
        self.note(state)

    def note(self, event: str) -> None:
        """Something happened."""
        self.timeline.append(f"{_now()} {event}")
        del self.timeline[:-ENTRIES_MAX]
        self._show()

    def decide(self, decision: str) -> None:
        """Something was decided."""
        self.decisions.append(f"{_now()} {decision}")
        del self.decisions[:-ENTRIES_MAX]
        self._show()

    def carry(self) -> dict[str, list[str]]:
        """What the next run begins with, shorter than what this one may hold: it is part of every history to come."""
        return {"timeline": self.timeline[-SHOWN_MAX:], "decisions": self.decisions[-SHOWN_MAX:]}

    def _show(self) -> None:
        lines = [f"**{self.state}**", "", *(f"- {event}" for event in self.timeline[-SHOWN_MAX:])]
        if self.decisions:
            lines += ["", "Decisions:", "", *(f"- {decision}" for decision in self.decisions[-SHOWN_MAX:])]
        workflow.set_current_details("\n".join(lines))


def _now() -> str:
    return workflow.now().isoformat(timespec="milliseconds")
