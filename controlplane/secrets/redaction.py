"""Taking secret values out of texts that leave a worker with an exception.

A value is looked for as it stands and as Python, JSON, URLs, base64 and hexadecimal digits write it, also where the
text breaks it over lines. Searching for each spelling costs next to nothing where none is found, which is nearly
always; a pattern is made only of those that are there. What is encrypted, compressed or turned round is not found.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from urllib.parse import quote, quote_plus

LENGTH_MIN = 4
"""Shorter values are left: taking every `1` out of a traceback would ruin it and protect nobody."""
ENCODED_LENGTH_MIN = 8
"""Shorter pieces of base64 and hexadecimal text, and of a value that is broken over lines, are found by chance."""
LINE_LENGTH_MIN = 12
"""Lines of a value of several lines (a PEM key) are taken out one by one as well, from this length."""
MARK = "[redacted]"

Redact = Callable[[str], str]

_QUOTES: tuple[Callable[[str], str], ...] = (
    lambda text: repr(text)[1:-1],
    lambda text: ascii(text)[1:-1],
    lambda text: json.dumps(text)[1:-1],
    lambda text: json.dumps(text, ensure_ascii=False)[1:-1],
    lambda text: repr(_bytes(text))[2:-1],
    lambda text: quote(_bytes(text), safe=""),
    lambda text: quote(_bytes(text)),
    lambda text: quote_plus(_bytes(text)),
)
_ENCODINGS: tuple[Callable[[bytes], bytes], ...] = (base64.b64encode, base64.urlsafe_b64encode)
_SURE = {0: 0, 1: -3, 2: -2}
"""By the bytes left over in its last group: where the characters end that do not depend on what follows a value."""
_GAP = r"""(?:['"]?[ \t]*+\\?\r?\n[ \t|>]*+['"]?|[ \t]++)"""
"""The end of a line and the beginning of the next, with the quotes of a literal that is continued; or blanks, since a
line may be broken at those of a value."""


def redactor(values: Collection[str]) -> Redact:
    """A function that puts MARK in place of every value, however it is spelt."""
    # Longest first, so that a value inside another does not leave the rest of it standing.
    spellings = sorted({found for value in values for found in _spellings(value)}, key=lambda text: (-len(text), text))
    gap = re.compile(_GAP)
    dense = [gap.sub("", spelling) for spelling in spellings]
    dense = [spelling for spelling in dense if len(spelling) >= ENCODED_LENGTH_MIN]

    def redact(text: str) -> str:
        text = _without(text, [spelling for spelling in spellings if spelling in text], "")
        if "\n" not in text:
            return text
        joined = gap.sub("", text)
        return _without(text, [spelling for spelling in dense if spelling in joined], f"{_GAP}*+")

    return redact if spellings else _unchanged


def _without(text: str, spellings: Iterable[str], between: str) -> str:
    """The text without these spellings, whose characters may have a match of `between` between them."""
    patterns = [between.join(map(re.escape, spelling)) for spelling in spellings]
    return re.sub("|".join(patterns), MARK, text) if patterns else text


def _spellings(value: str) -> Iterator[str]:
    if len(value) < LENGTH_MIN:
        return
    for part in (value, *(line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN)):
        yield part
        for write in _QUOTES:
            yield write(part)
    for piece in _encoded(_bytes(value)):
        if len(piece) >= ENCODED_LENGTH_MIN:
            yield piece


def _encoded(content: bytes) -> Iterator[str]:
    """The value in hexadecimal and base64 text, also as a part of something longer that was encoded as a whole."""
    yield content.hex()
    yield content.hex().upper()
    for encode in _ENCODINGS:
        yield encode(content).decode()
        for shift in range(3):
            shifted = encode(bytes(shift) + content).decode()
            begin = -(-8 * shift // 6)
            end = len(shifted) + _SURE[(shift + len(content)) % 3]
            yield shifted[begin:end]


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _unchanged(text: str) -> str:
    return text
