"""A network that several sandboxes share: that of the first of them, which the others enter before they are made.

A descriptor keeps a network namespace alive, so it lasts for as long as somebody may join it, whoever of its sandboxes
has ended. util-linux's `nsenter` enters it and becomes bubblewrap; where the node is not root, the network belongs to
the user namespace of that first sandbox, and the next one is made inside of it, as confined as it would be outside.
"""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

_NS_GET_USERNS = 0xB701
"""Of `ioctl_ns(2)`: a descriptor, closed at exec, of the user namespace that a namespace belongs to."""


@dataclass(frozen=True, kw_only=True)
class HeldNetwork:
    """Descriptors of a network namespace, and of the user namespace that it belongs to unless that is the host's."""

    network: int
    user: int | None

    @classmethod
    def of(cls, pid: int, *, own_user_namespace: bool) -> HeldNetwork:
        """That of a process, which must be held so that its number stays its own; OSError when it is gone."""
        network = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            # Not that of the process: bubblewrap makes one to mount in and another, inside, to run in.
            user = fcntl.ioctl(network, _NS_GET_USERNS) if own_user_namespace else None
        except BaseException:
            os.close(network)
            raise
        return cls(network=network, user=user)

    def entering(self, nsenter: Path) -> list[str]:
        """What stands before a command that is to run in this network.

        The descriptors are named as this process's own and not inherited: a sandbox would have them all its life.
        """
        ours = f"/proc/{os.getpid()}/fd"
        told = [str(nsenter), f"--net={ours}/{self.network}"]
        if self.user is not None:
            told += [f"--user={ours}/{self.user}", "--preserve-credentials"]
        return [*told, "--"]

    def close(self) -> None:
        """Let go of it; it ends with the last sandbox in it."""
        os.close(self.network)
        if self.user is not None:
            os.close(self.user)
