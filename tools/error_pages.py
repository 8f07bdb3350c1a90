"""Renew what the pages of error codes say from the error table: their beginnings, and the list of them.

Run it after a row of `controlplane/errors.py` was added or changed, and write the rest of a new page.
"""

from __future__ import annotations

from api.error_pages import FOLDER, INDEX, head, index
from controlplane.errors import Reason

REST = "What happened.\n\n## Usual causes\n\n* …\n\n## What to do\n\n…\n"
"""The rest of a new page, for its author to replace."""
_HEAD_PARAGRAPHS = 3


def renew() -> None:
    """Write every page; what follows its beginning stays as it is."""
    for reason in Reason:
        path = FOLDER / f"{reason.row.wire}.md"
        written = path.read_text() if path.exists() else ""
        rest = written.split("\n\n", _HEAD_PARAGRAPHS)[_HEAD_PARAGRAPHS:]
        path.write_text(head(reason.row) + (rest[0] if rest else REST))
    (FOLDER / f"{INDEX}.md").write_text(index())


if __name__ == "__main__":
    renew()
