"""The checker of fault runs accepts a good run and refuses each kind of bad one, so it can fail."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.faults.checker import RULES, Logged, Remains, check
from tests.faults.history import History, read_history

BEGIN = datetime(2026, 11, 29, tzinfo=UTC)
RATE = 36_000
"""10 micro-USD a second for the whole worker."""


@dataclass
class Run:
    """A run that the rules accept, for a test to spoil."""

    history: list[dict[str, Any]]
    remains: Remains

    def log(self, name: str) -> list[Logged]:
        return [change for change in self.remains.log if change.name == name]

    def rewrite(self, name: str, change: Callable[[dict[str, Any]], None]) -> None:
        """Change the document of the last row about a call."""
        last = self.log(name)[-1]
        document = copy.deepcopy(dict(last.document))
        change(document)
        log = [replace(row, document=document) if row is last else row for row in self.remains.log]
        self.remains = replace(self.remains, log=log)

    def without(self, event: str, call: str) -> None:
        self.history = [e for e in self.history if (e["event"], e.get("call")) != (event, call)]

    def one(self, event: str, call: str) -> dict[str, Any]:
        return next(e for e in self.history if (e["event"], e.get("call")) == (event, call))


def row(rv: int, seconds: float, name: str, session: str, phase: str, **status: Any) -> Logged:
    document = {
        "metadata": {"name": name, "uid": f"fnc_{name}"},
        "spec": {"function": "f", "session": session},
        "status": {"phase": phase, **status},
    }
    type_ = "ADDED" if phase == "Queued" and not status else "MODIFIED"
    return Logged(rv=rv, time=BEGIN + timedelta(seconds=seconds), type=type_, name=name, document=document)


def ended(digest: str, cost: str, **status: Any) -> dict[str, Any]:
    return {"worker": {"attempt": "att_1", "epoch": 1}, "result": {"sha256": digest}, "costUSD": cost, **status}


@pytest.fixture
def good() -> Run:
    """Three calls: `a` and `b` of one session, `c` of another; `c` is retried once."""
    log = [
        row(1, 0, "a", "s1", "Queued"),
        row(2, 0, "b", "s1", "Queued"),
        row(3, 0, "c", "s2", "Queued"),
        row(4, 1, "a", "s1", "Running"),
        row(5, 1, "c", "s2", "Running"),
        row(6, 3.5, "a", "s1", "Succeeded", **ended("d-a", "0.000015")),
        row(7, 3.5, "c", "s2", "Queued", retries=1, costUSD="0.000015"),
        row(8, 4, "b", "s1", "Running"),
        row(9, 4.5, "b", "s1", "Succeeded", **ended("d-b", "0.000005")),
        row(10, 5, "c", "s2", "Running", retries=1),
        row(11, 6, "c", "s2", "Succeeded", **ended("d-c", "0.00002", retries=1)),
    ]
    history: list[dict[str, Any]] = [{"event": "started", "attempt": "att_1", "concurrency": 2, "at": 0.0, "by": "w"}]
    created = {"event": "created", "kind": "succeed", "bound_seconds": 30, "at": 1.0, "by": "client"}
    history += [{**created, "call": call, "uid": f"fnc_{call}", "phases": ["Succeeded"]} for call in "abc"]
    runs = [("a", "1", "d-a"), ("c", "2", None), ("b", "3", "d-b"), ("c", "4", "d-c")]
    for call, run, _ in runs[:2]:
        history.append({"event": "began", "attempt": "att_1", "call": call, "run": run, "at": 2.0, "by": "w"})
    for call, run, digest in runs:
        if int(run) > 2:
            history.append({"event": "began", "attempt": "att_1", "call": call, "run": run, "at": 3.0, "by": "w"})
        outcome = "Succeeded" if digest else "RemoteError"
        history.append(
            {"event": "finished", "attempt": "att_1", "call": call, "run": run, "outcome": outcome, "digest": digest,
             "at": 3.0, "by": "w"}
        )  # fmt: skip
    for change in log:
        counters = {name: change.status.get(name, 0) for name in ("retries", "recoveries")}
        history.append(
            {"event": "seen", "call": change.name, "uid": f"fnc_{change.name}", "rv": change.rv, "phase": change.phase,
             "by": "client", "at": 5.0, **counters}
        )  # fmt: skip
    history += [{"event": "ended", "call": call, "phase": "Succeeded", "at": 6.0, "by": "client"} for call in "abc"]
    function = {
        "metadata": {"name": "f"},
        "status": {"queue": {"queued": 0, "running": 0}, "workers": {"ready": 0}, "cost": {"totalUSD": "0.000047"}},
    }
    loads = {"f": {"queued": 0, "running": 0, "pending": 0, "charge_micro_usd": 47, "worker_micro_usd": 7}}
    remains = Remains(
        log=log, functions=[function], loads=loads, concurrency={"f": 2}, rate_micro_usd_per_hour=RATE
    )  # fmt: skip
    return Run(history, remains)


def test_a_good_run_is_accepted(good: Run) -> None:
    assert check(good.history, good.remains) == []


def change_after_end(run: Run) -> None:
    run.remains = replace(run.remains, log=[*run.remains.log, row(12, 7, "a", "s1", "Failed")])


def leave_the_end(run: Run) -> None:
    run.remains = replace(run.remains, log=[*run.remains.log, row(12, 7, "a", "s1", "Queued", retries=0)])


def lose_a_call(run: Run) -> None:
    run.remains = replace(run.remains, log=[change for change in run.remains.log if change.name != "b"])


def never_end(run: Run) -> None:
    run.remains = replace(run.remains, log=run.remains.log[:-1])


def promise_twice(run: Run) -> None:
    run.history.append({**run.one("created", "a"), "call": "z"})


def tell_nobody(run: Run) -> None:
    run.without("created", "b")


def end_otherwise(run: Run) -> None:
    run.one("created", "a")["phases"] = ["Cancelled"]


def run_again(run: Run) -> None:
    run.history += [{**run.one("began", "a"), "run": "9"}, {**run.one("finished", "a"), "run": "9"}]


def recover_from_nothing(run: Run) -> None:
    run.rewrite("c", lambda document: document["status"].update(recoveries=1))


def take_another_result(run: Run) -> None:
    run.one("finished", "b")["digest"] = "other"


def keep_a_result_of_a_failure(run: Run) -> None:
    run.rewrite("b", lambda document: document["status"].update(phase="Failed"))


def hold_too_much(run: Run) -> None:
    run.history[0]["concurrency"] = 1


def run_twice_at_once(run: Run) -> None:
    run.history.insert(run.history.index(run.one("finished", "a")), {**run.one("began", "a"), "run": "9"})


def jump_the_queue(run: Run) -> None:
    swap = {"a": "b", "b": "a"}
    log = []
    for change in run.remains.log:
        name = swap.get(change.name, change.name) if change.rv > 3 else change.name
        metadata = {"name": name, "uid": f"fnc_{name}"}
        log.append(replace(change, name=name, document={**change.document, "metadata": metadata}))
    run.remains = replace(run.remains, log=log)


def pass_a_session_over(run: Run) -> None:
    numbers = {5: 8, 8: 5}
    log = [replace(change, rv=numbers.get(change.rv, change.rv)) for change in run.remains.log]
    run.remains = replace(run.remains, log=sorted(log, key=lambda change: change.rv))


def wait_for_ever(run: Run) -> None:
    run.without("ended", "a")


def give_up_waiting(run: Run) -> None:
    run.one("ended", "a")["phase"] = ""


def wait_too_long(run: Run) -> None:
    run.one("ended", "a")["at"] = 40.0


def lie_to_a_waiter(run: Run) -> None:
    run.one("ended", "a")["phase"] = "Failed"


def watch_backwards(run: Run) -> None:
    run.history.append({**run.one("seen", "a"), "rv": 1})


def watch_an_end_taken_back(run: Run) -> None:
    run.history.append({**run.one("seen", "a"), "rv": 99, "phase": "Running"})


def watch_counters_go_back(run: Run) -> None:
    run.history.append({**run.one("seen", "c"), "rv": 99, "phase": "Succeeded", "retries": 0})


def charge_too_much(run: Run) -> None:
    run.rewrite("b", lambda document: document["status"].update(costUSD="0.000006"))


def charge_the_function_twice(run: Run) -> None:
    run.remains = replace(run.remains, loads={"f": {**run.remains.loads["f"], "charge_micro_usd": 80}})


def leave_a_hold(run: Run) -> None:
    run.remains = replace(run.remains, open_holds=["hold/att_1/1"])


def unbalance_the_ledger(run: Run) -> None:
    run.remains = replace(run.remains, ledger_breaches=["what is debited is credited, but it is not"])


def leave_a_row(run: Run) -> None:
    run.remains = replace(run.remains, open_rows=["a"])


def leave_an_attempt(run: Run) -> None:
    run.remains = replace(run.remains, open_attempts=["att_1"])


def leave_a_workflow(run: Run) -> None:
    run.remains = replace(run.remains, open_workflows=["call/fnc_a"])


def leave_a_process(run: Run) -> None:
    run.remains = replace(run.remains, processes=["worker 17"])


def leave_a_tally(run: Run) -> None:
    run.remains = replace(run.remains, loads={"f": {**run.remains.loads["f"], "running": 1}})


def status(part: str, **values: Any) -> Callable[[Run], None]:
    def spoil(run: Run) -> None:
        [function] = run.remains.functions
        changed = {**function, "status": {**function["status"], part: values}}
        run.remains = replace(run.remains, functions=[changed])

    return spoil


WRONG = [
    (change_after_end, "one_final_phase"),
    (leave_the_end, "one_final_phase"),
    (never_end, "one_final_phase"),
    (lose_a_call, "every_created_call_is_known"),
    (promise_twice, "every_created_call_is_known"),
    (tell_nobody, "every_created_call_is_known"),
    (end_otherwise, "calls_end_as_their_kind_must"),
    (run_again, "executions_are_counted"),
    (recover_from_nothing, "recoveries_are_losses"),
    (take_another_result, "results_come_from_the_last_worker"),
    (keep_a_result_of_a_failure, "results_come_from_the_last_worker"),
    (hold_too_much, "workers_hold_no_more_than_they_may"),
    (run_twice_at_once, "workers_hold_no_more_than_they_may"),
    (jump_the_queue, "sessions_take_turns"),
    (pass_a_session_over, "sessions_take_turns"),
    (wait_for_ever, "waiters_end_in_time"),
    (give_up_waiting, "waiters_end_in_time"),
    (wait_too_long, "waiters_end_in_time"),
    (lie_to_a_waiter, "waiters_end_in_time"),
    (watch_backwards, "watches_tell_a_straight_story"),
    (watch_an_end_taken_back, "watches_tell_a_straight_story"),
    (watch_counters_go_back, "watches_tell_a_straight_story"),
    (charge_too_much, "charges_follow_the_intervals"),
    (charge_the_function_twice, "charges_follow_the_intervals"),
    (unbalance_the_ledger, "the_ledger_balances"),
    (leave_a_row, "nothing_is_left_open"),
    (leave_an_attempt, "nothing_is_left_open"),
    (leave_a_hold, "nothing_is_left_open"),
    (leave_a_workflow, "nothing_is_left_open"),
    (leave_a_process, "nothing_is_left_open"),
    (leave_a_tally, "counters_agree"),
    (status("queue", queued=1, running=0), "counters_agree"),
    (status("workers", ready=1), "counters_agree"),
    (status("cost", totalUSD="1"), "counters_agree"),
]


@pytest.mark.parametrize(("spoil", "rule"), WRONG)
def test_a_wrong_run_is_refused_by_its_rule(good: Run, spoil: Callable[[Run], None], rule: str) -> None:
    spoil(good)
    assert rule in {problem.partition(":")[0] for problem in check(good.history, good.remains)}


def test_every_rule_has_a_run_that_it_refuses() -> None:
    assert {rule.__name__ for rule in RULES} == {rule for _, rule in WRONG}


def test_a_history_of_several_writers_comes_back_in_order(tmp_path: Path) -> None:
    writers = [History(tmp_path / "history", by=f"w{number}") for number in range(3)]
    for number in range(30):
        writers[number % 3].add("seen", number=number)
    assert [event["number"] for event in read_history(tmp_path / "history")] == list(range(30))


def test_a_line_that_was_cut_is_passed_over_and_takes_no_other_along(tmp_path: Path) -> None:
    history = History(tmp_path / "history", by="w")
    history.add("seen", number=1)
    with (tmp_path / "history").open("a") as killed:
        killed.write('\n{"event": "seen", "num')
    assert [event["number"] for event in read_history(tmp_path / "history")] == [1]
    history.add("seen", number=2)
    assert [event["number"] for event in read_history(tmp_path / "history")] == [1, 2]
