"""What the routes of kinds that nobody stores share (`Derived` of `deps.py`): how objects made for a page become it.

Next: `audit_events.py`, `billing.py` and `quotas.py`, which make the objects.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from controlplane.machinery.kind import Document
from controlplane.resources import Page


def page_of(documents: Sequence[Document], token: str) -> Page:
    """A page of these, at the version of the newest; `token` leads to the next one, "" when there is none."""
    newest = max((int(document["metadata"]["resourceVersion"]) for document in documents), default=0)
    return Page([orjson.dumps(document) for document in documents], newest, token)
