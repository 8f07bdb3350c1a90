"""Selectors mean the same in SQL and in memory, for lists, for past states and for watches."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.machinery.selectors import FieldTerm, LabelOperator, LabelTerm
from controlplane.store.contract import Reads, Selection, Tx
from controlplane.store.objects import current_query
from controlplane.store.selection import INDEXED_VALUES_MAX, covers, matches
from tests.controlplane.store.things import Do, Store, key, thing

PAGE_ROWS = 501
"""What a page of 500 asks for."""
WORDS = ["", "a", "b", "B", "a.b", "ü"]
KEYS = ["tier", "app", "nodus.dev/map"]
PATHS = ["spec.color", "status.phase"]
PROJECTS = ["default", "other"]

labels = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(WORDS))
specs = st.fixed_dictionaries({}, optional={"color": st.sampled_from([*WORDS, "with \0", '"quoted"', True, 7])})
objects = st.lists(st.tuples(st.sampled_from(PROJECTS), labels, specs), min_size=1, max_size=12)

label_terms = st.one_of(
    st.builds(
        LabelTerm,
        st.sampled_from(KEYS),
        st.sampled_from([LabelOperator.IN, LabelOperator.NOT_IN]),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(tuple),
    ),
    st.builds(LabelTerm, st.sampled_from(KEYS), st.sampled_from([LabelOperator.EXISTS, LabelOperator.NOT_EXISTS])),
)
field_terms = st.builds(
    FieldTerm,
    st.sampled_from(["metadata.name", "metadata.namespace", *PATHS]),
    st.booleans(),
    st.sampled_from([*WORDS, *PROJECTS, "thing-0", "thing-1", "with \0", '"quoted"', "true", "7"]),
)
selections = st.builds(
    Selection,
    st.just("Thing"),
    st.just("acme"),
    st.sampled_from([None, *PROJECTS]),
    labels=st.lists(label_terms, max_size=2).map(tuple),
    fields=st.lists(field_terms, max_size=2).map(tuple),
    projects=st.sampled_from([None, frozenset(), frozenset({"other"}), frozenset([*PROJECTS, "thing-1", "a"])]),
    project_field=st.sampled_from(["metadata.namespace", "metadata.name", "spec.color"]),
)


async def replace_all(store: Store, wanted: list[tuple[str, dict[str, str], dict[str, Any]]]) -> None:
    present = [key(f"thing-{number}", project) for number in range(12) for project in PROJECTS]

    def apply(tx: Tx) -> None:
        for place in present:
            if tx.get(place) is not None:
                tx.remove(place)
        for number, (project, given_labels, spec) in enumerate(wanted):
            name = f"thing-{number}"
            tx.put(key(name, project), thing(name, labels=given_labels, uid=f"{project}/{name}", **spec))

    await store.write(Do(apply, reading=Reads(keys=present)))


async def listed(store: Store, selection: Selection, at_rv: int | None = None) -> set[str]:
    page = await store.objects.list_page(selection, limit=100, bytes_max=1 << 20, at_rv=at_rv)
    return {orjson.loads(document)["metadata"]["uid"] for document in page.documents}


@settings(
    max_examples=40,
    # What is named here takes the place of what the suite allows.
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(wanted=objects, asked=st.lists(selections, min_size=1, max_size=6))
async def test_a_list_shows_exactly_what_matches(
    store: Store, wanted: list[tuple[str, dict[str, str], dict[str, Any]]], asked: list[Selection]
) -> None:
    await replace_all(store, wanted)
    rv = store.feed.last_rv
    present = {change.key: change for change in store.seen if change.rv > rv - len(wanted)}
    expected = {
        selection: {
            change.uid
            for change in present.values()
            if covers(selection, change.key) and matches(selection, change.key, change.labels, change.fields)
        }
        for selection in asked
    }
    for selection in asked:
        assert await listed(store, selection) == expected[selection]
    await replace_all(store, [])
    for selection in asked:
        assert await listed(store, selection, at_rv=rv) == expected[selection]


async def test_long_lists_of_values_select_like_short_ones(store: Store) -> None:
    await replace_all(store, [("default", {"tier": word}, {}) for word in WORDS])
    fillers = tuple(f"filler-{number}" for number in range(INDEXED_VALUES_MAX + 1))
    selection = Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.IN, ("a", "B", *fillers)),))
    assert len(await listed(store, selection)) == 2


@pytest.mark.parametrize(
    ("selection", "index"),
    [
        (Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.IN, ("a",)),)), "objects_labels"),
        (Selection("Thing", "acme", None, labels=(LabelTerm("tier", LabelOperator.IN, ("a", "b")),)), "objects_labels"),
        (Selection("Thing", "acme", None, fields=(FieldTerm("spec.color", True, "red"),)), "objects_fields"),
        (Selection("Thing", "acme", "p", fields=(FieldTerm("metadata.name", True, "x"),)), "objects_pkey"),
    ],
    ids=["a label", "a label in a set", "a field", "a name"],
)
async def test_equality_is_answered_by_an_index(store: Store, selection: Selection, index: str) -> None:
    text, arguments = current_query(selection, None, None, PAGE_ROWS)
    await store.database.execute(
        "INSERT INTO objects SELECT 'Thing', 'acme', 'p', 'n' || n, 'u' || n, n, n, false, "
        "jsonb_build_object('tier', 't' || n % 1000), jsonb_build_object('spec.color', 'c' || n % 1000), '{}', '{}' "
        "FROM generate_series(1, 20000) n"
    )
    await store.database.execute("ANALYZE objects")
    plan = "\n".join(row[0] for row in await store.database.fetch(f"EXPLAIN {text}", *arguments))
    assert index in plan, plan
