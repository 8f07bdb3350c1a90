"""The claims that a process is taking in: one of each worker, and no more bytes of them than it has memory for.

User code speaks to the claims route with its worker's token, so what one worker can make this process hold must have
an end. A worker has one claim to tell at a time. Until it is applied, a second one is refused; the worker sends it
again, as it does after a connection that was cut. A claim that has been applied and waits for calls is no longer in
here: a newer one takes its place (`controlplane/calls/waiting.py`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from api.buffered_bytes import RETRY_AFTER_SECONDS, BufferedBytes
from controlplane.errors import ApiError, Reason


class ClaimIntake:
    """Counts claims and their bytes from the first byte of a body until the claim is applied."""

    def __init__(self, bytes_max: int) -> None:
        self._buffered = BufferedBytes("claims", bytes_max, owner_bytes_max=bytes_max)
        self._attempts: set[str] = set()

    @contextlib.contextmanager
    def entry(self, attempt: str) -> Iterator[Callable[[int], None]]:
        """Take in a claim of the attempt for as long as the block runs; gives what must be told of each piece of it.

        Raises TooManyRequests at once when another claim of the attempt is on its way, and from the returned function
        when the pieces of all claims together are more than the process may hold.
        """
        if attempt in self._attempts:
            raise ApiError(
                Reason.TOO_MANY_REQUESTS,
                "another claim of this worker is still being taken in, and a worker has one at a time",
                retry_after_seconds=RETRY_AFTER_SECONDS,
            )
        self._attempts.add(attempt)
        try:
            with self._buffered.entry(attempt) as count:
                yield count
        finally:
            self._attempts.discard(attempt)
