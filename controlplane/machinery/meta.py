"""Object metadata: what a client may write in it, and what is read out of it."""

from __future__ import annotations

from controlplane.machinery.kind import Document, Kind


def select_fields(kind: Kind, document: Document) -> dict[str, str]:
    """The kind's selectable fields that are present in `document`, as the text selectors compare with."""
    found: dict[str, str] = {}
    for path, steps in kind.selectable_paths:
        value: object = document
        for step in steps:
            value = value.get(step) if isinstance(value, dict) else None
            if value is None:
                break
        if value is None or isinstance(value, (dict, list)):
            continue
        found[path] = str(value).lower() if isinstance(value, bool) else str(value)
    return found
