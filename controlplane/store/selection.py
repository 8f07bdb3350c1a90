"""Selections: which objects a list or watch covers, as SQL and as a test in memory.

Both say the same (a property test compares them): labels follow Kubernetes, where `!=` and `notin` match an absent
key; a field that a document lacks equals the empty string. Equality terms become JSON containment, so the indexes of
`objects` serve them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import orjson

from controlplane.machinery import selectors
from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Key, Selection

Bind = Callable[[object], str]

INDEXED_VALUES_MAX = 16

_OWN_COLUMNS = {"metadata.name": "name", "metadata.namespace": "project"}


def covers(selection: Selection, key: Key) -> bool:
    """Whether the key lies in the selection's kind, organisation and projects."""
    return (
        key.kind == selection.kind
        and key.org == selection.org
        and (key.project == selection.project if selection.project is not None else _visible(selection, key.project))
    )


def matches(selection: Selection, key: Key, labels: Mapping[str, str], fields: Mapping[str, str]) -> bool:
    """Whether an object with this key, these labels and extracted fields satisfies all terms."""
    return selectors.matches(
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
    elif selection.projects is not None:
        parts.append(f"{table}.project = ANY({bind(sorted(selection.projects))}::text[])")
    parts += [_label_sql(term, table, bind) for term in selection.labels]
    parts += [_field_sql(term, table, bind) for term in selection.fields]
    return " AND ".join(parts)


def _visible(selection: Selection, project: str) -> bool:
    return selection.projects is None or project in selection.projects


def _label_sql(term: LabelTerm, table: str, bind: Bind) -> str:
    labels = f"{table}.labels"
    match term.operator:
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


def _field_sql(term: FieldTerm, table: str, bind: Bind) -> str:
    if "\0" in term.value:
        # PostgreSQL's text cannot hold it, so no stored value can equal it.
        return "false" if term.equal else "true"
    sign = "=" if term.equal else "<>"
    if term.path in _OWN_COLUMNS:
        return f"{table}.{_OWN_COLUMNS[term.path]} {sign} {bind(term.value)}"
    if term.equal and term.value:
        return f"{table}.fields @> {bind(_json({term.path: term.value}))}::text::jsonb"
    return f"coalesce({table}.fields ->> {bind(term.path)}::text, '') {sign} {bind(term.value)}"


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
