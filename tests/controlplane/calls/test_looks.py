"""A look corrected by what its batch has not written is the look one would have after the write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import pytest

from controlplane.calls.fairness import SessionHead, pick
from controlplane.calls.looks import Look, Unwritten, corrected
from controlplane.calls.rows import PRIORITY_NEW, PRIORITY_REOFFERED, CallRow, CallState

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def call(number: int, session: str, priority: int = PRIORITY_NEW, state: CallState = CallState.QUEUED) -> CallRow:
    return CallRow(
        uid=f"u{number}",
        org="acme",
        project="default",
        name=f"c{number}",
        function="f",
        function_uid="fn",
        session=session,
        state=state,
        priority=priority,
        seq=number,
        created_at=NOW,
        updated_at=NOW,
    )


def look(calls: Sequence[CallRow], turns: Mapping[str, int], wanted: int, sessions_max: int) -> Look:
    """What the query in `selection.py` finds, written down plainly."""
    sessions = sorted(turns, key=lambda name: turns[name])[:sessions_max]
    depth = -(-wanted // max(len(sessions), 1))
    heads = []
    for session in sessions:
        queued = sorted(
            (row for row in calls if row.session == session and row.state is CallState.QUEUED),
            key=lambda row: (row.priority, row.seq),
        )[:depth]
        heads.append(SessionHead(session=session, calls=queued, complete=len(queued) < depth))
    return Look(heads=heads, all_sessions=len(sessions) < sessions_max)


@pytest.mark.parametrize("seed", range(400))
def test_what_is_picked_is_what_would_be_picked_after_the_write(seed: int) -> None:
    chance = Random(seed)
    names = [f"s{number}" for number in range(chance.randint(1, 5))]
    before = {row.uid: row for row in (call(number, chance.choice(names)) for number in range(chance.randint(0, 12)))}
    turns = {row.session: chance.randint(0, 50) * 10 + names.index(row.session) for row in before.values()}
    after, after_turns = dict(before), dict(turns)
    changed: dict[str, CallRow] = {}
    opened: dict[str, int] = {}
    for row in chance.sample(list(before.values()), chance.randint(0, len(before))):
        gone = chance.random() < 0.6
        changed[row.uid] = replace(
            row,
            state=CallState.DONE if gone else CallState.QUEUED,
            priority=chance.choice([PRIORITY_NEW, PRIORITY_REOFFERED]),
        )
    for number in range(chance.randint(0, 6)):
        row = call(
            100 + number, chance.choice([*names, "new", "newer"]), chance.choice([PRIORITY_NEW, PRIORITY_REOFFERED])
        )
        changed[row.uid] = row
        opened.setdefault(row.session, 1_000 + number)
    after |= changed
    for session, turn in opened.items():
        after_turns.setdefault(session, turn)
    wanted, sessions_max = chance.randint(1, 8), chance.randint(1, 8)

    unwritten = Unwritten(
        queued=[row for row in changed.values() if row.state is CallState.QUEUED], changed=changed.keys(), opened=opened
    )
    found = corrected(look(list(before.values()), turns, wanted, sessions_max), unwritten)
    picked = pick(found.heads, wanted, found.all_sessions)
    truth = look(list(after.values()), after_turns, 1_000, 1_000)
    whole = pick(truth.heads, wanted, truth.all_sessions)
    assert picked.taken == whole.taken[: len(picked.taken)]
    assert picked.look_again or len(picked.taken) == len(whole.taken)
    left = {row.session for row in after.values() if row.state is CallState.QUEUED} - {
        session for session, _ in whole.taken
    }
    assert not left & set(picked.emptied)
