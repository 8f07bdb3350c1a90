"""Server-side apply as tables: what comes out, who owns it, and what is a conflict."""

from __future__ import annotations

from datetime import timedelta

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from controlplane.errors import ApiError
from controlplane.machinery.fieldsets import decoded
from controlplane.machinery.managed_fields import APPLIERS_MAX, OWNERS_BYTES_MAX, managers_of
from tests.fixtures.applying import NOW, Document, applied, live, owned, updated

ENV_A = {"name": "A", "value": "1"}
ENV_B = {"name": "B", "value": "2"}


@pytest.mark.parametrize(
    ("before", "config", "after"),
    [
        pytest.param({}, {"timeout": "5s"}, {"timeout": "5s"}, id="a new field"),
        pytest.param({"timeout": "5s"}, {}, {}, id="a field it leaves out goes"),
        pytest.param(
            {"scaling": {"minWorkers": 1, "maxWorkers": 5}},
            {"scaling": {"maxWorkers": 5}},
            {"scaling": {"maxWorkers": 5}},
            id="a field of a struct goes",
        ),
        pytest.param({"scaling": {"minWorkers": 1}}, {}, {}, id="a struct goes with its last field"),
        pytest.param({"env": [ENV_A, ENV_B]}, {"env": [ENV_B]}, {"env": [ENV_B]}, id="an item of a keyed list goes"),
        pytest.param(
            {"env": [ENV_A, ENV_B]},
            {"env": [{"name": "A", "value": "9"}, ENV_B]},
            {"env": [{"name": "A", "value": "9"}, ENV_B]},
            id="an item keeps its place",
        ),
        pytest.param({"args": ["a", "b"]}, {"args": ["b"]}, {"args": ["b"]}, id="an atomic list is replaced"),
        pytest.param({"args": ["a"]}, {}, {}, id="an atomic list goes"),
        pytest.param({"timeout": "5s"}, {"timeout": None}, {}, id="null is absent"),
        pytest.param({}, {"secrets": ["hf"]}, {"secrets": ["hf"]}, id="a bare name stands for an item"),
    ],
)
def test_applying_again_changes_what_the_manager_applied_before(
    before: Document, config: Document, after: Document
) -> None:
    first = applied(live({"python": "3.11"}), "ci", {"spec": before})
    assert applied(first, "ci", {"spec": config})["spec"] == {"python": "3.11", **after}


@pytest.mark.parametrize(
    ("first", "second", "together", "left"),
    [
        pytest.param(
            {"timeout": "5s"},
            {"python": "3.11"},
            {"timeout": "5s", "python": "3.11"},
            {"python": "3.11"},
            id="two fields",
        ),
        pytest.param({"env": [ENV_A]}, {"env": [ENV_B]}, {"env": [ENV_A, ENV_B]}, {"env": [ENV_B]}, id="two items"),
        pytest.param(
            {"secrets": [{"name": "hf"}]},
            {"secrets": ["hf", "aws"]},
            {"secrets": [{"name": "hf"}, {"name": "aws"}]},
            {"secrets": [{"name": "hf"}, {"name": "aws"}]},
            id="a bare name meets its item",
        ),
        pytest.param({"timeout": "5s"}, {"timeout": "5s"}, {"timeout": "5s"}, {"timeout": "5s"}, id="a shared value"),
        pytest.param(
            {"scaling": {"minWorkers": 1}},
            {"scaling": {"maxWorkers": 5}},
            {"scaling": {"minWorkers": 1, "maxWorkers": 5}},
            {"scaling": {"maxWorkers": 5}},
            id="two fields of one struct",
        ),
    ],
)
def test_managers_share_an_object_and_who_leaves_takes_along_what_nobody_else_wants(
    first: Document, second: Document, together: Document, left: Document
) -> None:
    document = applied(applied(live(), "one", {"spec": first}), "two", {"spec": second})
    assert document["spec"] == together
    document = applied(document, "one", {"spec": {}})
    assert document["spec"] == left
    assert "one/Apply" not in owned(document)


def test_a_field_of_another_manager_is_a_conflict_that_names_both() -> None:
    document = applied(live(), "one", {"spec": {"timeout": "5s", "env": [ENV_A]}})
    with pytest.raises(ApiError) as refused:
        applied(document, "two", {"spec": {"timeout": "6s"}})
    assert refused.value.message == 'Apply failed with 1 conflict: conflict with "one": .spec.timeout'
    [cause] = refused.value.causes
    assert (cause.reason, cause.field, cause.message) == (
        "FieldManagerConflict",
        ".spec.timeout",
        'conflict with "one"',
    )
    with pytest.raises(ApiError) as refused:
        applied(document, "two", {"spec": {"timeout": "6s", "env": [{"name": "A", "value": "2"}]}})
    assert refused.value.message == (
        'Apply failed with 2 conflicts: conflicts with "one":\n- .spec.env[name="A"].value\n- .spec.timeout'
    )


def test_an_updaters_conflict_tells_when_it_wrote() -> None:
    document = updated(applied(live(), "one", {"spec": {"python": "3.11"}}), "kubectl-edit", timeout="5s")
    with pytest.raises(ApiError, match=r'"kubectl-edit" using nodus.dev/v1 at 2026-11-29T12:00:00Z: .spec.timeout'):
        applied(document, "one", {"spec": {"python": "3.11", "timeout": "6s"}})


def test_force_takes_the_field_over() -> None:
    document = applied(live(), "one", {"spec": {"timeout": "5s", "python": "3.11"}})
    taken = applied(document, "two", {"spec": {"timeout": "6s"}}, force=True)
    assert taken["spec"] == {"timeout": "6s", "python": "3.11"}
    assert owned(taken) == {"one/Apply": [".spec.python"], "two/Apply": [".spec.timeout"]}
    # The first manager no longer owns it, so leaving it out does not remove it.
    assert applied(taken, "one", {"spec": {}})["spec"] == {"timeout": "6s"}


def test_an_apply_to_an_object_without_owners_asks_before_it_changes_anything() -> None:
    with pytest.raises(ApiError, match=r'"before-first-apply" using nodus.dev/v1 at .*: .spec.timeout'):
        applied(live({"timeout": "5s"}), "ci", {"spec": {"timeout": "6s"}})
    kept = applied(live({"timeout": "5s", "python": "3.11"}), "ci", {"spec": {"timeout": "5s"}})
    assert owned(kept) == {
        "ci/Apply": [".spec.timeout"],
        "before-first-apply/Update": [".spec.python", ".spec.timeout"],
    }
    assert applied(kept, "ci", {"spec": {}})["spec"] == {"timeout": "5s", "python": "3.11"}


def test_writing_the_same_again_moves_no_time() -> None:
    later = NOW + timedelta(hours=1)
    document = updated(applied(live(), "ci", {"spec": {"timeout": "5s"}}), "edit", python="3.11")
    assert applied(document, "ci", {"spec": {"timeout": "5s"}}, at=later) == document
    assert updated(document, "edit", at=later, python="3.11") == document


def test_labels_finalizers_and_owners_are_owned_one_by_one() -> None:
    def config(number: int) -> Document:
        owner = {"apiVersion": "nodus.dev/v1", "kind": "App", "name": f"a{number}", "uid": f"app_{number}"}
        return {
            "metadata": {
                "name": "f",
                "labels": {f"l{number}": "x"},
                "finalizers": [f"example.com/{number}"],
                "ownerReferences": [owner],
            }
        }

    document = applied(applied(live(), "one", config(1)), "two", config(2))
    assert document["metadata"]["labels"] == {"l1": "x", "l2": "x"}
    assert document["metadata"]["finalizers"] == ["example.com/1", "example.com/2"]
    assert [owner["uid"] for owner in document["metadata"]["ownerReferences"]] == ["app_1", "app_2"]
    left = applied(document, "one", {"metadata": {"name": "f"}})
    assert left["metadata"]["labels"] == {"l2": "x"}
    assert left["metadata"]["finalizers"] == ["example.com/2"]
    assert [owner["uid"] for owner in left["metadata"]["ownerReferences"]] == ["app_2"]


def test_the_servers_labels_and_the_objects_identity_have_no_owner() -> None:
    document = live(labels={"nodus.dev/created-by": "usr_1", "team": "a"})
    kept = applied(document, "ci", {"metadata": {"name": "f", "labels": {"team": "a"}}})
    assert owned(kept)["before-first-apply/Update"] == [".metadata.labels.team"]
    assert owned(kept)["ci/Apply"] == [".metadata.labels.team"]


def test_only_so_many_managers_may_apply() -> None:
    document = live()
    for number in range(APPLIERS_MAX):
        document = applied(document, f"m{number:02}", {"metadata": {"labels": {f"l{number}": "x"}}})
    with pytest.raises(ApiError, match="at most 50 managers"):
        applied(document, "one-more", {"metadata": {"labels": {"more": "x"}}})


def test_what_all_managers_own_together_has_a_limit() -> None:
    annotations = {f"example.com/{number:05}": "" for number in range(1_500)}
    document = live()
    first = applied(document, "m0", {"metadata": {"annotations": annotations}})
    one = len(orjson.dumps(first["metadata"]["managedFields"]))
    for number in range(OWNERS_BYTES_MAX // one):
        document = applied(document, f"m{number}", {"metadata": {"annotations": annotations}})
    with pytest.raises(ApiError) as refused:
        applied(document, "one-more", {"metadata": {"annotations": annotations}})
    assert [cause.field for cause in refused.value.causes] == ["metadata.managedFields"]
    assert len(orjson.dumps(document["metadata"]["managedFields"])) <= OWNERS_BYTES_MAX


def test_hundreds_of_items_go_in_one_walk() -> None:
    many = [{"name": f"V{number}", "value": "x"} for number in range(512)]
    document = applied(live(), "ci", {"spec": {"env": [*many, ENV_A]}})
    assert applied(document, "ci", {"spec": {"env": [ENV_A]}})["spec"] == {"env": [ENV_A]}


def test_the_spelling_of_a_set_is_that_of_kubernetes() -> None:
    document = applied(
        live(),
        "ci",
        {
            "metadata": {"labels": {"a.b/c": "x"}, "finalizers": ["example.com/x"]},
            "spec": {"env": [ENV_A], "args": ["x"], "scaling": {}},
        },
    )
    [entry] = document["metadata"]["managedFields"]
    assert entry["fieldsV1"] == {
        "f:metadata": {"f:finalizers": {'v:"example.com/x"': {}}, "f:labels": {"f:a.b/c": {}}},
        "f:spec": {
            "f:args": {},
            "f:env": {'k:{"name":"A"}': {".": {}, "f:name": {}, "f:value": {}}},
            "f:scaling": {},
        },
    }
    assert decoded(entry["fieldsV1"]) == next(iter(managers_of(document).values())).fields


TIMEOUTS = st.sampled_from(["5s", "6s"])
ITEMS = st.fixed_dictionaries({}, optional={name: st.sampled_from(["1", "2"]) for name in "ABC"}).map(
    lambda values: [{"name": name, "value": value} for name, value in values.items()]
)
SCALINGS = st.fixed_dictionaries({}, optional={"minWorkers": st.just(1), "maxWorkers": st.integers(2, 3)})
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "timeout": TIMEOUTS,
        "args": st.lists(st.sampled_from(["x", "y"]), min_size=1, max_size=2),
        "env": ITEMS.filter(bool),
        "scaling": st.fixed_dictionaries(
            {}, optional={"minWorkers": st.just(1), "maxWorkers": st.integers(2, 3)}
        ).filter(bool),
    },
)


def unordered(document: Document) -> Document:
    """The spec with the items of its list by name: their order is that of the applies."""
    spec = dict(document["spec"])
    if "env" in spec:
        spec["env"] = {item["name"]: item["value"] for item in spec["env"]}
    return spec


@given(CONFIGS, CONFIGS)
def test_only_the_last_apply_of_a_manager_counts(first: Document, second: Document) -> None:
    document = applied(applied(live(), "ci", {"spec": first}), "ci", {"spec": second})
    assert unordered(document) == unordered(live(second))
    assert applied(document, "ci", {"spec": second}) == document


@given(CONFIGS, CONFIGS)
def test_a_forced_apply_gets_what_it_asks_for_and_keeps_what_only_others_want(mine: Document, theirs: Document) -> None:
    before = applied(live(), "they", {"spec": theirs})
    document = applied(before, "me", {"spec": mine}, force=True)
    values, wanted = unordered(document), unordered(live(mine))
    assert all(
        values[name] == value if not isinstance(value, dict) else values[name].items() >= value.items()
        for name, value in wanted.items()
    )
    # Taking mine away leaves theirs, but for what I took over.
    left = applied(document, "me", {"spec": {}})
    taken = set(owned(before).get("they/Apply", ())) - set(owned(document).get("they/Apply", ()))
    kept = set(owned(left).get("they/Apply", ()))
    assert kept | taken == set(owned(before).get("they/Apply", ()))
    assert "me/Apply" not in owned(left)
