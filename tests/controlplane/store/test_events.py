"""Events for people: one for each object and reason, with a count, in the transaction of what they tell."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.machinery.kind import Document
from controlplane.store.contract import Key, Reads, Tx
from controlplane.store.events import NORMAL, WARNING, Happening, RecordEvent, event_key, tell
from tests.fixtures.plane import Plane

HAPPENING = Happening(
    key=Key("Function", "default", "p", "f"), uid="fn_1", type=WARNING, reason="OutOfMemory", message="first"
)


class Tell:
    """Tells these in one batch, and is then refused if it should be."""

    def __init__(self, *happenings: Happening, refused: bool = False) -> None:
        self._happenings = happenings
        self._refused = refused

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> None:
        if self._refused:
            raise ApiError(Reason.CONFLICT, "no")
        for happening in self._happenings:
            tell(tx, happening)


async def stored(plane: Plane, happening: Happening = HAPPENING) -> Document | None:
    return await plane.core.objects.get_document(event_key(happening))


async def test_what_happens_again_is_one_event_with_a_count_and_the_last_word(plane: Plane) -> None:
    await plane.writer.write(Tell(HAPPENING, replace(HAPPENING, message="second")))
    await plane.writer.write(RecordEvent(replace(HAPPENING, message="third")))
    event = await stored(plane)
    assert event is not None
    assert (event["count"], event["message"]) == (3, "third")
    assert event["firstTime"] <= event["lastTime"]
    with pytest.raises(ApiError):
        await plane.writer.write(Tell(HAPPENING, refused=True))
    assert await stored(plane) == event


async def test_another_reason_or_another_object_of_the_name_is_another_event(plane: Plane) -> None:
    others = (HAPPENING, replace(HAPPENING, reason="CustomerExit"), replace(HAPPENING, uid="fn_2", type=NORMAL))
    await plane.writer.write(Tell(*others))
    found = [await stored(plane, each) for each in others]
    assert [event["count"] for event in found if event is not None] == [1, 1, 1]
    assert len({event_key(each).name for each in others}) == 3
