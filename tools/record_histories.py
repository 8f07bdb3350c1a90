"""Records the history of every story in `tests/workflows/stories.py` against a real server.

Run by `make histories`. Existing files are kept, because they are the promise that workflows started by an older
version still run: a replay that fails is answered with a patch in the workflow, not with a new recording. `--again`
records anew for the rare case that no such workflow can exist.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from temporalio.client import Client

from tests.workflows.stories import STORIES, Story
from workers.engines.temporal import EmbeddedTemporal

# Tracebacks name files of the machine that recorded them, and no workflow reads them.
_TRACE = re.compile(r'"stackTrace": "(?:[^"\\]|\\.)*"')
HISTORIES = Path(__file__).parent.parent / "tests" / "workflows" / "histories"


def path_of(story: Story) -> Path:
    """Where the history of a story is kept."""
    return HISTORIES / story.workflow.__name__ / f"{story.name}.json"


async def record(stories: Sequence[Story]) -> None:
    """Play the stories side by side and write their histories."""
    with tempfile.TemporaryDirectory() as folder:
        server = EmbeddedTemporal(Path(folder) / "data", log=Path(folder) / "log")
        await server.start()
        try:
            # The identity is part of a history; the default one would name this machine.
            client = await Client.connect(server.address, identity="recorder")
            await asyncio.gather(*(_record(client, story) for story in stories))
        finally:
            server.stop()


async def _record(client: Client, story: Story) -> None:
    handle = await story.play(client, f"story-{uuid.uuid4().hex[:8]}")
    history = await handle.fetch_history()
    path = path_of(story)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_TRACE.sub('"stackTrace": ""', history.to_json()) + "\n")
    print(f"{story.workflow.__name__}/{story.name}: {len(history.events)} events")


def main() -> None:
    """Record what is missing, or everything with `--again`."""
    stories = [story for story in STORIES if "--again" in sys.argv or not path_of(story).exists()]
    asyncio.run(record(stories))


if __name__ == "__main__":
    main()
