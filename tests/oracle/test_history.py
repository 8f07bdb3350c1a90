"""The checker of histories finds what is wrong with them: each test shows it one fault, and once none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.oracle.history import (
    Ending,
    Log,
    Logged,
    Operator,
    Seen,
    Segment,
    Selector,
    Term,
    canonical,
    problems_of_answer,
    problems_of_list,
    problems_of_segment,
)

A, B, ELSEWHERE = ("p", "a"), ("p", "b"), ("q", "a")
RED = Selector("apps", "p", labels=(Term("color", Operator.EQUAL, "red"),))
ALL = Selector("apps", None)


def document(rv: int, color: str = "red", **spec: Any) -> bytes:
    return canonical({"metadata": {"resourceVersion": str(rv), "labels": {"color": color}}, "spec": spec})


LOG = (
    Logged(1, "ADDED", "apps", A, document(1)),
    Logged(2, "ADDED", "apps", B, document(2, "blue")),
    Logged(3, "MODIFIED", "apps", A, document(3, size=1)),
    Logged(4, "MODIFIED", "apps", B, document(4)),
    Logged(5, "MODIFIED", "apps", A, document(5, "blue", size=2)),
    Logged(6, "ADDED", "apps", ELSEWHERE, document(6)),
    Logged(7, "DELETED", "apps", B, document(7)),
    Logged(8, "ADDED", "secrets", B, document(8)),
)
LINES = (
    Seen("ADDED", 1, A, document(1)),
    Seen("MODIFIED", 3, A, document(3, size=1)),
    Seen("ADDED", 4, B, document(4)),
    Seen("DELETED", 5, A, document(5, size=1)),
    Seen("DELETED", 7, B, document(7)),
)


def bookmark(rv: int) -> Seen:
    return Seen("BOOKMARK", rv, ("", ""), b"")


def log_of(*rows: Logged) -> Log:
    log = Log()
    for row in rows:
        log.append(row)
    return log


def problems(*lines: Seen, since: int = 0, ending: Ending = Ending.CUT, upto: int = 0) -> list[str]:
    return problems_of_segment(log_of(*LOG), RED, Segment(since, list(lines), ending, upto))


def test_a_right_history_has_no_problems() -> None:
    assert log_of(*LOG).problems == []
    for length in range(len(LINES) + 1):
        assert problems(*LINES[:length]) == []
    assert problems(*LINES, bookmark(8), ending=Ending.CAUGHT_UP, upto=8) == []
    assert problems(*LINES[2:], since=3) == []
    assert problems(bookmark(0), LINES[0], bookmark(2), *LINES[1:]) == []
    assert problems(since=100) == []


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (lambda lines: lines[1:], "did not come before"),
        (lambda lines: [lines[0], *lines], "after revision 1"),
        (lambda lines: [lines[0], lines[2], lines[1], *lines[3:]], "did not come before"),
        (lambda lines: [*lines[:3], *lines[4:]], "DELETED p/a at 5 did not come before"),
        (lambda lines: [replace(lines[0], type="MODIFIED"), *lines[1:]], "should have been"),
        (lambda lines: [*lines[:2], replace(lines[2], type="MODIFIED"), *lines[3:]], "should have been"),
        (lambda lines: [*lines[:3], replace(lines[3], document=document(5, "blue", size=2)), lines[4]], "carries"),
        (lambda lines: [*lines[:4], replace(lines[4], document=document(4))], "carries"),
        (lambda lines: [lines[0], Seen("ADDED", 2, B, document(2, "blue")), *lines[1:]], "no change of the selection"),
        (lambda lines: [*lines, Seen("ADDED", 9, B, document(9))], "no change of the selection"),
        (lambda lines: [bookmark(1), *lines], "without ADDED p/a at 1 before it"),
        (lambda lines: [*lines, bookmark(6)], "a bookmark of 6 after 7"),
    ],
    ids=[
        "gap at the beginning", "duplicate", "reordered", "missed transition", "wrong type", "transition as change",
        "left with the new state", "deleted with the old version", "not selected", "from nowhere", "bookmark too early",
        "bookmark back in time",
    ],
)  # fmt: skip
def test_a_wrong_stream_is_found(fault: Callable[[list[Seen]], list[Seen]], told: str) -> None:
    found = problems(*fault(list(LINES)))
    assert found
    assert any(told in problem for problem in found), found


def test_a_stream_that_replays_what_its_watcher_knew_is_found() -> None:
    assert "after revision 3" in problems(*LINES[1:], since=3)[0]


def test_a_stream_that_stops_before_what_its_watcher_waited_for_is_found() -> None:
    assert problems(*LINES[:-1], ending=Ending.CAUGHT_UP, upto=6) == []
    assert "never came" in problems(*LINES[:-1], ending=Ending.CAUGHT_UP, upto=7)[0]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        (Logged(10, "ADDED", "apps", B, document(10)), "revision 10 follows 8"),
        (Logged(9, "ADDED", "apps", A, document(9)), "ADDED"),
        (Logged(9, "MODIFIED", "apps", B, document(9)), "MODIFIED"),
        (Logged(9, "DELETED", "apps", A, document(9, "blue", size=3)), "last state"),
        (Logged(9, "ADDED", "apps", B, document(8)), "another revision"),
    ],
)
def test_a_wrong_log_is_found(row: Logged, told: str) -> None:
    [problem] = log_of(*LOG, row).problems
    assert told in problem


def test_a_wrong_list_is_found() -> None:
    log = log_of(*LOG)
    right = {A: document(3, size=1), B: document(4)}
    assert problems_of_list(log, RED, 4, right) == []
    assert problems_of_list(log, ALL, 8, {A: document(5, "blue", size=2), ELSEWHERE: document(6)}) == []
    assert "lacks" in problems_of_list(log, RED, 4, {A: right[A]})[0]
    assert "not in it" in problems_of_list(log, RED, 7, {B: document(4)})[0]
    assert "as of 1, not as of 3" in problems_of_list(log, RED, 4, right | {A: document(1)})[0]


def test_an_answer_that_is_not_in_the_log_is_found() -> None:
    log = log_of(*LOG)
    assert problems_of_answer(log, "apps", A, document(3, size=1)) == []
    assert problems_of_answer(log, "apps", A, document(3, size=2))
    assert problems_of_answer(log, "apps", B, document(3, size=1))
    assert problems_of_answer(log, "apps", A, document(9))


@pytest.mark.parametrize(
    ("term", "values"),
    [
        (Term("x", Operator.EQUAL, "1"), {"1": True, "2": False, None: False}),
        (Term("x", Operator.NOT_EQUAL, "1"), {"1": False, "2": True, None: True}),
        (Term("x", Operator.EXISTS), {"1": True, None: False}),
        (Term("x", Operator.NOT_EXISTS), {"1": False, None: True}),
    ],
)
def test_terms_select_as_kubernetes_says(term: Term, values: dict[str | None, bool]) -> None:
    for value, selected in values.items():
        labels = {} if value is None else {"x": value}
        assert Selector("apps", None, (term,)).selects(canonical({"metadata": {"labels": labels}})) is selected


def test_fields_are_compared_as_text_and_absent_ones_are_empty() -> None:
    shown = canonical({"metadata": {"name": "a"}, "spec": {"ephemeral": True}})
    for path, value in {"metadata.name": "a", "spec.ephemeral": "true", "status.phase": ""}.items():
        assert Selector("apps", None, fields=(Term(path, Operator.EQUAL, value),)).selects(shown)
        assert not Selector("apps", None, fields=(Term(path, Operator.NOT_EQUAL, value),)).selects(shown)
