"""Which changes of a Function replace its workers."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.capacity.revision import pool_revision


def revision(**spec: Any) -> str:
    return pool_revision({"metadata": {}, "spec": {"python": "3.11", **spec}})


@pytest.mark.parametrize(
    "change",
    [
        {"network": {"egress": {"policy": "Deny"}}},
        {"network": {"egress": {"policy": "AllowList", "allow": ["a.example"]}}},
        {"command": ["a"]},
        {"workingDir": "/srv"},
        {"initCommand": {"command": ["a"]}},
    ],
)
def test_what_a_worker_reaches_and_starts_with_replaces_it(change: dict[str, Any]) -> None:
    assert revision(**change) != revision()


def test_a_longer_allow_list_replaces_workers_and_a_longer_timeout_does_not() -> None:
    def listed(*hosts: str, **more: Any) -> str:
        return revision(network={"egress": {"policy": "AllowList", "allow": list(hosts)}}, **more)

    assert listed("a.example") != listed("a.example", "b.example")
    assert listed("a.example") == listed("a.example", timeout="60s")
