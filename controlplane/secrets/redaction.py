"""Taking secret values out of texts that leave a worker with an exception."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection

LENGTH_MIN = 4
"""Shorter values are left: taking every `1` out of a traceback would ruin it and protect nobody."""
LINE_LENGTH_MIN = 12
"""Lines of a value of several lines (a PEM key) are taken out one by one as well, from this length."""
MARK = "[redacted]"

Redact = Callable[[str], str]

_QUOTES: tuple[Callable[[str], str], ...] = (
    repr,
    ascii,
    json.dumps,
    lambda text: json.dumps(text, ensure_ascii=False),
)


def redactor(values: Collection[str]) -> Redact:
    """A function that puts MARK in place of every value, as it is and as Python or JSON would quote it."""
    found: set[str] = set()
    for value in values:
        spellings = [value, *(line for line in value.splitlines() if len(line) >= LINE_LENGTH_MIN)]
        for spelling in spellings:
            if len(spelling) >= LENGTH_MIN:
                found.add(spelling)
                found.update(quote(spelling)[1:-1] for quote in _QUOTES)
    if not found:
        return _unchanged
    # Longest first, so that a value inside another does not leave the rest of it standing.
    pattern = re.compile("|".join(re.escape(spelling) for spelling in sorted(found, key=len, reverse=True)))
    return lambda text: pattern.sub(MARK, text)


def _unchanged(text: str) -> str:
    return text
