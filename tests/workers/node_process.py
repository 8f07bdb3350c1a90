"""A node process of its own, as `python -m workers node` runs it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.fixtures.eventually import eventually


@dataclasses.dataclass
class Node:
    """The process, its settings (without their prefix) and where it logs."""

    settings: Mapping[str, str]
    log: Path
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        told = {f"NODUS_SERVER_{name.upper()}": value for name, value in self.settings.items()}
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "workers", "node"], env={**os.environ, **told}, stdout=log, stderr=log
            )

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    async def ended(self) -> int:
        assert self.process is not None
        await eventually(lambda: self.process is not None and self.process.poll() is not None)
        return self.process.wait()
