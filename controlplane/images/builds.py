"""What becomes of an Image while it is built: the mutations of its status, and nothing else writes it.

A build speaks of one generation of one Image. What it tells is kept only while that generation is still the one that
is wanted and waits for a build, so a build that was overtaken, or repeated after its end was written, changes nothing.
`activities/images.py` starts builds and settles them, `api/node_images.py` takes what the node tells on the way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from controlplane.clock import format_time
from controlplane.kinds.image import with_build_wanted
from controlplane.machinery.conditions import Condition, with_condition
from controlplane.store.contract import Document, Key, Reads, Tx
from controlplane.store.events import NORMAL, WARNING, Happening, RecordEvent

READY = "Ready"


@dataclass(frozen=True, slots=True)
class BuildReference:
    """Which generation of which Image is built."""

    key: Key
    uid: str
    generation: int

    def waits_in(self, document: Document | None) -> bool:
        """Whether that generation is still to be built."""
        return (
            document is not None
            and document["metadata"]["uid"] == self.uid
            and document["metadata"]["generation"] == self.generation
            and "deletionTimestamp" not in document["metadata"]
            and document["status"].get("phase") == "Pending"
        )


@dataclass(frozen=True, kw_only=True)
class BuildEnd:
    """How a build ended. `reason` is READY, or the protocol's word for the failure, which `message` tells."""

    reason: str
    message: str = ""
    key: str = ""
    digest: str = ""
    size_bytes: int = 0
    cached: bool = False


class NoteStage:
    """Shows how far a build is; the first stage is its start."""

    def __init__(self, build: BuildReference, stage: str) -> None:
        self._build = build
        self._stage = stage

    def reads(self) -> Reads:
        return Reads(keys=(self._build.key,))

    def apply(self, tx: Tx) -> bool:
        """Whether the build is still wanted."""
        document = tx.get(self._build.key)
        if document is None or not self._build.waits_in(document):
            return False
        told = document["status"].get("build", {})
        started = told if "startTime" in told else {**told, "startTime": format_time(tx.now)}
        status = {**document["status"], "progress": {"stage": self._stage}, "build": started}
        tx.put(self._build.key, {**document, "status": status})
        return True


class SettleBuild:
    """Writes the end of a build: the Image is Ready or Failed, and an Event says so."""

    def __init__(self, build: BuildReference, end: BuildEnd) -> None:
        self._build = build
        self._end = end
        what = "was built before" if end.cached else "was built"
        ready = end.reason == READY
        self._event = RecordEvent(
            Happening(
                key=build.key,
                uid=build.uid,
                type=NORMAL if ready else WARNING,
                reason="Built" if ready else end.reason,
                message=f"the image {what}" if ready else end.message.splitlines()[0],
            )
        )

    def reads(self) -> Reads:
        return Reads(keys=(self._build.key, *self._event.reads().keys))

    def apply(self, tx: Tx) -> bool:
        """Whether it was still to be told."""
        document = tx.get(self._build.key)
        if document is None or not self._build.waits_in(document):
            return False
        status = _settled(document["status"], self._build, self._end, format_time(tx.now))
        status["conditions"] = with_condition(status["conditions"], _condition(self._build, self._end), tx.now)
        tx.put(self._build.key, {**document, "status": status})
        self._event.apply(tx)
        return True


class RequestBuild:
    """Asks for another build of an Image that a node lost: Functions that name it wait for it like for the first."""

    def __init__(self, key: Key, uid: str, digest: str, why: str) -> None:
        self._key = key
        self._uid = uid
        self._digest = digest
        self._why = why

    def reads(self) -> Reads:
        return Reads(keys=(self._key,))

    def apply(self, tx: Tx) -> bool:
        """Whether this is news: of many workers that miss an image, one asks for it."""
        document = tx.get(self._key)
        if document is None or document["metadata"]["uid"] != self._uid:
            return False
        status = document["status"]
        if status.get("phase") != READY or status.get("digest") != self._digest:
            return False
        tx.put(
            self._key,
            {**document, "status": with_build_wanted(document, document["metadata"]["generation"], tx.now, self._why)},
        )
        return True


def _settled(status: Document, build: BuildReference, end: BuildEnd, now: str) -> Document:
    kept = {name: field for name, field in status.items() if name != "progress"}
    told: dict[str, Any] = {"phase": READY} if end.reason == READY else {"phase": "Failed", "reason": end.reason}
    if end.reason == READY:
        told |= {"digest": end.digest, "size": end.size_bytes, "specHash": end.key}
        told["reference"] = f"{build.key.name}@{end.digest}"
        for gone in ("reason", "message"):
            kept.pop(gone, None)
    else:
        told["message"] = end.message
    told["observedGeneration"] = build.generation
    told["build"] = {**status.get("build", {}), "cached": end.cached, "completionTime": now}
    return {**kept, **told}


def _condition(build: BuildReference, end: BuildEnd) -> Condition:
    if end.reason == READY:
        return Condition(READY, "True", "Built", "the image was built", build.generation)
    return Condition(READY, "False", end.reason, end.message.splitlines()[0], build.generation)
