"""What callers of the verbs pass in and get back.

`api/resources.py` builds these from a request and sends an `Answer` as it is; nothing here knows HTTP beyond the status
number that a replayed create must repeat.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controlplane.errors import ApiError, Reason
from controlplane.machinery.managed_fields import Manager
from controlplane.store.idempotency import KeyedRequest


@dataclass(frozen=True, slots=True)
class Answer:
    """The outcome of a verb: a status number, the serialised object (or Status), and an ETag if the verb has one."""

    status: int
    body: bytes
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateOptions:
    """How a create is asked: rehearse only, under which key, and expecting which ETag of an earlier rehearsal.

    `manager` is who will own the fields; None for objects that the server makes for itself.
    """

    dry_run: bool = False
    manager: Manager | None = None
    keyed: KeyedRequest | None = None
    if_match: str | None = None

    @property
    def is_bound(self) -> bool:
        """Whether the create is bound to one rehearsal; `*` is any."""
        return self.if_match not in (None, "*")

    def require_unbound(self) -> None:
        """400 when `if_match` binds what no rehearsal has quoted as a whole: ignoring it would spend what nobody
        agreed to."""
        if self.is_bound:
            raise ApiError(
                Reason.BAD_REQUEST,
                "`If-Match` binds the create of one object to its dry-run; a list of objects, or an apply, has none",
                fix="Create the objects one by one, or create their Function with the ETag of its own dry-run: "
                "its calls are bound with it.",
            )


class Propagation(Enum):
    """What a delete does with the objects that the deleted one owns; the words of DeleteOptions."""

    FOREGROUND = "Foreground"
    BACKGROUND = "Background"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """How a delete is asked. The preconditions, when given, must equal the object's uid and resourceVersion."""

    propagation: Propagation = Propagation.BACKGROUND
    dry_run: bool = False
    uid: str | None = None
    resource_version: str | None = None
