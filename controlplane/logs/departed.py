"""What to say of an object whose log is asked for and that is gone.

`nodus run` makes an ephemeral App, which ends with its client and takes its Functions, their calls and so their logs
along. Whoever asks for them afterwards is told that, and how an App is kept, for as long as the change log remembers.
"""

from __future__ import annotations

import orjson

from controlplane.errors import ApiError, Reason, not_found
from controlplane.kinds.membership import APP_LABEL
from controlplane.kinds.registry import KINDS
from controlplane.store.contract import Document, Key
from controlplane.store.database import Database

_LAST_CHANGE = """
SELECT doc FROM changes WHERE kind = $1 AND org = $2 AND project = $3 AND name = $4 ORDER BY rv DESC LIMIT 1
"""


async def departed(database: Database, key: Key) -> ApiError:
    """The NotFound for an object that is not there."""
    plural = KINDS[key.kind].plural
    app = await _app_of(database, key)
    if app is None or not app["spec"].get("ephemeral"):
        return not_found(plural, key.name)
    name = app["metadata"]["name"]
    return ApiError(
        Reason.NOT_FOUND,
        f'{plural}.nodus.dev "{key.name}" not found: it belonged to the App "{name}", which was ephemeral and ended '
        "with the client that ran it",
        subject=(plural, key.name),
        fix="`nodus run` prints the log while it runs. To keep an App with its Functions and their logs, deploy it: "
        "`nodus deploy APP.py`.",
    )


async def _app_of(database: Database, key: Key) -> Document | None:
    """The App that the object was last known to belong to, as it was last known; the object itself if it is one."""
    document = await _last(database, key)
    if document is None or key.kind == "App":
        return document
    name = document["metadata"].get("labels", {}).get(APP_LABEL)
    return None if name is None else await _last(database, Key("App", key.org, key.project, name))


async def _last(database: Database, key: Key) -> Document | None:
    doc = await database.fetchval(_LAST_CHANGE, key.kind, key.org, key.project, key.name)
    document: Document | None = None if doc is None else orjson.loads(doc)
    return document
