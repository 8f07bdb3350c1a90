"""How objects belong to an App: the label that clients set, and what the server makes of it.

The SDK only says `sdk.nodus.dev/app`. The server answers with the label `nodus.dev/app`, which deploys prune by and
code in workers finds its App by, and with an ownerReference, so that deleting the App deletes its members.
"""

from __future__ import annotations

from typing import Any

from controlplane.machinery.kind import API_VERSION, AdmissionContext, Document

CLIENT_LABEL = "sdk.nodus.dev/app"
APP_LABEL = "nodus.dev/app"


async def join_app(document: Document, context: AdmissionContext) -> Document | None:
    """Stamp label and ownerReference of the App that the client's label names; the App, or None.

    An App that does not exist leaves no stamps. References to other owners stay.
    """
    metadata = document["metadata"]
    name = metadata.get("labels", {}).get(CLIENT_LABEL)
    app = await context.lookup.get("App", name) if name else None
    labels = {key: value for key, value in metadata.get("labels", {}).items() if key != APP_LABEL}
    owners = [owner for owner in metadata.get("ownerReferences", ()) if owner["kind"] != "App"]
    if app is not None:
        labels[APP_LABEL] = app["metadata"]["name"]
        owners.append(_controller(app))
    _set(metadata, "labels", labels)
    _set(metadata, "ownerReferences", owners)
    return app


def _controller(app: Document) -> dict[str, Any]:
    return {
        "apiVersion": API_VERSION,
        "kind": app["kind"],
        "name": app["metadata"]["name"],
        "uid": app["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _set(metadata: Document, field: str, value: dict[str, str] | list[Any]) -> None:
    """Set a field, or remove it when the value is empty: metadata holds no empty lists and maps."""
    if value:
        metadata[field] = value
    else:
        metadata.pop(field, None)
