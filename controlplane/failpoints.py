"""Named points between two writes, at which a test may end or hold up a process.

Whatever takes two steps can die between them. Each such place calls `reach` with its name; `FAILPOINTS` is the table of
them, with what must hold if the process dies there, and `tests/faults/test_failpoints.py` walks it, together with
`tests/e2e/test_dying_nodes.py` for a node's own. Nothing happens at
any of them unless the setting `failpoints_dir` names a folder. There, a file with the name of a point says what happens
to the first process that reaches it: `die`, or `wait` and a number of seconds, for which it stands still as one does
that gets no CPU. The process takes the file away, so it happens once. `docs/faults.md` tells more.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

FAILPOINTS: Mapping[str, str] = MappingProxyType(
    {
        "commit-ready": "Nothing of the batch is stored. Whoever asked asks again.",
        "commit-written": "The batch is stored and nobody was answered. A repetition meets its own write.",
        "commit-answered": "Other processes are not notified of a change. Their poll finds it.",
        "dispatch-ready": "A dispatch and what it reserves are not stored. The call is still in the queue.",
        "dispatch-written": "A dispatch is stored and its worker does not know. The worker's next claim gives the call "
        "back, uncharged.",
        "charge-ready": "Outcome, charge and what a reservation gives back are not stored. Whoever told of the end "
        "tells it again.",
        "charge-written": "A charge is stored and nobody was answered. The repeated report is fenced.",
        "blob-published": "Bytes have no row. The upload is repeated, and these bytes are swept.",
        "blob-forgotten": "A blob's row is gone and its bytes are not. They are swept.",
        "call-starting": "A call has no workflow. The next look starts it.",
        "call-started": "A workflow runs and its call's row does not know. It attaches, or a second start finds it.",
        "call-attached": "A row has the token of an activity that never returned. Its workflow is told by that token.",
        "outcome-reporting": "An outcome is in SQL and the engine knows nothing of it. The next look reports it.",
        "outcome-reported": "The engine took an outcome and SQL does not know. The second report is refused.",
        "worker-created": "An attempt has no workflow. The next resync starts it.",
        "worker-started": "A workflow runs and its attempt's row does not know. A second start finds it.",
        "worker-leased": "Nobody has the token that was made. The node asks again, which ends that token.",
        "worker-marked": "A worker is given no more calls and was not told to go. The next look tells it.",
        "worker-settled": "An attempt is closed and its workflow does not know. The repeated activity finds it closed.",
        "funds-renewed": "A worker holds its next window, or is to go and was not told. The next look tells it.",
        "load-observed": "A Function's status is older than its tallies. The next look writes it.",
        "function-forgotten": "A Function without calls and tallies is still there. The next visit removes it.",
        "audit-released": "A checkpoint covers old audit events that are still there. The next look deletes them.",
        "warm-opened": "A user, a folder and a group are held for a worker that never came to be. The next start of "
        "the node takes them back.",
        "warm-made": "A worker waits and no pool knows of it. The kernel ends it with its node.",
        "warm-taken": "A worker left its pool and has nothing of its attempt yet. Both are lost, and the attempt is "
        "replaced.",
        "warm-joined": "A worker has its attempt's sockets and no orders. Both are lost, and the attempt is replaced.",
        "warm-granted": "A worker has its orders and nobody waits for its end. Both are lost, and the attempt is "
        "replaced.",
        "cold-sidecar": "A sidecar runs and its worker does not. The kernel ends it with its node, and the attempt is "
        "replaced.",
        "cold-opened": "An attempt has a user, a folder and a group and no worker. The next start of the node takes "
        "them back, and the attempt is replaced.",
    }
)
"""What must hold if a process dies at each point. Those of `warm-` and `cold-` are in `runtime/`, which imports nothing
of ours and is handed `reach`."""

_folder: Path | None = None


def watch_folder(folder: Path | None) -> None:
    """Do from now on what the files of this folder say; None does nothing."""
    global _folder
    _folder = folder


def reach(name: str) -> None:
    """This process is at the point. It goes on at once unless a file says otherwise."""
    if _folder is None:
        return
    taken = taken_file(_folder, name)
    try:
        (_folder / name).rename(taken)
    except FileNotFoundError:
        return
    word, _, seconds = taken.read_text().partition(" ")
    if word == "wait":
        time.sleep(float(seconds))
    else:
        os.kill(os.getpid(), signal.SIGKILL)


def taken_file(folder: Path, name: str) -> Path:
    """What a point's file becomes when a process has reached the point."""
    return folder / f"{name}.taken"
