from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from temporalio.client import WorkflowHistory
from temporalio.worker import Replayer

from tests.workflows.stories import STORIES
from tools.record_histories import HISTORIES, path_of
from workers.sandbox import fenced_runner
from workflows.registry import WORKFLOWS


@pytest.mark.parametrize("path", sorted(HISTORIES.rglob("*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_todays_code_replays_what_was_recorded(path: Path) -> None:
    history = WorkflowHistory.from_json(path.stem, path.read_text())
    replayer = Replayer(workflows=WORKFLOWS, workflow_runner=fenced_runner(), build_id="test")
    asyncio.run(replayer.replay_workflow(history))


def test_every_workflow_class_has_a_story() -> None:
    assert {story.workflow for story in STORIES} == set(WORKFLOWS)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: f"{story.workflow.__name__}-{story.name}")
def test_every_story_is_recorded_without_a_trace_of_the_machine_that_played_it(story: object) -> None:
    path = path_of(story)  # type: ignore[arg-type]
    assert path.exists(), "run `make histories`"
    assert "site-packages" not in path.read_text()
