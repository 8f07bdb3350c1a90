"""The tables of the public SDK and ours say the same where both speak."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any, get_args

import pytest
from nodus import errors
from nodus.api import models as sdk
from nodus.api._kinds import KINDS as SDK_KINDS
from pydantic import BaseModel

from controlplane.errors import Reason
from controlplane.kinds.registry import KINDS
from controlplane.machinery.conditions import ObjectCondition
from controlplane.machinery.kind import API_VERSION, Kind, Scope
from controlplane.machinery.meta import OwnerReference

# Kubernetes has these and the SDK does not: they answer what only Kubernetes clients can ask.
ONLY_KUBERNETES = {"NotAcceptable", "Timeout"}

# What people and `kubectl wait` read; the SDK passes over fields of a status that it does not know.
ONLY_OURS = {"Secret": {"conditions"}, "Attempt": {"guarantees", "message"}, "ServiceAccount": {"conditions"}}

ROWS = pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.kind)
COMPLETE = ("Function", "FunctionCall")
"""Kinds of which every field of the SDK must be known here."""
PARTIAL = ("App", "Attempt", "Image", "Offering", "Secret", "ServiceAccount")
"""Kinds that may know fewer fields than the SDK, but none under another name."""


@pytest.mark.parametrize("reason", [reason for reason in Reason if reason.row.wire not in ONLY_KUBERNETES])
def test_an_error_code_has_the_status_and_retryability_that_the_sdk_expects(reason: Reason) -> None:
    known = errors.REGISTRY[reason.row.wire]
    assert reason.row.http_status == known.http_status
    assert reason.row.retryable == known.retryable


def test_only_codes_for_kubernetes_clients_are_unknown_to_the_sdk() -> None:
    assert {reason.row.wire for reason in Reason} - errors.REGISTRY.keys() == ONLY_KUBERNETES


@ROWS
def test_a_kind_is_served_where_the_sdk_looks_for_it(kind: Kind) -> None:
    known = SDK_KINDS[kind.kind]
    assert known.plural == kind.plural
    assert known.api_version == API_VERSION
    assert known.namespaced is (kind.scope is Scope.PROJECT)


def fields(model: type[BaseModel]) -> dict[str, Any]:
    """The fields of a model by their names on the wire, with their type expressions."""
    return {field.alias or name: field.annotation for name, field in model.model_fields.items()}


def models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from models_in(part)


def compare(
    ours: type[BaseModel], theirs: type[BaseModel], path: str, *, complete: bool, extra: Collection[str] = ()
) -> None:
    """The field names of two models are equal, or ours are some of theirs, at every depth."""
    mine, known = fields(ours), fields(theirs)
    assert mine.keys() - known.keys() == set(extra), f"{path}: the SDK does not know these"
    if complete:
        assert known.keys() - mine.keys() == set(), f"{path}: the SDK has these too"
    for name in mine.keys() & known.keys():
        for inner, outer in zip(models_in(mine[name]), models_in(known[name]), strict=True):
            compare(inner, outer, f"{path}.{name}", complete=complete)


def parts(kind: str) -> list[tuple[str, type[BaseModel], type[BaseModel]]]:
    """Our and the SDK's models of spec and status of a kind."""
    row, known = KINDS[kind], fields(getattr(sdk, kind))
    assert row.spec is not None
    assert row.status is not None
    return [
        ("spec", row.spec, next(models_in(known["spec"]))),
        ("status", row.status, next(models_in(known["status"]))),
    ]


@pytest.mark.parametrize("kind", COMPLETE)
def test_every_field_of_the_sdk_is_known_under_its_name(kind: str) -> None:
    for path, ours, theirs in parts(kind):
        compare(ours, theirs, path, complete=True)


@pytest.mark.parametrize("kind", PARTIAL)
def test_no_field_has_another_name_than_in_the_sdk(kind: str) -> None:
    for path, ours, theirs in parts(kind):
        extra = ONLY_OURS.get(kind, set()) if path == "status" else set()
        compare(ours, theirs, path, complete=False, extra=extra)


@pytest.mark.parametrize("kind", COMPLETE)
def test_what_the_sdk_requires_is_required_and_nothing_else(kind: str) -> None:
    def required(model: type[BaseModel], path: str) -> set[str]:
        found = {f"{path}.{field.alias or name}" for name, field in model.model_fields.items() if field.is_required()}
        for name, annotation in fields(model).items():
            for inner in models_in(annotation):
                found |= required(inner, f"{path}.{name}")
        return found

    for path, ours, theirs in parts(kind):
        differing = required(ours, path) ^ required(theirs, path)
        # Without a type there is nothing to place; the SDK's own constructor always sends one.
        assert differing <= {"spec.resources.gpu.type"}, differing


def test_metadata_and_conditions_have_the_names_of_the_sdk() -> None:
    known = next(models_in(fields(sdk.Function)["metadata"]))
    owner = next(models_in(fields(known)["ownerReferences"]))
    compare(OwnerReference, owner, "metadata.ownerReferences", complete=True)
    condition = next(models_in(fields(next(models_in(fields(sdk.Function)["status"])))["conditions"]))
    compare(ObjectCondition, condition, "status.conditions", complete=True)
