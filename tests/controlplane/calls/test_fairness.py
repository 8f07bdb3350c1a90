"""Round-robin between sessions, against a model that knows the whole queue."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from controlplane.calls.fairness import SessionHead, pick


@dataclass
class Queue:
    """The whole queue: sessions in turn order, each with its calls in order."""

    sessions: dict[str, list[int]]
    order: list[str] = field(default_factory=list)

    def take(self) -> tuple[str, int] | None:
        """The plainest form of the rule: the first session with a call gives one and goes to the back."""
        for session in self.order:
            if self.sessions[session]:
                self.order.remove(session)
                self.order.append(session)
                return session, self.sessions[session].pop(0)
        return None


def dispatched(queue: Queue, wanted: int, spare: int) -> list[tuple[str, int]]:
    """What the dispatcher does with SQL: look at bounded heads, pick, apply, look again."""
    taken: list[tuple[str, int]] = []
    for round_number in range(64):
        missing = wanted - len(taken)
        sessions_max = missing + (spare << round_number)
        seen = queue.order[:sessions_max]
        if not missing or not seen:
            break
        depth = -(-missing // len(seen))
        heads = [
            SessionHead(
                session=name, calls=queue.sessions[name][:depth], complete=len(queue.sessions[name][:depth]) < depth
            )
            for name in seen
        ]
        picked = pick(heads, missing, all_sessions=len(seen) < sessions_max)
        for session, call in picked.taken:
            queue.sessions[session].remove(call)
            queue.order.remove(session)
            queue.order.append(session)
        for session in picked.emptied:
            assert queue.sessions[session] == []
            queue.order.remove(session)
        taken += picked.taken
        if not picked.look_again:
            break
    return taken


lengths = st.lists(st.integers(0, 30), min_size=0, max_size=40)


@given(lengths, st.integers(1, 120), st.integers(1, 8))
def test_looking_at_heads_gives_the_same_turns_as_knowing_the_whole_queue(
    lengths: list[int], wanted: int, spare: int
) -> None:
    calls = {f"s{n}": [1_000 * n + i for i in range(length)] for n, length in enumerate(lengths)}
    model = Queue({name: list(ids) for name, ids in calls.items()}, list(calls))
    expected = [turn for _ in range(wanted) if (turn := model.take()) is not None]
    assert dispatched(Queue(calls, list(calls)), wanted, spare) == expected


@given(lengths, st.integers(1, 120))
def test_no_session_waits_for_a_second_turn_of_another(lengths: list[int], wanted: int) -> None:
    calls = {f"s{n}": list(range(length)) for n, length in enumerate(lengths)}
    turns = dispatched(Queue({name: list(ids) for name, ids in calls.items()}, list(calls)), wanted, 8)
    given_to = {name: sum(1 for session, _ in turns if session == name) for name in calls}
    for name, ids in calls.items():
        if given_to[name] < len(ids):
            assert max(given_to.values(), default=0) - given_to[name] <= 1


def test_one_round_only_when_sessions_behind_were_not_seen() -> None:
    heads = [SessionHead(session="a", calls=[1, 2], complete=False), SessionHead(session="b", calls=[3], complete=True)]
    picked = pick(heads, 3, all_sessions=False)
    assert [call for _, call in picked.taken] == [1, 3]
    assert picked.look_again
    assert picked.emptied == ["b"]


def test_a_session_with_unseen_calls_stops_the_round_it_would_be_next_in() -> None:
    heads = [SessionHead(session="a", calls=[1], complete=False), SessionHead(session="b", calls=[3, 4], complete=True)]
    picked = pick(heads, 4, all_sessions=True)
    assert [call for _, call in picked.taken] == [1, 3]
    assert picked.look_again


def test_nothing_wanted_takes_nothing_and_needs_no_other_look() -> None:
    picked = pick([SessionHead(session="a", calls=[1], complete=True)], 0, all_sessions=True)
    assert (picked.taken, picked.look_again, picked.emptied) == ([], False, [])
