"""Where a worker finds what belongs to it: its environment, code, folders and sockets.

In a sandbox these are fixed (`sandbox.py`), since each has a file tree of its own. A worker without one has real
folders of the host (`plain.py`). Both learn them from variables (`variables.py`); `launching.py` says which holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from runtime import sandbox


@dataclass(frozen=True, kw_only=True)
class Places:
    """As the worker itself names them. `temporary` is where it keeps temporary files if that is not what programs take
    by themselves."""

    environment: Path
    code: Path
    workspace: Path
    run: Path
    temporary: Path | None = None

    @property
    def api_socket(self) -> Path:
        """Where it reaches the API."""
        return self.run / sandbox.API_SOCKET.name

    def folder(self, directory: str | None) -> str:
        """The folder it starts in: `directory`, from its workspace on; one that a sandbox has below /workspace is there
        as well."""
        asked = Path(directory or "")
        if asked.is_relative_to(sandbox.WORKSPACE):
            asked = asked.relative_to(sandbox.WORKSPACE)
        return str(self.workspace / asked)


SANDBOXED = Places(
    environment=sandbox.ENVIRONMENT, code=sandbox.CODE, workspace=sandbox.WORKSPACE, run=sandbox.RUN, temporary=None
)
"""The same in every sandbox."""
