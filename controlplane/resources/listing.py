"""Which snapshot a list reads and where its next page begins.

`store/objects.py` reads pages; here are the rules around them (R-LIST-1 to R-LIST-4): what `resourceVersion`,
`resourceVersionMatch`, `limit` and `continue` mean together. The tokens of `continue` are made in `continuation.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from controlplane.errors import ApiError, Cause, Reason
from controlplane.resources.continuation import ContinueTokens
from controlplane.store.contract import Key, Selection

_RV_DIGITS_MAX = 18
"""What fits into the 64 bits of a revision."""


class Match(Enum):
    """How a list's `resourceVersion` is meant; the words of `resourceVersionMatch`."""

    EXACT = "Exact"
    NOT_OLDER_THAN = "NotOlderThan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """How a list is asked, as text from the query: empty strings mean that the client said nothing."""

    limit: str = ""
    continue_token: str = ""
    resource_version: str = ""
    resource_version_match: str = ""


@dataclass(frozen=True, slots=True)
class Start:
    """Where to read: up to `limit` objects after `after`, exact at `at_rv` or, without it, at a snapshot that holds
    every change up to `not_before_rv`."""

    limit: int
    after: Key | None = None
    at_rv: int | None = None
    not_before_rv: int = 0


def start(selection: Selection, options: ListOptions, items_max: int, tokens: ContinueTokens) -> Start:
    """Judge the options together; 400 for what cannot be read, 422 for what does not go together."""
    limit = parse_count("limit", options.limit)
    limit = min(limit, items_max) if limit else items_max
    match = parse_match(options.resource_version_match, options.resource_version)
    if options.continue_token:
        if options.resource_version not in ("", "0"):
            raise ApiError(
                Reason.BAD_REQUEST,
                "`resourceVersion` must not be given with `continue`: the token names its own snapshot",
            )
        if match is not None:
            raise forbidden_parameter("resourceVersionMatch", "may not be specified with `continue`")
        after, at_rv = tokens.decode(options.continue_token, selection)
        return Start(limit, after, at_rv=at_rv)
    rv = parse_rv(options.resource_version)
    if match is Match.EXACT:
        if rv == 0:
            raise forbidden_parameter("resourceVersionMatch", 'Exact is forbidden for `resourceVersion` "0"')
        return Start(limit, at_rv=rv)
    if match is None and rv and options.limit not in ("", "0"):
        # What clients meant before the parameter existed: a first page at exactly that version.
        return Start(limit, at_rv=rv)
    return Start(limit, not_before_rv=rv)


def parse_rv(text: str) -> int:
    """A resourceVersion as a number, 0 when absent; 400 when it is none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > _RV_DIGITS_MAX:
        raise ApiError(Reason.BAD_REQUEST, f'`resourceVersion` must be a decimal number, not "{text[:40]}"')
    return int(text)


def parse_count(name: str, text: str) -> int:
    """A non-negative number from the query, 0 when absent; 400 when it is none."""
    if not text:
        return 0
    if not (text.isascii() and text.isdigit()) or len(text) > _RV_DIGITS_MAX:
        raise ApiError(Reason.BAD_REQUEST, f'`{name}` must be a non-negative number, not "{text[:40]}"')
    return int(text)


def parse_match(text: str, resource_version: str) -> Match | None:
    """How to match `resourceVersion`; 422 for an unknown word, or when there is nothing to match."""
    if not text:
        return None
    try:
        match = Match(text)
    except ValueError:
        raise forbidden_parameter("resourceVersionMatch", "must be Exact or NotOlderThan") from None
    if not resource_version:
        raise forbidden_parameter("resourceVersionMatch", "is forbidden unless `resourceVersion` is provided")
    return match


def forbidden_parameter(name: str, problem: str) -> ApiError:
    """The 422 for query parameters that are readable but do not go together."""
    return ApiError(Reason.INVALID, f"`{name}` {problem}", causes=(Cause(name, problem, "FieldValueForbidden"),))
