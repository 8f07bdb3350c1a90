"""What is a project's without being an object in it: its quotas, and the rows of its blobs, which go by its name.

They leave with the project, so that another one of its name begins with nothing of it (decision 0051). Most blobs are
forgotten before, in bounded pieces, by the garbage collector that empties the project (`resources/deletion.py`); here
goes what came in between, in the commit that removes the project. Their bytes are deleted by the sweeper, which finds
that no row names them. A transfer that was granted before may still end afterwards, so a new project sweeps its place
as well.
"""

from __future__ import annotations

from controlplane.store.contract import Document, Key, Tx
from controlplane.store.hooks import PlainHooks

# The sums of blobs follow by their trigger; a sum that an upload adds to at the moment stays.
_LEFT_BEHIND = (
    "DELETE FROM blobs WHERE org = $1 AND project = $2",
    "DELETE FROM blob_usage WHERE org = $1 AND project = $2 AND bytes = 0",
    "DELETE FROM quotas WHERE org = $1 AND project = $2",
)


class ProjectHooks(PlainHooks):
    """The hooks of the kind Project."""

    def created(self, tx: Tx, key: Key, document: Document) -> None:
        _sweep(tx, key)

    def removed(self, tx: Tx, key: Key, document: Document) -> None:
        _sweep(tx, key)


def _sweep(tx: Tx, project: Key) -> None:
    for statement in _LEFT_BEHIND:
        tx.execute(statement, (project.org, project.name))
