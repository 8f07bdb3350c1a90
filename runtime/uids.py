"""A user id of its own for every worker, when the server is root.

The kernel lets processes of one uid signal, trace and read each other; sandboxes already hide them from one another,
and distinct uids hold even where that failed. Ids are leased through file locks in one folder of the host, so that
two servers on it never use the same, and a server that dies gives all of its back.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FIRST_UID = 200_000
"""Above what distributions give to people and services, below the ranges of containers' subordinate ids."""
UIDS_MAX = 4_096
LEASE_FOLDER = Path("/run/nodus-server/uids")


@dataclass(frozen=True, kw_only=True)
class UidLease:
    """A uid that is ours until `release`."""

    uid: int
    descriptor: int

    def release(self) -> None:
        """Give the uid back; only when no process has it any more."""
        os.close(self.descriptor)


def lease_uid(folder: Path = LEASE_FOLDER) -> UidLease:
    """The lowest free uid of the range; OSError when a host runs more workers than there are."""
    for uid in range(FIRST_UID, FIRST_UID + UIDS_MAX):
        lease = take_uid(uid, folder)
        if lease is not None:
            return lease
    raise OSError(errno.EAGAIN, f"all {UIDS_MAX} user ids for workers are in use on this host")


@contextlib.contextmanager
def spare_uid() -> Iterator[int | None]:
    """A uid for one short proof; None where this process is not root. It is leased like others: whatever has the uid of
    a worker that ends may be ended with it."""
    lease = lease_uid() if os.geteuid() == 0 else None
    try:
        yield None if lease is None else lease.uid
    finally:
        if lease is not None:
            lease.release()


def take_uid(uid: int, folder: Path = LEASE_FOLDER) -> UidLease | None:
    """This one; None while somebody has it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(folder / str(uid), os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return UidLease(uid=uid, descriptor=descriptor)
