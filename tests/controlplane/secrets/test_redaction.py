"""Values disappear from texts in every spelling that an exception gives them."""

from __future__ import annotations

import json

import pytest

from controlplane.secrets.redaction import MARK, redactor

PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0\nsecond line of the key\n-----END KEY-----\n"


@pytest.mark.parametrize(
    "text",
    ["hunter2!", "x=hunter2!&y=1", "hunter2!hunter2!", "Traceback…\nValueError: hunter2!\n"],
)
def test_a_value_is_taken_out_wherever_it_stands(text: str) -> None:
    redacted = redactor(["hunter2!"])(text)
    assert "hunter2!" not in redacted
    assert MARK in redacted


@pytest.mark.parametrize("value", ["tab\tnew\nline", "quote'\"both", "back\\slash", "ünïcode\x01", "a\nb\nc\nd"])
@pytest.mark.parametrize("spell", [str, repr, json.dumps, lambda value: json.dumps(value, ensure_ascii=False)])
def test_a_value_is_taken_out_as_python_and_json_quote_it(value: str, spell: object) -> None:
    assert callable(spell)
    text = f"failed: {spell(value)}"
    redacted = redactor([value])(text)
    assert redacted.replace("'", "").replace('"', "") == f"failed: {MARK}"


def test_each_line_of_a_long_value_is_taken_out() -> None:
    redacted = redactor([PEM])("line: MIIEvQIBADANBgkqhkiG9w0 end")
    assert redacted == f"line: {MARK} end"


def test_a_value_inside_another_leaves_nothing_standing() -> None:
    assert redactor(["pass", "password-long"])("password-long pass") == f"{MARK} {MARK}"


def test_values_too_short_to_be_secret_leave_the_text_readable() -> None:
    assert redactor(["1", "", "abc"])("1 of 3 abc") == "1 of 3 abc"


def test_special_characters_of_patterns_mean_themselves() -> None:
    assert redactor(["a.c*(d"])("abc a.c*(d") == f"abc {MARK}"
