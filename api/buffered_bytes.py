"""The bytes of bodies that a process holds at once: as many as it has memory for, whoever sends them.

A body is kept from its first byte until its request is answered, and a client decides how long that takes. So bodies
have a limit together, beside the one that each has alone, and one owner gets a part of it: who fills that part makes
nobody else wait. `claim_intake.py` has one of these for claims, `middleware.py` one for all other bodies.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator

from controlplane.errors import ApiError, Reason

RETRY_AFTER_SECONDS = 1
"""A body is taken in within that time on any network that carries one."""
COUNT_BODY = "nodus.count_body"
"""Key in the ASGI scope of what is told of each piece of a body."""


class BufferedBytes:
    """Counts the bytes of what is being taken in."""

    def __init__(self, what: str, bytes_max: int, owner_bytes_max: int) -> None:
        """`what` names it in refusals, in the plural."""
        self._what = what
        self._bytes_max = bytes_max
        self._owner_bytes_max = owner_bytes_max
        self._bytes = 0
        self._of_owners: Counter[str] = Counter()

    @contextlib.contextmanager
    def entry(self, owner: str) -> Iterator[Callable[[int], None]]:
        """Hold pieces of one body of the owner until the block is left; gives what must be told of the size of each.

        That raises TooManyRequests when all bodies together, or all of the owner, would be more than may be held.
        """
        taken = 0

        def count(size: int) -> None:
            nonlocal taken
            self._require_room(owner, size)
            taken += size
            self._bytes += size
            self._of_owners[owner] += size

        try:
            yield count
        finally:
            if taken:
                self._bytes -= taken
                self._of_owners[owner] -= taken
                if not self._of_owners[owner]:
                    del self._of_owners[owner]

    def _require_room(self, owner: str, size: int) -> None:
        told = ""
        if self._bytes + size > self._bytes_max:
            told = f"the {self._what} that this server is taking in fill the {self._bytes_max} bytes it has for them"
        elif self._of_owners[owner] + size > self._owner_bytes_max:
            told = (
                f"the {self._what} of one sender that this server is taking in fill the {self._owner_bytes_max} bytes "
                "it has for them"
            )
        if told:
            raise ApiError(Reason.TOO_MANY_REQUESTS, told, retry_after_seconds=RETRY_AFTER_SECONDS)
