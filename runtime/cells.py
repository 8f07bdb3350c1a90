"""What one sandbox holds of its host beside its processes: a user, a folder for its sockets, a control group.

A cell is opened before a sandbox and closed when nothing of it is left, whether the sandbox was made for an attempt
(`supervisor.py`), beside that one (`sidecars.py`) or before anybody asked for one (`warm.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime.cgroups import Cgroup, Cgroups, Limits
from runtime.uids import UidLease, lease_uid


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One sandbox's share of the host. `run_directory` is what is seen inside as /run/nodus."""

    lease: UidLease | None
    run_directory: Path
    group: Cgroup
    shares_group: bool = False

    @classmethod
    def open(cls, directory: Path, *, name: str, cgroups: Cgroups, own_uid: bool, limits: Limits) -> Cell:
        """A cell in the private folder `directory`, which is the caller's to delete after `close`."""
        run_directory = _run_directory(directory)
        group = cgroups.create(name, limits)
        try:
            lease = lease_uid() if own_uid else None
        except BaseException:
            group.remove()
            raise
        return cls(lease=lease, run_directory=run_directory, group=group)

    def beside(self, directory: Path) -> Cell:
        """A cell for a sandbox that shares this one's control group, limits and all; it must be closed before this."""
        run_directory = _run_directory(directory)
        lease = lease_uid() if self.lease is not None else None
        return Cell(lease=lease, run_directory=run_directory, group=self.group, shares_group=True)

    @property
    def uid(self) -> int | None:
        """The worker's own uid; None when it shares the node's."""
        return None if self.lease is None else self.lease.uid

    def close(self) -> None:
        """Kill what is left and give everything back, the uid last: no process has it then.

        Of a cell beside another, every process must be gone: the group is not its own to kill.
        """
        if not self.shares_group:
            self.group.remove()
        if self.lease is not None:
            self.lease.release()


def _run_directory(directory: Path) -> Path:
    made = directory / "run"
    made.mkdir()
    # Whatever our umask: the worker, another user, must get through to the socket, which is for it alone.
    made.chmod(0o755)
    return made
