"""Claims are read whatever a worker puts into them: a bad record fails its own call and nothing else."""

from __future__ import annotations

import base64
import hashlib
import pickle
import threading
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nodus import _serialize

from controlplane.calls.decide import Cause
from controlplane.calls.reports import ClaimBody, Redact, ReportLimits, parse_claim, prepare_reports
from controlplane.errors import ApiError, Reason

LIMITS = ReportLimits(
    inline_bytes_max=65_536,
    error_message_bytes_max=4_096,
    error_traceback_bytes_max=65_536,
    calls_max=1_000,
    wait_seconds_max=30,
    claim_bytes_max=96 << 20,
    claim_text_bytes_max=8 << 20,
)
CONCURRENCY = 1_000
DIGEST = "ab" * 32


def parsed(**claim: Any) -> ClaimBody:
    return parse_claim(orjson.dumps(claim), LIMITS, CONCURRENCY)


def inline(content: bytes) -> dict[str, str]:
    return {"encoding": "Pickle", "inline": base64.b64encode(content).decode()}


def succeeded(**result: Any) -> dict[str, Any]:
    return {"call": "c-1", "outcome": "Succeeded", "result": result}


async def absent(org: str, project: str, digest: str) -> bool:
    return False


async def present(org: str, project: str, digest: str) -> bool:
    return True


async def no_secrets(function_uid: str) -> Redact:
    return lambda text: text


async def prepared(body: ClaimBody, **parts: Any) -> ClaimBody:
    arguments: dict[str, Any] = {"blob_present": present, "redactor": no_secrets} | parts
    return await prepare_reports(body, org="acme", project="default", function_uid="fn_1", limits=LIMITS, **arguments)


@pytest.mark.parametrize("body", [b"", b"  ", b"{}"])
def test_an_empty_claim_wants_nothing(body: bytes) -> None:
    assert parse_claim(body, LIMITS, CONCURRENCY) == ClaimBody()


def test_the_envelope_is_read() -> None:
    claim = parsed(completed=[], running=["a", "b"], max=2, wait="30s", draining=True)
    assert claim == ClaimBody(running=frozenset({"a", "b"}), calls_max=2, wait_seconds=30.0, draining=True)


@pytest.mark.parametrize("body", [b"[]", b"nonsense", b'"text"', b"[" * 100_000])
def test_what_is_no_json_object_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_claim(body, LIMITS, CONCURRENCY)
    assert refusal.value.reason is Reason.BAD_REQUEST


@pytest.mark.parametrize(
    ("field", "value"),
    [("completed", {}), ("running", "a"), ("max", "1"), ("max", True), ("max", 1.5), ("wait", 30), ("wait", "soon"),
     ("draining", "yes")],
)  # fmt: skip
def test_an_envelope_of_the_wrong_shape_is_invalid_and_names_the_field(field: str, value: object) -> None:
    with pytest.raises(ApiError) as refusal:
        parsed(**{field: value})
    assert refusal.value.reason is Reason.INVALID
    assert [cause.field for cause in refusal.value.causes] == [field]


def test_wishes_and_waits_are_bounded() -> None:
    claim = parsed(max=10**9, wait="24h")
    assert (claim.calls_max, claim.wait_seconds) == (1_000, 30.0)
    assert parsed(max=-1).calls_max == 0


def test_a_result_is_kept_with_the_digest_of_its_bytes() -> None:
    [report] = parsed(completed=[succeeded(**inline(b"value"), sha256="of something else")]).completed
    assert report.cause is Cause.SUCCEEDED
    assert report.result == {**inline(b"value"), "sha256": hashlib.sha256(b"value").hexdigest()}


@pytest.mark.parametrize("size", [0, 65_535, 65_536])
def test_results_up_to_the_limit_are_kept(size: int) -> None:
    [report] = parsed(completed=[succeeded(**inline(bytes(size)))]).completed
    assert report.cause is Cause.SUCCEEDED


@pytest.mark.parametrize("size", [65_537, 65_540, 1_000_000])
def test_a_larger_inline_result_fails_its_call(size: int) -> None:
    [report] = parsed(completed=[succeeded(**inline(bytes(size)))]).completed
    assert (report.cause, report.reason) == (Cause.BAD_RESULT, "ResultTooLarge")


@pytest.mark.parametrize(
    "record",
    [
        {"call": "c-1", "outcome": "Succeeded"},
        {"call": "c-1", "outcome": "Succeeded", "result": "text"},
        {"call": "c-1", "outcome": "Flourished"},
        {"call": "c-1"},
        succeeded(),
        succeeded(encoding="Pickle", inline="not base64!"),
        succeeded(encoding="Pickle", inline=7),
        succeeded(encoding="Marshal", inline=""),
        succeeded(encoding="Pickle", blob="sha256:short"),
        succeeded(encoding="Pickle", blob=["x"]),
        succeeded(**inline(b"value"), blob=f"sha256:{DIGEST}"),
    ],
)
def test_a_record_that_cannot_be_understood_fails_its_own_call(record: dict[str, Any]) -> None:
    claim = parsed(completed=[record, {"call": "c-2", "outcome": "DeadlineExceeded"}])
    causes = {report.call: (report.cause, report.reason) for report in claim.completed}
    assert causes == {"c-1": (Cause.BAD_RESULT, "PayloadMissing"), "c-2": (Cause.DEADLINE, "")}


@pytest.mark.parametrize("call", [None, 7, "", "Upper", "a" * 64, "nul\0", "a/b"])
def test_a_record_that_names_no_call_is_dropped(call: object) -> None:
    assert parsed(completed=[{"call": call, "outcome": "Succeeded"}, "text", None]).completed == ()


def test_the_first_of_two_words_about_one_call_counts() -> None:
    claim = parsed(completed=[{"call": "c", "outcome": "Cancelled"}, {"call": "c", "outcome": "DeadlineExceeded"}])
    assert [report.cause for report in claim.completed] == [Cause.CANCELLED]


def test_running_names_that_no_call_can_have_are_dropped() -> None:
    assert parsed(running=["ok", "nul\0", 7, None, "A"]).running == frozenset({"ok"})


async def test_a_blob_that_was_not_uploaded_fails_its_call() -> None:
    body = parsed(completed=[succeeded(encoding="Pickle", blob=f"sha256:{DIGEST}")])
    [found] = (await prepared(body)).completed
    assert found.result == {"encoding": "Pickle", "blob": f"sha256:{DIGEST}", "sha256": DIGEST}
    [missing] = (await prepared(body, blob_present=absent)).completed
    assert (missing.cause, missing.reason) == (Cause.BAD_RESULT, "PayloadMissing")


async def test_secret_values_are_taken_out_before_texts_are_cut() -> None:
    async def redactor(function_uid: str) -> Redact:
        return lambda text: text.replace("hunter2", "[redacted]")

    message = "x" * 4_093 + "hunter2"
    error = {"type": "E", "message": message, "traceback": "hunter2 in line 1"}
    body = parsed(completed=[{"call": "c", "outcome": "RemoteError", "error": error}])
    [report] = (await prepared(body, redactor=redactor)).completed
    assert report.error is not None
    assert "hunter" not in report.error["message"]
    assert report.error["traceback"] == "[redacted] in line 1"


async def test_long_texts_are_cut_to_the_limit_with_a_mark() -> None:
    error = {"type": "E", "message": "é" * 5_000, "traceback": "first\n" + "é" * 50_000 + "\nValueError: last"}
    body = parsed(completed=[{"call": "c", "outcome": "RemoteError", "error": error}])
    [report] = (await prepared(body)).completed
    assert report.error is not None
    assert len(report.error["message"].encode()) <= 4_096
    assert report.error["message"].endswith("… [10000 bytes, cut]")
    assert len(report.error["traceback"].encode()) <= 65_536
    assert report.error["traceback"].endswith("ValueError: last")
    assert report.error["traceback"].startswith("[")


@pytest.mark.parametrize("error", [None, "text", {}, {"type": 7, "message": None}, {"message": ["x"]}])
async def test_any_error_record_becomes_type_and_message(error: object) -> None:
    body = parsed(completed=[{"call": "c", "outcome": "RemoteError", "error": error}])
    [report] = (await prepared(body)).completed
    assert report.error is not None
    assert report.error["type"]
    assert isinstance(report.error["message"], str)


def test_a_lone_surrogate_in_an_exception_does_not_cost_the_worker_its_claim() -> None:
    body = rb'{"completed":[{"call":"c","outcome":"RemoteError","error":{"type":"E","message":"a\ud800b"}}],"max":1}'
    claim = parse_claim(body, LIMITS, CONCURRENCY)
    [report] = claim.completed
    assert report.error == {"type": "E", "message": "a�b"}
    assert orjson.dumps(report.error)
    assert claim.calls_max == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda children: st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=10), children, max_size=4),
    max_leaves=20,
)
records = st.fixed_dictionaries(
    {},
    optional={
        "call": st.just("c-1") | json_values,
        "outcome": st.sampled_from(["Succeeded", "RemoteError", "Cancelled", "DeadlineExceeded"]) | json_values,
        "result": json_values | st.fixed_dictionaries({"encoding": json_values, "inline": json_values}),
        "error": json_values | st.fixed_dictionaries({"type": json_values, "message": json_values}),
    },
)


@given(st.lists(records | json_values, max_size=5), st.lists(json_values, max_size=5))
def test_no_record_ever_makes_a_claim_fail(completed: list[Any], running: list[Any]) -> None:
    try:
        body = orjson.dumps({"completed": completed, "running": running, "max": 1})
    except TypeError:
        return  # text or numbers that JSON cannot carry
    claim = parse_claim(body, LIMITS, CONCURRENCY)
    assert claim.calls_max == 1
    for report in claim.completed:
        assert (report.cause is Cause.BAD_RESULT) == bool(report.reason)


@pytest.mark.parametrize(
    "body",
    [b'{"completed":[' + b"[]," * 200 + b"[]]}", b'{"x":{' + b'"a":{},' * 200 + b'"a":0}}', b'{"x":"' + b"[" * 99],
)
def test_a_claim_of_more_values_than_its_worker_has_to_tell_is_not_decoded(body: bytes) -> None:
    with pytest.raises(ApiError) as refusal:
        parse_claim(body, LIMITS, 1)
    assert refusal.value.reason is Reason.BAD_REQUEST


def test_commas_and_brackets_in_texts_are_no_values() -> None:
    text = r"[{, \" \\" * 10_000
    claim = parse_claim(
        orjson.dumps({"completed": [{"call": "c", "outcome": "RemoteError", "error": {"message": text}}]}), LIMITS, 1
    )
    [report] = claim.completed
    assert report.error is not None
    assert report.error["message"] == text


@pytest.mark.parametrize("body", [b'"' + rb"\"" * 2_000_000, b'"\\' * 2_000_000, b"[" * 4_000_000, b'",' * 2_000_000])
def test_counting_values_takes_no_more_than_linear_time(body: bytes) -> None:
    began = time.process_time()
    with pytest.raises(ApiError):
        parse_claim(body, LIMITS, 1)
    assert time.process_time() - began < 2


def _raised_by(cause: Callable[[], object]) -> dict[str, str]:
    """The record that the SDK's worker makes of what this raises."""
    try:
        cause()
    except Exception as error:
        return _serialize.error_record(error)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("cause", "expected"),
    [
        (lambda: _serialize.encode_result(threading.Lock()), Cause.UNSERIALIZABLE),
        (lambda: _serialize.decode_call(b"no pickle"), Cause.UNSERIALIZABLE),
        (lambda: _serialize.decode_call(pickle.dumps({"v": 99})), Cause.UNSERIALIZABLE),
        (lambda: pickle.dumps(threading.Lock()), Cause.RAISED),
        (lambda: int("x"), Cause.RAISED),
    ],
)
def test_what_the_sdk_cannot_pickle_is_no_exception_of_the_function(
    cause: Callable[[], object], expected: Cause
) -> None:
    record = {"call": "c", "outcome": "RemoteError", "error": _raised_by(cause)}
    [report] = parsed(completed=[record]).completed
    assert report.cause is expected
    assert report.error is not None
    assert report.error["traceback"]
