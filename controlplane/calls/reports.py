"""What a worker says in a claim, made safe to act on.

A claim is read in two steps. `parse_claim` turns the body into a `ClaimBody`: an envelope of the wrong shape is
refused, but a bad record inside it never is, because a worker repeats a refused claim for 75 s and then dies; a bad
record fails its own call instead. `prepare_reports` does what needs waiting before the transaction: it looks for
blobs that results name and takes secret values out of exception texts. `calls/claims.py` applies the result.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import orjson

from controlplane.calls.decide import Cause
from controlplane.errors import ApiError, Reason
from controlplane.errors import Cause as FieldCause
from controlplane.ids import sha256_hex
from controlplane.machinery.quantities import parse_duration
from controlplane.settings import Settings

Redact = Callable[[str], str]
Json = TypeVar("Json", list[Any], int, bool)

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_BLOB = re.compile(r"sha256:[0-9a-f]{64}")
_ENCODINGS = ("Pickle", "JSON")
# The SDK's worker reports what its own (de)serialisation raises as if the function had; only these frames tell.
_SERIALIZING = re.compile(r'File "[^"\n]*/nodus/_serialize\.py", line \d+, in (?:encode_result|decode_call)\n')
_RECORD_BYTES_MAX = 1_024
"""A completion record without its payload, and its call's place in `running`."""
_RECORD_VALUES_MAX = 16
_ENVELOPE_VALUES_MAX = 64
# Always matches where a quote stands, and never gives back what it took, so its time is linear in any text.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)


@dataclass(frozen=True, kw_only=True)
class ReportLimits:
    """Bounds on what one claim may carry; all come from the settings."""

    inline_bytes_max: int
    error_message_bytes_max: int
    error_traceback_bytes_max: int
    calls_max: int
    wait_seconds_max: int
    claim_bytes_max: int
    claim_text_bytes_max: int

    @classmethod
    def from_settings(cls, settings: Settings) -> ReportLimits:
        """The limits of this server."""
        return cls(
            inline_bytes_max=settings.inline_bytes_max,
            error_message_bytes_max=settings.error_message_bytes_max,
            error_traceback_bytes_max=settings.error_traceback_bytes_max,
            calls_max=settings.dispatch_calls_max,
            wait_seconds_max=settings.claim_wait_seconds_max,
            claim_bytes_max=settings.claim_body_bytes_max,
            claim_text_bytes_max=settings.claim_text_bytes_max,
        )

    def body_bytes_max(self, concurrency: int) -> int:
        """The largest claim of a worker that runs so many calls at once: an inline result of each, and some text."""
        results = concurrency * (base64_length(self.inline_bytes_max) + _RECORD_BYTES_MAX)
        return min(self.claim_bytes_max, self.claim_text_bytes_max + results)


@dataclass(frozen=True, kw_only=True)
class Report:
    """One finished dispatch as its worker tells it. `reason` and `detail` go with `Cause.BAD_RESULT`."""

    call: str
    cause: Cause
    result: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None
    reason: str = ""
    detail: str = ""


@dataclass(frozen=True, kw_only=True)
class ClaimBody:
    """A claim: what finished, what runs, and how much more is wanted for how long."""

    completed: tuple[Report, ...] = ()
    running: frozenset[str] = frozenset()
    calls_max: int = 0
    wait_seconds: float = 0.0
    draining: bool = False


class BlobPresence(Protocol):
    """Whether a project holds a blob, verified; the digest is 64 hex digits."""

    async def __call__(self, org: str, project: str, digest: str) -> bool: ...


class Redactor(Protocol):
    """Gives the function that takes a Function's secret values out of a text."""

    async def __call__(self, function_uid: str) -> Redact: ...


def parse_claim(body: bytes, limits: ReportLimits, concurrency: int) -> ClaimBody:
    """A claim from its JSON body; an empty body is an empty claim. The worker runs `concurrency` calls at once.

    Raises ApiError BAD_REQUEST when the body is not a JSON object and INVALID when a member of the envelope has the
    wrong type or more entries than the worker has calls. Completion records that cannot be read become reports that
    fail their call, or are dropped when they name none.
    """
    if not body.strip():
        return ClaimBody()
    _check_values(body, concurrency)
    claim = _decode(body)
    completed = _entries(claim, "completed", concurrency)
    reports = [_report(record, limits) for record in completed if isinstance(record, dict)]
    return ClaimBody(
        # A worker that repeats a call in one claim contradicts itself; its first word counts.
        completed=tuple({report.call: report for report in reversed(reports) if report is not None}.values()),
        running=frozenset(call_names(claim, "running", concurrency)),
        calls_max=max(0, min(_member(claim, "max", int, 0), limits.calls_max)),
        wait_seconds=wait_seconds(claim.get("wait"), limits),
        draining=_member(claim, "draining", bool, False),
    )


async def prepare_reports(
    body: ClaimBody,
    *,
    org: str,
    project: str,
    function_uid: str,
    limits: ReportLimits,
    blob_present: BlobPresence,
    redactor: Redactor,
) -> ClaimBody:
    """The claim with every named blob looked up and every exception scrubbed and cut; the same claim if there are
    none."""
    prepared: list[Report] = []
    redact: Redact | None = None
    for report in body.completed:
        if report.result is not None and "blob" in report.result:
            digest = report.result["blob"].removeprefix("sha256:")
            present = await blob_present(org, project, digest)
            prepared.append(report if present else _missing(report.call, f"the result blob {digest} was not uploaded"))
        elif report.error is not None:
            redact = redact or await redactor(function_uid)
            prepared.append(replace(report, error=_scrubbed(report.error, redact, limits)))
        else:
            prepared.append(report)
    return replace(body, completed=tuple(prepared))


def _check_values(body: bytes, concurrency: int) -> None:
    """Refuse a body with many more values than a claim of this worker can have, before each becomes an object.

    An empty array takes three bytes of a body and fifty of memory. Commas and brackets inside strings, where tracebacks
    have many, do not count; they are only told apart when there are too many of both.
    """
    values_max = _ENVELOPE_VALUES_MAX + concurrency * _RECORD_VALUES_MAX
    if _values(body) > values_max and _values(_STRING.sub(b"", body)) > values_max:
        raise ApiError(
            Reason.BAD_REQUEST,
            f"the claim must have at most {values_max} values, which is plenty for a worker of {concurrency} calls",
        )


def _values(text: bytes) -> int:
    return text.count(b",") + text.count(b"[") + text.count(b"{")


def _decode(body: bytes) -> dict[str, Any]:
    try:
        claim = orjson.loads(body)
    except orjson.JSONDecodeError:
        # Exception texts may hold lone surrogates, which orjson refuses. Losing the claim for one would kill the
        # worker.
        try:
            claim = json.loads(body.decode("utf-8", "replace"))
        except (ValueError, RecursionError):
            raise ApiError(Reason.BAD_REQUEST, "the claim must be a JSON object") from None
    if not isinstance(claim, dict):
        raise ApiError(Reason.BAD_REQUEST, "the claim must be a JSON object")
    return claim


def _member(claim: dict[str, Any], name: str, kind: type[Json], default: Json) -> Json:
    value = claim.get(name)
    if value is None:
        return default
    if type(value) is not kind:
        raise _envelope_error(name, f"must be of JSON type {_JSON_TYPES[kind]}")
    return value


def _entries(claim: dict[str, Any], name: str, entries_max: int) -> list[Any]:
    entries = _member(claim, name, list, [])
    if len(entries) > entries_max:
        raise _envelope_error(
            name, f"must have at most {entries_max} entries, the calls this worker runs at once, not {len(entries)}"
        )
    return entries


def call_names(claim: dict[str, Any], name: str, entries_max: int) -> list[str]:
    """The names of calls in a list of what a worker says; raises INVALID for what is no list or too long."""
    entries = _entries(claim, name, entries_max)
    return [entry for entry in entries if isinstance(entry, str) and _NAME.fullmatch(entry)]


_JSON_TYPES: Mapping[type, str] = {list: "array", int: "integer", bool: "boolean"}


def wait_seconds(value: object, limits: ReportLimits) -> float:
    """How long a request may be held, from a duration such as "30s"; raises INVALID for anything else."""
    if value is None:
        return 0.0
    if not isinstance(value, str):
        raise _envelope_error("wait", 'must be a duration such as "30s"')
    try:
        seconds = parse_duration(value)
    except ValueError:
        raise _envelope_error("wait", 'must be a duration such as "30s"') from None
    return max(0.0, min(float(seconds), float(limits.wait_seconds_max)))


def _envelope_error(field: str, message: str) -> ApiError:
    return ApiError(
        Reason.INVALID, f"the claim is invalid: {field}: {message}", causes=(FieldCause(field=field, message=message),)
    )


def base64_length(size: int) -> int:
    """The characters of so many bytes in base64."""
    return 4 * -(-size // 3)


def _report(record: dict[str, Any], limits: ReportLimits) -> Report | None:
    call = record.get("call")
    if not isinstance(call, str) or not _NAME.fullmatch(call):
        return None
    match record.get("outcome"):
        case "Succeeded":
            return _success(call, record.get("result"), limits)
        case "RemoteError":
            error = _error(record.get("error"))
            unserializable = _SERIALIZING.search(error.get("traceback", ""))
            return Report(call=call, cause=Cause.UNSERIALIZABLE if unserializable else Cause.RAISED, error=error)
        case "DeadlineExceeded":
            return Report(call=call, cause=Cause.DEADLINE)
        case "Cancelled":
            return Report(call=call, cause=Cause.CANCELLED)
        case _:
            return _missing(call, "the worker reported an outcome that is not known")


def _success(call: str, result: object, limits: ReportLimits) -> Report:
    if not isinstance(result, dict):
        return _missing(call, "the worker reported success without a result")
    encoding = result.get("encoding") or "Pickle"
    inline, blob = result.get("inline"), result.get("blob")
    if encoding not in _ENCODINGS:
        return _missing(call, "the result's encoding is neither Pickle nor JSON")
    if isinstance(inline, str) and blob is not None:
        return _missing(call, "the result names inline bytes and a blob as well; it may be only one of them")
    if isinstance(inline, str):
        return _inline(call, encoding, inline, limits)
    if not isinstance(blob, str) or not _BLOB.fullmatch(blob):
        return _missing(call, "the result names neither inline bytes nor a blob")
    # A blob is named by its digest, so what the worker says in `sha256` can only repeat it.
    payload = {"encoding": encoding, "blob": blob, "sha256": blob.removeprefix("sha256:")}
    return Report(call=call, cause=Cause.SUCCEEDED, result=payload)


def _inline(call: str, encoding: str, inline: str, limits: ReportLimits) -> Report:
    if len(inline) > base64_length(limits.inline_bytes_max):
        return _too_large(call, limits)
    try:
        content = base64.b64decode(inline, validate=True)
    except (binascii.Error, ValueError):
        return _missing(call, "the inline result is not base64")
    if len(content) > limits.inline_bytes_max:
        return _too_large(call, limits)
    payload = {"encoding": encoding, "inline": inline, "sha256": sha256_hex(content)}
    return Report(call=call, cause=Cause.SUCCEEDED, result=payload)


def _too_large(call: str, limits: ReportLimits) -> Report:
    detail = f"the inline result is larger than {limits.inline_bytes_max} bytes; larger ones must be uploaded as blobs"
    return Report(call=call, cause=Cause.BAD_RESULT, reason="ResultTooLarge", detail=detail)


def _missing(call: str, detail: str) -> Report:
    return Report(call=call, cause=Cause.BAD_RESULT, reason="PayloadMissing", detail=detail)


def _error(value: object) -> dict[str, str]:
    record = value if isinstance(value, dict) else {}
    error = {"type": _text(record.get("type")) or "Exception", "message": _text(record.get("message"))}
    traceback = _text(record.get("traceback"))
    return {**error, "traceback": traceback} if traceback else error


def _text(value: object) -> str:
    text = value if isinstance(value, str) else "" if value is None else str(value)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _scrubbed(error: Mapping[str, str], redact: Redact, limits: ReportLimits) -> dict[str, str]:
    """Scrubbed first and cut afterwards: a value cut in half would no longer be found."""
    scrubbed = {
        "type": _head(redact(error["type"]), 512),
        "message": _head(redact(error["message"]), limits.error_message_bytes_max),
    }
    if "traceback" in error:
        scrubbed["traceback"] = _tail(redact(error["traceback"]), limits.error_traceback_bytes_max)
    return scrubbed


def _head(text: str, bytes_max: int) -> str:
    """The beginning of a text, with a mark that tells how much was cut."""
    content = text.encode()
    if len(content) <= bytes_max:
        return text
    mark = f" … [{len(content)} bytes, cut]"
    return content[: bytes_max - len(mark.encode())].decode("utf-8", "ignore") + mark


def _tail(text: str, bytes_max: int) -> str:
    """The end of a text, where a traceback tells what was raised, with a mark that tells how much was cut."""
    content = text.encode()
    if len(content) <= bytes_max:
        return text
    mark = f"[{len(content)} bytes, cut] …\n"
    return mark + content[len(content) - bytes_max + len(mark.encode()) :].decode("utf-8", "ignore")
