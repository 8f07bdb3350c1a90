"""Who owns a field after creates and updates, and what clients may say about it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from controlplane.errors import ApiError
from controlplane.machinery.managed_fields import UPDATERS_MAX, Manager, after_update, first_owner, managers_of
from tests.fixtures.applying import FUNCTION, NOW, Document, applied, created, live, owned, updated

ENV_A = {"name": "A", "value": "1"}
ENV_B = {"name": "B", "value": "2"}


def test_an_update_owns_what_it_changes_and_nobody_else_does_then() -> None:
    document = created("make", {"timeout": "5s", "python": "3.11", "env": [ENV_A, ENV_B]})
    changed = updated(document, "edit", timeout="6s", env=[ENV_A, {"name": "B", "value": "3"}])
    assert owned(changed) == {
        "make/Update": [
            '.spec.env[name="A"]',
            '.spec.env[name="A"].name',
            '.spec.env[name="A"].value',
            '.spec.env[name="B"]',
            '.spec.env[name="B"].name',
            ".spec.python",
        ],
        "edit/Update": ['.spec.env[name="B"].value', ".spec.timeout"],
    }
    # What is gone has no owner.
    assert '.spec.env[name="A"]' not in owned(updated(changed, "edit", env=[]))["make/Update"]


def test_a_creator_owns_what_it_sent_and_no_defaults() -> None:
    document = live({"timeout": "300s", "python": "3.11"})
    sent = {"spec": {"python": "3.11", "unknown": 1}, "metadata": {"labels": {"nodus.dev/app": "x"}}}
    [entry] = first_owner(FUNCTION, sent, document, Manager("make"), NOW)
    assert entry["fieldsV1"] == {"f:spec": {"f:python": {}}}
    assert (entry["manager"], entry["operation"], entry["time"]) == ("make", "Update", "2026-11-29T12:00:00Z")


def test_only_so_many_updaters_are_told_apart() -> None:
    document = live()
    for number in range(UPDATERS_MAX + 3):
        document = updated(document, f"w{number:02}", at=NOW + timedelta(minutes=number), **{f"field{number}": 1})
    managers = [manager.name for manager in managers_of(document)]
    assert len(managers) == UPDATERS_MAX
    assert "ancient-changes" in managers
    everything = {path for fields in managers_of(document).values() for path in fields.fields}
    assert len(everything) == UPDATERS_MAX + 3


@pytest.mark.parametrize(
    ("given", "managers"),
    [
        pytest.param(None, ["ci"], id="absent keeps them"),
        pytest.param([], ["ci"], id="empty keeps them"),
        pytest.param([{}], [], id="one empty entry clears them"),
        pytest.param(
            [
                {
                    "manager": "other",
                    "operation": "Apply",
                    "apiVersion": "nodus.dev/v1",
                    "time": "2026-01-01T00:00:00Z",
                    "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:spec": {"f:timeout": {}}},
                }
            ],
            ["other"],
            id="entries replace them",
        ),
    ],
)
def test_clients_may_edit_the_managers(given: Any, managers: list[str]) -> None:
    document = applied(live(), "ci", {"spec": {"timeout": "5s"}})
    wanted = {**document, "metadata": {**document["metadata"], "managedFields": given}}
    entries = after_update(FUNCTION, document, wanted, document, Manager("kubectl"), NOW)
    assert [entry["manager"] for entry in entries] == managers


ENTRY: Document = {
    "manager": "x",
    "operation": "Update",
    "apiVersion": "nodus.dev/v1",
    "time": "2026-01-01T00:00:00Z",
    "fieldsType": "FieldsV1",
    "fieldsV1": {"f:spec": {}},
}


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("x", "metadata.managedFields"),
        ([1], "metadata.managedFields[0]"),
        ([ENTRY, {**ENTRY, "operation": "Merge"}], "metadata.managedFields[1]"),
        ([{**ENTRY, "apiVersion": "v1"}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsType": "FieldsV2"}], "metadata.managedFields[0]"),
        ([{**ENTRY, "time": "yesterday"}], "metadata.managedFields[0]"),
        ([{**ENTRY, "manager": "x" * 129}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsV1": []}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsV1": {"spec": {}}}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsV1": {"k:{": {}}}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsV1": {"f:spec": {"k:5": 1}}}], "metadata.managedFields[0]"),
        ([{**ENTRY, "fieldsV1": {'k:{"name":"A"}': 1}}], "metadata.managedFields[0]"),
        ([ENTRY, ENTRY], "metadata.managedFields[1]"),
        ([{**ENTRY, "manager": f"m{number}"} for number in range(61)], "metadata.managedFields"),
    ],
)
def test_malformed_managers_are_invalid(given: Any, field: str) -> None:
    document = live()
    wanted = {**document, "metadata": {**document["metadata"], "managedFields": given}}
    with pytest.raises(ApiError) as refused:
        after_update(FUNCTION, document, wanted, document, Manager("kubectl"), NOW)
    assert [cause.field for cause in refused.value.causes] == [field]
