from __future__ import annotations

import base64
import copy
import time
import timeit
from datetime import UTC, datetime
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.kinds.payload import INLINE_BYTES_MAX
from controlplane.kinds.registry import KINDS
from controlplane.machinery.documents import document_for_create
from controlplane.machinery.kind import Document
from controlplane.machinery.validation import judged_spec, validated_spec
from tests.fixtures.admission import BLOB, ProjectInMemory, call_body, call_spec, causes, function_body

CALL = KINDS["FunctionCall"]


def inline(size: int) -> str:
    return base64.b64encode(b"x" * size).decode()


def json_inline(text: str) -> Document:
    return {"encoding": "JSON", "inline": base64.b64encode(text.encode()).decode()}


@pytest.fixture
async def served(memory: ProjectInMemory) -> ProjectInMemory:
    """A project with the Function `square`."""
    await memory.create("Function", function_body(timeout="60s"))
    return memory


def test_a_minimal_call_is_stored_with_its_defaults() -> None:
    assert validated_spec(CALL, call_spec()) == {
        "function": "square",
        "input": {"encoding": "Pickle", "inline": "gAVLEC4="},
        "state": "Running",
    }


EDGES: list[tuple[str, list[Any], list[Any]]] = [
    ("function", ["a", "a" * 63], ["", "A", "a" * 64, None, 1]),
    ("session", ["s", "s" * 128], ["", "s" * 129, 5]),
    ("mapId", ["m", "m" * 63, "a.b_c-d"], ["", "m" * 64, "-m", "m m"]),
    ("mapIndex", [0, 2**31 - 1], [-1, 2**31, "0", 1.0, True]),
    ("timeout", ["1s", "24h"], ["0.5s", "25h", 60]),
    ("state", ["Running", "Cancelled"], ["Stopped", "cancelled"]),
    (
        "input",
        [
            {"inline": inline(1)},
            {"inline": inline(INLINE_BYTES_MAX)},
            {"blob": BLOB},
            {"blob": BLOB, "encoding": "JSON", "sha256": "0" * 64},
            json_inline('{"args": [1], "kwargs": {"a": 1}}'),
            json_inline("{}"),
        ],
        [
            {},
            None,
            "x",
            {"inline": ""},
            {"inline": inline(INLINE_BYTES_MAX + 1)},
            {"inline": inline(INLINE_BYTES_MAX + 3)},
            {"inline": "a"},
            {"inline": "gAVLEC4"},
            {"inline": "gAV LEC4="},
            {"inline": "gAVLEC-_"},
            {"inline": "é==="},
            {"inline": inline(1), "blob": BLOB},
            {"blob": "sha256:xyz"},
            {"blob": BLOB, "sha256": "x"},
            {"blob": BLOB, "encoding": "pickle"},
            {"blob": BLOB, "size": 1},
            json_inline("[1]"),
            json_inline("x"),
            json_inline('{"args": {"a": 1}}'),
            json_inline('{"kwargs": [1]}'),
        ],
    ),
]


@pytest.mark.parametrize(("path", "good", "bad"), EDGES, ids=[edge[0] for edge in EDGES])
def test_each_field_takes_exactly_what_is_within_its_bounds(path: str, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        _, found = judged_spec(CALL, call_spec(**{path: value}))
        assert not found, value
    for value in bad:
        _, found = judged_spec(CALL, call_spec(**{path: value}))
        assert found, value
        assert all(cause.field.startswith(f"spec.{path}") for cause in found), found


@pytest.mark.parametrize("beside", [{}, {"blob": BLOB}])
def test_an_empty_payload_is_called_empty_and_not_missing(beside: Document) -> None:
    _, [found] = judged_spec(CALL, call_spec(input={"inline": "", **beside}))
    assert (found.field, found.message) == ("spec.input.inline", "must not be empty")


def test_one_byte_too_many_says_where_it_belongs() -> None:
    _, [cause] = judged_spec(CALL, call_spec(input={"inline": inline(INLINE_BYTES_MAX + 1)}))
    assert cause.field == "spec.input.inline"
    assert cause.message == "must be at most 65536 bytes when decoded; upload larger payloads as a blob"


def test_stopping_a_call_is_told_apart_from_cancelling_it() -> None:
    _, [cause] = judged_spec(CALL, call_spec(state="Stopped"))
    assert cause.reason == "FieldValueNotSupported"
    assert '"Cancelled"' in cause.message


async def test_a_new_call_is_queued_under_the_labels_of_the_server(served: ProjectInMemory) -> None:
    body = call_body(mapId="m1", mapIndex=0)
    body["metadata"]["labels"] = {"nodus.dev/map": "forged", "nodus.dev/app": "forged", "mine": "x"}
    served.objects["Function", "square"]["metadata"]["labels"] = {"nodus.dev/app": "hello"}
    call = await served.create("FunctionCall", body)
    assert call["metadata"]["labels"] == {
        "mine": "x",
        "nodus.dev/function": "square",
        "nodus.dev/app": "hello",
        "nodus.dev/map": "m1",
    }
    assert "ownerReferences" not in call["metadata"]
    status = call["status"]
    assert status["phase"] == "Queued"
    assert (status["retries"], status["recoveries"], status["costUSD"]) == (0, 0, "0.00")
    assert {c["type"]: (c["status"], c["reason"]) for c in status["conditions"]} == {
        "Scheduled": ("False", "Queued"),
        "Funded": ("True", "Funded"),
    }
    assert CALL.status is not None
    CALL.status.model_validate(status)


async def test_a_call_has_the_timeout_of_its_function_unless_it_asks_for_less(served: ProjectInMemory) -> None:
    assert (await served.create("FunctionCall", call_body()))["spec"]["timeout"] == "60s"
    assert (await served.create("FunctionCall", call_body("b", timeout="30s")))["spec"]["timeout"] == "30s"
    assert (await served.create("FunctionCall", call_body("c", timeout="1m")))["spec"]["timeout"] == "60s"
    with pytest.raises(ApiError) as error:
        await served.create("FunctionCall", call_body("d", timeout="61s"))
    assert causes(error)["spec.timeout"].message == "must be at most the timeout of the Function, which is 60s"


@pytest.mark.parametrize("state", ["missing", "deleting"])
async def test_a_call_of_a_function_that_is_not_there_is_told_so(served: ProjectInMemory, state: str) -> None:
    if state == "missing":
        del served.objects["Function", "square"]
    else:
        served.objects["Function", "square"]["metadata"]["deletionTimestamp"] = "2026-11-29T11:00:00Z"
    with pytest.raises(ApiError) as error:
        await served.create("FunctionCall", call_body())
    assert error.value.reason is Reason.FUNCTION_NOT_FOUND
    assert error.value.message == 'functions.nodus.dev "square" not found'
    assert error.value.subject == ("functions", "square")


async def test_a_failed_function_takes_no_calls_and_a_stopped_one_does(served: ProjectInMemory) -> None:
    function = served.objects["Function", "square"]
    function["status"] |= {"phase": "Stopped"}
    assert await served.create("FunctionCall", call_body())
    function["status"] |= {"phase": "Failed", "message": "five starts failed"}
    with pytest.raises(ApiError) as error:
        await served.create("FunctionCall", call_body("b"))
    assert "five starts failed" in causes(error)["spec.function"].message


async def test_a_blob_that_was_never_uploaded_is_no_input(served: ProjectInMemory) -> None:
    body = call_body(input={"blob": BLOB}, timeout="61s")
    with pytest.raises(ApiError) as error:
        await served.create("FunctionCall", body)
    assert set(causes(error)) == {"spec.input.blob", "spec.timeout"}
    served.blobs.add("0" * 64)
    assert await served.create("FunctionCall", call_body(input={"blob": BLOB}))


async def test_a_call_is_not_born_cancelled(served: ProjectInMemory) -> None:
    with pytest.raises(ApiError) as error:
        await served.create("FunctionCall", call_body(state="Cancelled"))
    assert set(causes(error)) == {"spec.state"}


async def test_a_cancelled_call_stays_cancelled(served: ProjectInMemory) -> None:
    await served.create("FunctionCall", call_body())
    cancelled = await served.patch("FunctionCall", "square-abcde", state="Cancelled")
    assert cancelled["metadata"]["generation"] == 2
    assert await served.patch("FunctionCall", "square-abcde", state="Cancelled") == cancelled
    with pytest.raises(ApiError) as error:
        await served.patch("FunctionCall", "square-abcde", state="Running")
    assert set(causes(error, Reason.FIELD_IMMUTABLE)) == {"spec.state"}


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
async def test_cancelling_a_call_that_has_ended_changes_nothing(served: ProjectInMemory, phase: str) -> None:
    call = await served.create("FunctionCall", call_body())
    call["status"]["phase"] = phase
    before = copy.deepcopy(call)
    assert await served.patch("FunctionCall", "square-abcde", state="Cancelled") == before


@pytest.mark.parametrize(
    ("phase", "begun", "settling"),
    [
        ("Running", "2026-01-01T00:00:10Z", True),
        ("Running", "2026-01-01T00:00:09Z", True),
        ("Running", "2026-01-01T00:00:08Z", False),
        # The clock of this server may be behind the one that wrote it.
        ("Running", "2026-01-01T00:00:11Z", True),
        ("Cancelling", "2026-01-01T00:00:10Z", False),
        ("Succeeded", "2026-01-01T00:00:10Z", False),
        ("Queued", None, False),
    ],
)
def test_only_a_call_that_has_just_begun_is_settling(phase: str, begun: str | None, settling: bool) -> None:
    status = {"phase": phase, **({"startTime": begun} if begun else {})}
    assert CALL.is_settling is not None
    assert CALL.is_settling({"status": status}, datetime(2026, 1, 1, 0, 0, 10, 500_000, UTC)) is settling


async def test_admission_of_a_call_is_cheap(served: ProjectInMemory) -> None:
    """A batch brings 1,000 of them. The aim is 60 µs of CPU; the bound leaves room for a busy machine."""
    body = {
        "apiVersion": "nodus.dev/v1",
        "kind": "FunctionCall",
        "metadata": {"generateName": "square-", "namespace": "default"},
        "spec": call_spec(session="a" * 32, mapId="b" * 20, mapIndex=1, input={"inline": inline(300)}),
    }
    context = served.context()

    def admit() -> None:
        document = document_for_create(CALL, body, project="default")
        with pytest.raises(StopIteration):
            CALL.strategy.prepare_create(document, context).send(None)

    assert min(timeit.repeat(admit, timer=time.process_time, number=200, repeat=5)) / 200 < 300e-6
