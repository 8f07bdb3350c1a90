"""The folders of a build: what its commands find there, and what of it becomes the image.

`tree/env` begins as a copy of the worker's environment and `tree/files` holds the top folders that steps fill; these
two are sealed. `inputs` holds blobs and what our own commands need, `online` and `offline` the sockets of a sandbox,
`cache` and `project` what is thrown away. `image_builder.py` runs the commands.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from runtime import image_steps
from runtime.environments import Environment

WORKER_PACKAGE = "nodus-compute"
_EXTRACT_SOURCE = Path(__file__).with_name("image_extract.py")


def lay_out(folder: Path, base: Environment, tops: Sequence[str], uid: int | None) -> None:
    """The folders of a build; those that its commands write to belong to their user."""
    folder.mkdir(mode=0o700)
    owned = [folder / "cache", folder / "project", *(folder / "tree" / "files" / top for top in tops)]
    for path in (folder / "online", folder / "offline", folder / "inputs", *owned):
        path.mkdir(parents=True)
        path.chmod(0o755)
    shutil.copy(_EXTRACT_SOURCE, folder / "inputs" / image_steps.EXTRACT.name)
    (folder / "inputs" / image_steps.CONSTRAINTS.name).write_text(_constraints(base))
    environment = folder / "tree" / "env"
    subprocess.run(["cp", "-a", "--reflink=auto", "--", str(base.path), str(environment)], check=True)
    if uid is not None:
        subprocess.run(["chown", "-R", f"{uid}:{uid}", "--", str(environment), *map(str, owned)], check=True)


def _constraints(base: Environment) -> str:
    """The worker's own package stays as the node has it; all others may change as far as it allows."""
    found = sorted(base.path.glob(f"lib/python*/site-packages/{WORKER_PACKAGE.replace('-', '_')}-*.dist-info"))
    return "".join(f"{WORKER_PACKAGE}=={path.name.removesuffix('.dist-info').rsplit('-', 1)[1]}\n" for path in found)


def is_empty(folder: Path, top: str) -> bool:
    """Whether a top folder holds folders only, as one that was just made a working directory does."""
    return not any(files for _, _, files in os.walk(folder / "tree" / "files" / top))
