"""What a process keeps for good is not looked at again, and a page of a list causes no look at the young."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from workers.heap import YOUNG_OBJECTS, loading

PAGE_OBJECTS = 500 * 4


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    threshold = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def test_what_is_loaded_is_permanent() -> None:
    permanent = gc.get_freeze_count()
    with loading():
        assert not gc.isenabled()
        made = [[number] for number in range(1_000)]
    assert gc.isenabled()
    assert gc.get_freeze_count() >= permanent + len(made)


def test_a_page_causes_no_collection_and_much_garbage_does() -> None:
    looks: list[int] = []

    def look(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            looks.append(info["generation"])

    with loading():
        pass
    gc.collect(0)
    gc.callbacks.append(look)
    try:
        page = [[number] for number in range(PAGE_OBJECTS)]
        assert looks == []
        page += [[number] for number in range(2 * YOUNG_OBJECTS)]
        assert looks
    finally:
        gc.callbacks.remove(look)
