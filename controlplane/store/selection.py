"""Selections: which objects a list or watch covers, as SQL and as a test in memory.

Both say the same (a property test compares them): labels follow Kubernetes, where `!=` and `notin` match an absent
key; a field that a document lacks equals the empty string. Equality terms become JSON containment, which the GIN
indexes of `objects` answer: they find every match before the first is shown, which is quick while matches are few. What
many calls have in common has indexes in the order of lists instead, where a page reads no more than itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from controlplane.machinery import selectors
from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Key, Selection

Bind = Callable[[object], str]

INDEXED_VALUES_MAX = 16
"""Values of an `in` that are looked up one by one; with more, one pass over the rows is cheaper."""
ORDERED_LABELS = frozenset({"nodus.dev/function", "nodus.dev/map"})
"""Labels with an index of their own in list order (`tables.py`): a map, or a Function's calls, may be a million."""
ORDERED_FIELDS = frozenset({"status.phase"})
"""Fields with such an index."""

_OWN_COLUMNS = {"metadata.name": "name", "metadata.namespace": "project"}


def covers(selection: Selection, key: Key) -> bool:
    """Whether the key lies in the selection's kind, organisation and project."""
    return (
        key.kind == selection.kind
        and key.org == selection.org
        and (selection.project is None or key.project == selection.project)
    )


def matches(selection: Selection, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether an object with this key, these labels and extracted fields may be seen and satisfies all terms."""
    return _visible(selection, key, fields) and selectors.matches(
        selection.labels, selection.fields, labels=labels, fields=fields, name=key.name, namespace=key.project
    )


def named(selection: Selection) -> str | None:
    """The one name the selection can match, when a term says so."""
    for term in selection.fields:
        if term.path == "metadata.name" and term.equal:
            return term.value
    return None


def where(selection: Selection, table: str, bind: Bind) -> str:
    """The SQL condition that says the same about `table` (an alias of `objects` or `changes`); values go through
    `bind`, which returns the placeholder of a parameter."""
    parts = [f"{table}.kind = {bind(selection.kind)}", f"{table}.org = {bind(selection.org)}"]
    if selection.project is not None:
        parts.append(f"{table}.project = {bind(selection.project)}")
    if selection.projects is not None:
        column = _text_sql(selection.project_field, table, bind)
        parts.append(f"{column} = ANY({bind(sorted(selection.projects))}::text[])")
    parts += [label_condition(term, table, bind) for term in selection.labels]
    parts += [_field_sql(term, table, bind) for term in selection.fields]
    return " AND ".join(parts)


def _visible(selection: Selection, key: Key, fields: Mapping[str, str]) -> bool:
    if selection.projects is None:
        return True
    own = {"metadata.name": key.name, "metadata.namespace": key.project}
    return (own | dict(fields)).get(selection.project_field, "") in selection.projects


def label_condition(term: LabelTerm, table: str, bind: Bind) -> str:
    """The SQL condition that says the same as a term about the column `labels` of `table`."""
    labels = f"{table}.labels"
    match term.operator:
        case LabelOperator.IN if _is_ordered(term):
            # The key is written out, as in the definition of the index, or the planner would not recognise it.
            return f"{labels} ->> '{term.key}' = {bind(term.values[0])}"
        case LabelOperator.IN if len(term.values) <= INDEXED_VALUES_MAX:
            # One containment for each value, because the index cannot answer `= ANY`.
            either = (f"{labels} @> {bind(_json({term.key: value}))}::text::jsonb" for value in term.values)
            return f"({' OR '.join(either) or 'false'})"
        case LabelOperator.IN:
            return f"{labels} ->> {bind(term.key)}::text = ANY({bind(list(term.values))}::text[])"
        case LabelOperator.NOT_IN:
            value = f"{labels} ->> {bind(term.key)}::text"
            return f"({value} IS NULL OR {value} <> ALL({bind(list(term.values))}::text[]))"
        case LabelOperator.EXISTS:
            return f"{labels} ? {bind(term.key)}::text"
        case LabelOperator.NOT_EXISTS:
            return f"NOT {labels} ? {bind(term.key)}::text"


def _is_ordered(term: LabelTerm) -> bool:
    return len(term.values) == 1 and term.key in ORDERED_LABELS


def _field_sql(term: FieldTerm, table: str, bind: Bind) -> str:
    if "\0" in term.value:
        # PostgreSQL's text cannot hold it, so no stored value can equal it.
        return "false" if term.equal else "true"
    sign = "=" if term.equal else "<>"
    if term.equal and term.value and term.path in ORDERED_FIELDS:
        return f"{table}.fields ->> '{term.path}' = {bind(term.value)}"
    if term.equal and term.value and term.path not in _OWN_COLUMNS:
        return f"{table}.fields @> {bind(_json({term.path: term.value}))}::text::jsonb"
    return f"{_text_sql(term.path, table, bind)} {sign} {bind(term.value)}"


def _text_sql(path: str, table: str, bind: Bind) -> str:
    """The text of a field, empty when the object lacks it."""
    if path in _OWN_COLUMNS:
        return f"{table}.{_OWN_COLUMNS[path]}"
    return f"coalesce({table}.fields ->> {bind(path)}::text, '')"


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
