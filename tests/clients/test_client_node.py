"""The JavaScript client `@kubernetes/client-node`: custom objects and an informer."""

from __future__ import annotations

from pathlib import Path

from tests.fixtures.clients import ClientSide, fetched

STORY = Path(__file__).parent / "node" / "story.mjs"


async def test_objects_live_and_die(client_side: ClientSide) -> None:
    client = fetched("node/node_modules/@kubernetes/client-node/dist/index.js")
    told = await client_side.run("node", STORY, client, client_side.project)
    assert told.stdout.splitlines() == [
        "created a 1",
        "informed add a",
        "patched new",
        "informed update a",
        "refused 415",
        "refused 404 NotFound",
        "replaced newer",
        "listed a",
        "informed delete a",
        "namespaces true",
    ]
