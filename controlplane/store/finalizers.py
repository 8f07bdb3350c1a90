"""How an object leaves: a deletionTimestamp, then finalizers, then nothing.

A delete that must wait for something (dependents, workers, a running call) stamps `metadata.deletionTimestamp` and
leaves a finalizer; whoever did the waiting takes it off with `settle`, and the last one off removes the object. The
verbs are in `controlplane/resources/`, the controllers that wait are in `activities/`.
"""

from __future__ import annotations

from datetime import datetime

from controlplane.clock import format_time
from controlplane.store.contract import Document, Key, Tx

FOREGROUND = "foregroundDeletion"
"""The object goes after everything it owns; the garbage collector takes it off."""
ORPHAN = "orphan"
"""What it owns stays and loses the ownerReference; the garbage collector takes it off."""
WORKERS = "nodus.dev/workers"
"""A Function goes after its workers have stopped; the autoscaler takes it off."""
CONTENTS = "nodus.dev/contents"
"""A Project goes after everything in it; the garbage collector takes it off."""
CALL = "nodus.dev/call"
"""A call that was deleted while it ran goes when it has ended; the transition to its last phase takes it off."""


def is_deleting(document: Document) -> bool:
    """Whether a delete was asked for; such an object takes no new finalizers and no new dependents."""
    return "deletionTimestamp" in document["metadata"]


def finalizers(document: Document) -> list[str]:
    """The finalizers still on the object."""
    return list(document["metadata"].get("finalizers", ()))


def marked_for_deletion(document: Document, now: datetime) -> Document:
    """A copy with the deletionTimestamp and the generation a delete gives; unchanged when it is already deleting."""
    if is_deleting(document):
        return document
    metadata = dict(document["metadata"], deletionTimestamp=format_time(now), deletionGracePeriodSeconds=0)
    metadata["generation"] = metadata.get("generation", 1) + 1
    return {**document, "metadata": metadata}


def with_finalizer(document: Document, finalizer: str) -> Document:
    """A copy that carries `finalizer` once."""
    present = finalizers(document)
    if finalizer in present:
        return document
    return {**document, "metadata": {**document["metadata"], "finalizers": [*present, finalizer]}}


def without_finalizer(document: Document, finalizer: str) -> Document:
    """A copy that does not carry `finalizer`; the key goes with the last one, since metadata holds no empty lists."""
    remaining = [name for name in finalizers(document) if name != finalizer]
    metadata = {name: value for name, value in document["metadata"].items() if name != "finalizers"}
    if remaining:
        metadata["finalizers"] = remaining
    return {**document, "metadata": metadata}


def is_gone(document: Document) -> bool:
    """Whether storing the document means removing the object: it is deleting and nothing holds it any more."""
    return is_deleting(document) and not finalizers(document)


def settle(tx: Tx, key: Key, document: Document) -> Document | None:
    """Store `document`, or remove the object when it is deleting and nothing holds it any more (then None)."""
    if is_gone(document):
        tx.remove(key)
        return None
    return tx.put(key, document)
