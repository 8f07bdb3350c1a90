from __future__ import annotations

import pytest

from controlplane.errors import CAUSES_TOLD, Cause, Reason, invalid, not_found, told


@pytest.mark.parametrize("reason", Reason)
def test_every_code_says_what_to_do_next(reason: Reason) -> None:
    assert reason.row.fix.endswith(".")
    assert 400 <= reason.row.http_status < 600
    assert reason.row.wire.isalpha()


def test_codes_have_names_of_their_own() -> None:
    names = [reason.row.wire for reason in Reason]
    assert len(names) == len(set(names)) == len(Reason)


@pytest.mark.parametrize(
    ("wire", "status"),
    [
        ("BadRequest", 400),
        ("Unauthorized", 401),
        ("Forbidden", 403),
        ("NotFound", 404),
        ("MethodNotAllowed", 405),
        ("NotAcceptable", 406),
        ("AlreadyExists", 409),
        ("Conflict", 409),
        ("Expired", 410),
        ("RequestEntityTooLarge", 413),
        ("UnsupportedMediaType", 415),
        ("Invalid", 422),
        ("TooManyRequests", 429),
        ("InternalError", 500),
        ("Timeout", 504),
    ],
)
def test_the_codes_that_kubernetes_clients_act_on_have_their_status(wire: str, status: int) -> None:
    """By these pairs kubectl ignores what is missing, retries and tells a taken name from a lost race (R-ERR-2)."""
    assert [reason.row.http_status for reason in Reason if reason.row.wire == wire] == [status]


def test_a_missing_object_is_told_in_the_words_of_kubernetes() -> None:
    error = not_found("functions", "x")
    assert error.message == 'functions.nodus.dev "x" not found'
    assert error.fix == Reason.NOT_FOUND.row.fix


def test_an_error_tells_its_first_causes_and_lists_all() -> None:
    causes = [Cause(f"spec.a{index}", "is wrong") for index in range(CAUSES_TOLD + 2)]
    error = invalid("functions", "x", causes)
    assert error.causes == tuple(causes)
    assert error.message.startswith('functions.nodus.dev "x" is invalid: spec.a0: is wrong; ')
    assert error.message.endswith(f"spec.a{CAUSES_TOLD - 1}: is wrong; and 2 more")
    assert told(causes[:CAUSES_TOLD]).count("is wrong") == CAUSES_TOLD
