"""Values disappear from texts in every spelling that an exception gives them."""

from __future__ import annotations

import base64
import json
import pprint
import re
import textwrap
import time
from collections.abc import Callable
from urllib.parse import quote, quote_plus

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


SECRET = "pa$$ w0rd/ünïcode+é"


@pytest.mark.parametrize("value", [SECRET, "hunter2-hunter2", "0123456789abcdef0123456789abcdef", "x" * 8])
@pytest.mark.parametrize(
    "spell",
    [
        lambda value: base64.b64encode(value.encode()).decode(),
        lambda value: base64.urlsafe_b64encode(value.encode()).decode(),
        lambda value: value.encode().hex(),
        lambda value: value.encode().hex().upper(),
        lambda value: quote(value, safe=""),
        lambda value: quote(value),
        lambda value: quote_plus(value),
        lambda value: repr(value.encode()),
        lambda value: json.dumps({"key": value}),
        lambda value: pprint.pformat({"key": value * 12}, width=20),
        lambda value: "\n".join(value),
        lambda value: "\n    ".join(textwrap.wrap(base64.b64encode(value.encode()).decode(), 7)),
        lambda value: base64.encodebytes((value * 12).encode()).decode(),
        lambda value: "\n".join(f"  | {part}" for part in re.findall(".{1,3}", value)),
    ],
)
def test_a_value_is_taken_out_however_it_is_encoded_or_broken_over_lines(
    value: str, spell: Callable[[str], str]
) -> None:
    text = f"Traceback:\n  failed with {spell(value)}, of all things\n"
    redacted = redactor([value])(text)
    assert MARK in redacted
    plain = re.sub(r"[\s'\"|\\]", "", redacted)
    assert not any(re.sub(r"[\s'\"|\\]", "", form) in plain for form in (value, quote(value), value.encode().hex()))


@pytest.mark.parametrize("prefix", ["", "u", "us", "use", "user:"])
@pytest.mark.parametrize("suffix", ["", "s", "su", "suf"])
@pytest.mark.parametrize("encode", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_value_inside_something_that_was_encoded_as_a_whole_cannot_be_read_back(
    prefix: str, suffix: str, encode: Callable[[bytes], bytes]
) -> None:
    whole = encode(f"{prefix}{SECRET}{suffix}".encode()).decode()
    redacted = redactor([SECRET])(f"Authorization: Basic {whole}")
    assert MARK in redacted
    left = redacted.replace("Authorization: Basic ", "").replace(MARK, "")
    # At most the characters that the value shares with its neighbours are left at either end.
    assert len(left) <= len(encode(f"{prefix}{suffix}".encode())) + 6


def test_a_text_without_a_value_is_the_same_text() -> None:
    text = "Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: deadbeef cafe\n" * 50
    assert redactor([SECRET, PEM])(text) == text


def test_a_huge_text_is_searched_in_time_that_grows_with_it_alone() -> None:
    """Some seconds on any machine; quadratic time would take hours."""
    values = [f"value-number-{number}-of-many" for number in range(20)]
    begun = time.process_time()
    redacted = redactor(values)(("'\n" * 1_000_000) + values[7] + " \n" * 1_000_000)
    assert MARK in redacted
    assert time.process_time() - begun < 60
