"""What a watch or list must have shown, worked out from the change log alone; and where it did not.

Pure, and written from the rules (R-LIST-1, R-WATCH-2 to R-WATCH-7), not from the server's code: it shares neither its
selectors nor its buffers nor its queries. A `Log` is what an auditor read from the table of changes, revision by
revision. A `Segment` is what one connection of a watcher saw between two of its ends. `problems_of_segment` and
`problems_of_list` name every way in which one does not follow from the other.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import orjson

Name = tuple[str, str]
"""Project and name."""
PROBLEMS_MAX = 5


def canonical(document: Mapping[str, Any]) -> bytes:
    """The document in a form in which equal ones are equal bytes."""
    return orjson.dumps(document, option=orjson.OPT_SORT_KEYS)


@dataclass(frozen=True, slots=True)
class Logged:
    """A row of the change log."""

    rv: int
    type: str
    kind: str
    name: Name
    document: bytes
    """Canonical: the object after the write; for DELETED its last state with the revision of the delete."""


class Operator(Enum):
    """What a term of a selector says; its value is how the query writes it."""

    EQUAL = "{0}={1}"
    NOT_EQUAL = "{0}!={1}"
    EXISTS = "{0}"
    NOT_EXISTS = "!{0}"


@dataclass(frozen=True, slots=True)
class Term:
    """One condition on a label, or on a field by its path."""

    key: str
    operator: Operator
    value: str = ""

    @property
    def text(self) -> str:
        return self.operator.value.format(self.key, self.value)

    def holds(self, found: str | None) -> bool:
        """Whether it holds for what stands at the key; `!=` holds where nothing does."""
        match self.operator:
            case Operator.EQUAL:
                return found == self.value
            case Operator.NOT_EQUAL:
                return found != self.value
            case Operator.EXISTS:
                return found is not None
            case Operator.NOT_EXISTS:
                return found is None


@dataclass(frozen=True, slots=True)
class Selector:
    """What a watcher or list asks for: a kind, a project or all, and terms that must all hold."""

    kind: str
    project: str | None
    labels: tuple[Term, ...] = ()
    fields: tuple[Term, ...] = ()

    @property
    def query(self) -> dict[str, str]:
        """The parameters of a request."""
        asked = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: ",".join(term.text for term in terms) for name, terms in asked.items() if terms}

    def selects(self, document: bytes) -> bool:
        """Whether an object of the kind and project satisfies the terms."""
        if not self.labels and not self.fields:
            return True
        parsed = orjson.loads(document)
        labels = parsed["metadata"].get("labels", {})
        return all(term.holds(labels.get(term.key)) for term in self.labels) and all(
            term.holds(_at(parsed, term.key)) for term in self.fields
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """A line of a watch."""

    type: str
    rv: int
    name: Name
    document: bytes
    """Canonical; empty for a bookmark."""


class Ending(Enum):
    """How a segment ended."""

    CUT = "the watcher or the server cut it, or the time was up"
    EXPIRED = "the server said that the revision is too old"
    CAUGHT_UP = "the watcher had nothing more to wait for"


@dataclass(slots=True)
class Segment:
    """What one connection showed, from the revision it was opened at."""

    since_rv: int
    lines: list[Seen] = field(default_factory=list)
    ending: Ending = Ending.CUT
    upto_rv: int = 0
    """CAUGHT_UP: everything up to here must have come."""


class Log:
    """Every change there was, in order, and what each object was at each revision."""

    def __init__(self) -> None:
        self.rows: list[Logged] = []
        self._by_kind: dict[str, list[Logged]] = {}
        self._versions: dict[str, dict[Name, list[Logged]]] = {}
        self.problems: list[str] = []

    @property
    def last_rv(self) -> int:
        return len(self.rows)

    def append(self, row: Logged) -> None:
        """Take the next row; what is wrong with it is added to `problems`."""
        before = self.before(row)
        if row.rv != self.last_rv + 1:
            self.problems.append(f"revision {row.rv} follows {self.last_rv}")
        if (row.type == "ADDED") is not (before is None):
            self.problems.append(f"{row.rv}: {row.type} of {row.name}, which was {before and before.rv}")
        if row.type == "DELETED" and before is not None and row.document != _at_rv(before.document, row.rv):
            self.problems.append(f"{row.rv}: the delete of {row.name} does not carry its last state, of {before.rv}")
        if orjson.loads(row.document)["metadata"]["resourceVersion"] != str(row.rv):
            self.problems.append(f"{row.rv}: the document says another revision")
        self.rows.append(row)
        self._by_kind.setdefault(row.kind, []).append(row)
        self._versions.setdefault(row.kind, {}).setdefault(row.name, []).append(row)

    def at(self, rv: int) -> Logged:
        return self.rows[rv - 1]

    def before(self, row: Logged) -> Logged | None:
        """What the object was before this row; None when there was none."""
        return self._state(self._versions.get(row.kind, {}).get(row.name, []), row.rv - 1)

    def objects(self, selector: Selector, rv: int) -> dict[Name, bytes]:
        """What a list of the selection shows at the revision."""
        shown: dict[Name, bytes] = {}
        for name, versions in self._versions.get(selector.kind, {}).items():
            if selector.project in (None, name[0]):
                state = self._state(versions, rv)
                if state is not None and selector.selects(state.document):
                    shown[name] = state.document
        return shown

    def events(self, selector: Selector, after_rv: int, upto_rv: int) -> Iterator[Seen]:
        """What a watch of the selection shows of the changes in (after_rv, upto_rv] (R-WATCH-4, R-WATCH-5)."""
        rows = self._by_kind.get(selector.kind, [])
        first = bisect_right(rows, after_rv, key=lambda row: row.rv)
        last = bisect_right(rows, upto_rv, key=lambda row: row.rv)
        for row in rows[first:last]:
            if selector.project not in (None, row.name[0]):
                continue
            before = self.before(row)
            was = before is not None and selector.selects(before.document)
            if row.type != "DELETED" and selector.selects(row.document):
                yield Seen("MODIFIED" if was else "ADDED", row.rv, row.name, row.document)
            elif was and before is not None:
                yield Seen("DELETED", row.rv, row.name, _at_rv(before.document, row.rv))

    @staticmethod
    def _state(versions: Sequence[Logged], rv: int) -> Logged | None:
        position = bisect_left(versions, rv + 1, key=lambda row: row.rv)
        found = versions[position - 1] if position else None
        return None if found is None or found.type == "DELETED" else found


def problems_of_list(log: Log, selector: Selector, rv: int, shown: Mapping[Name, bytes]) -> list[str]:
    """Where the objects shown at `rv` are not those there were (R-LIST-1)."""
    expected = log.objects(selector, rv)
    found = [f"the list at {rv} lacks {name}" for name in expected.keys() - shown.keys()]
    found += [f"the list at {rv} shows {name}, which is not in it" for name in shown.keys() - expected.keys()]
    found += [
        f"the list at {rv} shows {name} as of {rv_of(shown[name])}, not as of {rv_of(expected[name])}"
        for name in expected.keys() & shown.keys()
        if expected[name] != shown[name]
    ]
    return found[:PROBLEMS_MAX]


def problems_of_segment(log: Log, selector: Selector, segment: Segment) -> list[str]:
    """Where the lines are not exactly the changes after `since_rv`, each once and in order, as far as they go."""
    found: list[str] = []
    expected = log.events(selector, segment.since_rv, log.last_rv)
    last_rv = segment.since_rv
    waiting: Seen | None = next(expected, None)
    for line in segment.lines:
        if line.type == "BOOKMARK":
            if line.rv < last_rv:
                found.append(f"a bookmark of {line.rv} after {last_rv}")
            if waiting is not None and waiting.rv <= line.rv:
                found.append(f"a bookmark of {line.rv} without {told(waiting)} before it")
        else:
            if line.rv <= last_rv:
                found.append(f"{told(line)} after revision {last_rv}")
            while waiting is not None and waiting.rv < line.rv:
                found.append(f"{told(waiting)} did not come before {told(line)}")
                waiting = next(expected, None)
            if waiting is None or waiting.rv != line.rv:
                found.append(f"{told(line)} is no change of the selection")
            else:
                found += _differences(line, waiting)
                waiting = next(expected, None)
        last_rv = max(last_rv, line.rv)
        if len(found) >= PROBLEMS_MAX:
            return found
    if segment.ending is Ending.CAUGHT_UP and waiting is not None and waiting.rv <= segment.upto_rv:
        found.append(f"{told(waiting)} never came, though the watcher waited for {segment.upto_rv}")
    return found


def problems_of_answer(log: Log, kind: str, name: Name, document: bytes) -> list[str]:
    """Where a write that was acknowledged with this document is not in the log."""
    rv = rv_of(document)
    row = log.at(rv) if 0 < rv <= log.last_rv else None
    if row is None or (row.kind, row.name) != (kind, name) or row.document != document:
        found = None if row is None else f"{row.type} {row.kind} {row.name} {row.document.decode()[:600]}"
        return [f"the answer for {kind} {name} at {rv} is {document.decode()[:600]}, but the log has {found}"]
    return []


def told(line: Seen) -> str:
    """How a problem names a line."""
    return f"{line.type} {'/'.join(line.name)} at {line.rv}"


def rv_of(document: bytes) -> int:
    return int(orjson.loads(document)["metadata"]["resourceVersion"])


def _differences(line: Seen, expected: Seen) -> list[str]:
    if (line.type, line.name) != (expected.type, expected.name):
        return [f"{told(line)} should have been {told(expected)}"]
    if line.document != expected.document:
        return [f"{told(line)} carries {line.document.decode()[:600]}, not {expected.document.decode()[:600]}"]
    return []


def _at_rv(document: bytes, rv: int) -> bytes:
    parsed = orjson.loads(document)
    parsed["metadata"]["resourceVersion"] = str(rv)
    return canonical(parsed)


def _at(document: Any, path: str) -> str:
    """The text of a field, empty when it is absent; booleans as Kubernetes writes them."""
    for part in path.split("."):
        document = document.get(part) if isinstance(document, dict) else None
    if isinstance(document, bool):
        return str(document).lower()
    return "" if document is None else str(document)
