"""Idempotency keys: one answer for one key, stored with the change or not at all."""

from __future__ import annotations

import asyncio

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.store.contract import Reads, Tx
from controlplane.store.idempotency import LOOKUP, KeyedRequest, StoredAnswer, store_answer, stored_answer
from tests.controlplane.store.things import Do, Store, key, thing


def create(name: str, request: KeyedRequest) -> Do:
    """Creates the object and answers 201, once for each key."""

    def apply(tx: Tx) -> StoredAnswer:
        answer = stored_answer(tx, request)
        if answer is None:
            if tx.get(key(name)) is not None:
                raise ApiError(Reason.ALREADY_EXISTS, "there is one")
            document = tx.put(key(name), thing(name))
            answer = StoredAnswer(201, document["metadata"]["resourceVersion"].encode())
            store_answer(tx, request, answer)
        return answer

    return Do(apply, reading=Reads(keys=[key(name)], loads=[(LOOKUP, request.argument)]))


REQUEST = KeyedRequest(scope="acme/me/POST/things", key="k-1", digest="d1")


async def test_a_repeated_request_gets_the_first_answer_and_changes_nothing(store: Store) -> None:
    first = await store.write(create("a", REQUEST))
    again = await store.write(create("a", REQUEST))
    assert (first, again) == (StoredAnswer(201, b"1"), StoredAnswer(201, b"1"))
    assert len(store.seen) == 1


async def test_requests_that_arrive_together_under_one_key_have_one_effect(store: Store, replica: Store) -> None:
    answers = await asyncio.gather(
        *(target.write(create("a", REQUEST)) for _ in range(10) for target in (store, replica))
    )
    assert set(answers) == {StoredAnswer(201, b"1")}
    assert await store.database.fetchval("SELECT rv FROM meta") == 1


async def test_a_key_used_for_another_request_is_refused(store: Store) -> None:
    await store.write(create("a", REQUEST))
    with pytest.raises(ApiError) as reused:
        await store.write(create("b", KeyedRequest(REQUEST.scope, REQUEST.key, "d2")))
    assert reused.value.reason is Reason.IDEMPOTENCY_KEY_REUSED


@pytest.mark.parametrize(
    "other", [KeyedRequest("acme/you/POST/things", "k-1", "d1"), KeyedRequest("acme/me/POST/things", "k-2", "d1")]
)
async def test_another_caller_or_another_key_is_another_request(store: Store, other: KeyedRequest) -> None:
    await store.write(create("a", REQUEST))
    assert await store.write(create("b", other)) == StoredAnswer(201, b"2")


async def test_a_refused_request_keeps_no_key(store: Store) -> None:
    await store.put("a")
    with pytest.raises(ApiError):
        await store.write(create("a", REQUEST))
    assert await store.database.fetchval("SELECT count(*) FROM idempotency") == 0
