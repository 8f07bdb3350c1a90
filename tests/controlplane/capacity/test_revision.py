"""Which changes of a Function replace its workers."""

from __future__ import annotations

from typing import Any

import pytest

from controlplane.capacity.revision import pool_revision
from controlplane.images.use import CATALOG, ImageState, ImageUse


def revision(**spec: Any) -> str:
    return pool_revision({"metadata": {}, "spec": {"python": "3.11", **spec}}, CATALOG)


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


def on_an_image(use: ImageUse, pinned: dict[str, str] | None = None) -> str:
    """The revision of a Function that names an Image, and was last told of `pinned`."""
    function = {"metadata": {}, "spec": {"python": "3.11", "imageRef": "i"}, "status": {"image": pinned or {}}}
    return pool_revision(function, use)


def ready(digest: str | None, reference: str = "i@") -> ImageUse:
    return ImageUse(reference=reference, digest=digest)


def test_another_digest_behind_the_same_name_replaces_workers() -> None:
    first, second = on_an_image(ready("sha256:1")), on_an_image(ready("sha256:2"))
    assert first != second
    # Whether the Function's status tells of it already makes no difference.
    assert on_an_image(ready("sha256:2"), {"reference": "i@sha256:1", "digest": "sha256:1"}) == second
    assert on_an_image(ready(None, "nodus/python:3.11")) not in (first, second)


@pytest.mark.parametrize("state", [ImageState.PENDING, ImageState.FAILED])
def test_workers_stay_while_there_is_nothing_to_replace_them_with(state: ImageState) -> None:
    away = ImageUse(state=state)
    pinned = {"reference": "i@sha256:1", "digest": "sha256:1"}
    assert on_an_image(away, pinned) == on_an_image(ready("sha256:1"), pinned)
    catalog = {"reference": "nodus/python:3.11"}
    assert on_an_image(away, catalog) == on_an_image(ready(None, "nodus/python:3.11"), catalog)


def test_the_image_of_the_catalog_is_only_its_name() -> None:
    assert revision(image="nodus/python:3.11") != revision()
    assert revision(image="nodus/python:3.11") == revision(image="nodus/python:3.11")
