"""Selections: which objects a list or watch covers, as SQL and as a test in memory.

Both say the same (a property test compares them): labels follow Kubernetes, where `!=` and `notin` match an absent
key; a field that a document lacks equals the empty string. Equality terms become JSON containment, so the indexes of
`objects` serve them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from controlplane.machinery import selectors
from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Key, Selection


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


def where(selection: Selection, first_parameter: int = 1) -> tuple[str, list[Any]]:
    """The SQL condition over `objects` (alias o) and its parameters, numbered from `first_parameter`."""
    parts: list[str] = []
    arguments: list[Any] = []

    def bind(value: object) -> str:
        arguments.append(value)
        return f"${first_parameter + len(arguments) - 1}"

    parts.append(f"o.kind = {bind(selection.kind)} AND o.org = {bind(selection.org)}")
    if selection.project is not None:
        parts.append(f"o.project = {bind(selection.project)}")
    elif selection.projects is not None:
        parts.append(f"o.project = ANY({bind(sorted(selection.projects))}::text[])")
    parts += [_label_sql(term, bind) for term in selection.labels]
    parts += [_field_sql(term, bind) for term in selection.fields]
    return " AND ".join(parts), arguments


def _visible(selection: Selection, project: str) -> bool:
    return selection.projects is None or project in selection.projects


def _label_sql(term: LabelTerm, bind: Any) -> str:  # noqa: ANN401 - a local closure
    match term.operator:
        case LabelOperator.IN if len(term.values) == 1:
            return f"o.labels @> {bind(_json({term.key: term.values[0]}))}::text::jsonb"
        case LabelOperator.IN:
            return f"o.labels ->> {bind(term.key)}::text = ANY({bind(list(term.values))}::text[])"
        case LabelOperator.NOT_IN:
            key = bind(term.key)
            values = bind(list(term.values))
            return f"(NOT o.labels ? {key}::text OR NOT (o.labels ->> {key}::text = ANY({values}::text[])))"
        case LabelOperator.EXISTS:
            return f"o.labels ? {bind(term.key)}::text"
        case LabelOperator.NOT_EXISTS:
            return f"NOT o.labels ? {bind(term.key)}::text"


def _field_sql(term: FieldTerm, bind: Any) -> str:  # noqa: ANN401 - a local closure
    own = {"metadata.name": "o.name", "metadata.namespace": "o.project"}
    sign = "=" if term.equal else "<>"
    if term.path in own:
        return f"{own[term.path]} {sign} {bind(term.value)}"
    if term.equal and term.value:
        return f"o.fields @> {bind(_json({term.path: term.value}))}::text::jsonb"
    return f"coalesce(o.fields ->> {bind(term.path)}::text, '') {sign} {bind(term.value)}"


def _json(value: object) -> str:
    return orjson.dumps(value).decode()
