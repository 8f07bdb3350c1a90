"""What an App's status says of its members, and the mutation that writes it.

Members are found by the label that admission stamps (`kinds/membership.py`). An App is Ready when every member takes
work, Failed when one has given up, and Pending while one is on its way. `activities/apps.py` keeps it true.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from controlplane.kinds.membership import APP_LABEL
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.machinery.kind import Document
from controlplane.store.contract import Key, Reads, Tx

NAMES_TOLD = 5


@dataclass(frozen=True, kw_only=True)
class Members:
    """The Functions of an App, by what they can do now."""

    functions: int = 0
    ready: int = 0
    failed: tuple[str, ...] = ()
    waiting: tuple[str, ...] = ()


def app_of(document: Document) -> str | None:
    """Name of the App that the object is a member of."""
    name: str | None = document["metadata"].get("labels", {}).get(APP_LABEL)
    return name


def count_members(functions: Iterable[Document]) -> Members:
    """What these Functions come to; those that are being deleted are no members any more."""
    staying = [function for function in functions if "deletionTimestamp" not in function["metadata"]]
    failed = sorted(name_of(function) for function in staying if function["status"].get("phase") == "Failed")
    ready = {name_of(function) for function in staying if _takes_work(function)}
    waiting = sorted({name_of(function) for function in staying} - ready - set(failed))
    return Members(functions=len(staying), ready=len(ready), failed=tuple(failed), waiting=tuple(waiting))


def name_of(document: Document) -> str:
    """The object's name."""
    name: str = document["metadata"]["name"]
    return name


def _takes_work(function: Document) -> bool:
    """Running, with workers or without: calls are accepted and a worker starts for them."""
    return function["status"].get("phase") in ("Running", "Recovering") and any(
        condition["type"] == "Ready" and condition["status"] == "True"
        for condition in function["status"].get("conditions", ())
    )


def observed_status(app: Document, members: Members, now: datetime) -> Document:
    """The App's status with its members brought up to date."""
    status = {name: value for name, value in app["status"].items() if name != "message"}
    generation = app["metadata"].get("generation", 1)
    if members.failed:
        phase, reason, message = "Failed", "MemberFailed", f"failed: {_named(members.failed)}"
    elif members.waiting:
        phase, reason, message = "Pending", "MembersPending", f"not ready: {_named(members.waiting)}"
    else:
        phase, reason, message = "Ready", "MembersReady", "every member takes work"
    status["phase"] = phase
    if phase != "Ready":
        status["message"] = message
    ready = Condition("Ready", "True" if phase == "Ready" else "False", reason, message, generation)
    status["conditions"] = with_condition(status.get("conditions", []), ready, now)
    agents = status.get("members", {}).get("agents", 0)
    status["members"] = {"functions": members.functions, "agents": agents, "ready": members.ready}
    status["observedGeneration"] = generation
    return status


def _named(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - NAMES_TOLD} more" if len(names) > NAMES_TOLD else ""
    return ", ".join(names[:NAMES_TOLD]) + more


class WriteAppStatus:
    """Stores what was counted; the result tells whether the status changed."""

    def __init__(self, key: Key, members: Members) -> None:
        self._key = key
        self._members = members

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> bool:
        app = tx.get(self._key)
        if app is None or "deletionTimestamp" in app["metadata"]:
            return False
        status = observed_status(app, self._members, tx.now)
        if status == app["status"]:
            return False
        tx.put(self._key, {**app, "status": status})
        return True
