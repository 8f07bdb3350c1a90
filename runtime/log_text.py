"""What a line of a log may hold, so that it shows a reader nothing but itself and passes for nobody else's.

A log is read on terminals, which obey control characters, and by programs, which take some of them for the end of a
line. Here a line loses them; colours stay, up to its end. What the server itself says begins with `NOTE_MARK`, and a
line of a worker that would read so gets a backslash before it. `logs.py` passes every line through here before it is
sent, whichever kind of log it is of. Letters of other alphabets that only look like the mark's are not told apart.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from itertools import dropwhile, islice

NOTE_MARK = "nodus: "
"""How a line of the server begins, and no line of a worker does."""
ESCAPE = "\\"
_RESET = "\x1b[0m"
_COLOUR = r"\x1b\[[0-9;:]*m"
_ORDER_TO_TERMINAL = r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)"
"""Of any other kind: to move the cursor or clear the screen, to name the window, to type something."""
_CONTROL = r"[\x00-\x08\x0a-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
"""All but tab: C0, DEL, C1, ends of lines and paragraphs, turns of the direction of writing, halves of characters."""
_UNWANTED = re.compile(rf"(?P<colour>{_COLOUR})|(?P<order>{_ORDER_TO_TERMINAL})|{_CONTROL}")
_COLOURS = re.compile(_COLOUR)
_PICTURES = {code: chr(0x2400 + code) for code in range(0x20)} | {0x7F: "\u2421"}
"""How a control character of ASCII is shown."""
_NO_PICTURE = "\ufffd"
_MARK_ALONE = NOTE_MARK.rstrip()
_BEFORE_MARK = " \t" + ESCAPE
_UNSEEN = frozenset({"Cf", "Mn", "Me", "Zs"})
"""Categories of characters that take no place, or look like a space, within the mark."""


def last_state(line: bytes) -> bytes:
    """What a line shows when it ends: a carriage return takes back what it held, as progress bars do."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]


def harmless(text: str) -> str:
    """The text without what a terminal would obey, except colours, and in one line."""
    clean = _UNWANTED.sub(_shown, text)
    return clean if "\x1b" not in clean or clean.endswith(_RESET) else clean + _RESET


def workers_line(text: str) -> str:
    """A line of a worker, as it is kept."""
    clean = harmless(text)
    return ESCAPE + clean if _reads_as_note(clean) else clean


def note_lines(text: str) -> list[str]:
    """What the server says, as lines that are marked as its own."""
    return [NOTE_MARK + harmless(line) for line in text.splitlines() or [""]]


def _shown(found: re.Match[str]) -> str:
    match found.lastgroup:
        case "colour":
            return found.group()
        case "order":
            return ""
        case _:
            return _PICTURES.get(ord(found.group()), _NO_PICTURE)


def _reads_as_note(clean: str) -> bool:
    """Whether somebody would take it for a line of the server."""
    seen: Iterable[str] = _COLOURS.sub("", clean)
    if not clean.isascii():
        seen = (char for char in seen if unicodedata.category(char) not in _UNSEEN)
    start = "".join(islice(dropwhile(_BEFORE_MARK.__contains__, seen), len(_MARK_ALONE)))
    # Wide and mathematical letters become plain ones.
    return unicodedata.normalize("NFKC", start).lower().startswith(_MARK_ALONE)
