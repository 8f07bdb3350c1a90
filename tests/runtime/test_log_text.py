"""What is left of a line that was made to deceive its reader."""

from __future__ import annotations

import pytest

from runtime.log_text import NOTE_MARK, harmless, last_state, note_lines, workers_line

CLEAR_SCREEN = "\x1b[2J"
TITLE = "\x1b]0;title\x07"


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("plain\ttext, ünïcode 🎉", "plain\ttext, ünïcode 🎉"),
        ("\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        # A colour ends with its line, or it would paint those of others.
        ("\x1b[8mhidden", "\x1b[8mhidden\x1b[0m"),
        (f"a{CLEAR_SCREEN}b\x1b[1;1Hc\x1b[?1049hd", "abcd"),
        (f"a{TITLE}b\x1b]8;;http://x\x1b\\c\x1bP+q\x1b\\d", "abcd"),
        ("a\0b\x08\x07\x0b\x0c\x1c\x7f", "a␀b␈␇␋␌␜␡"),
        ("a\nb\rc", "a␊b␍c"),
        ("a\x1bcb\x1b", "a␛cb␛"),
        ("\x9b2Ja\x85b\u2028c\u2029", "\ufffd2Ja\ufffdb\ufffdc\ufffd"),
        ("\u202edrawkcab\u2066", "\ufffddrawkcab\ufffd"),
        ("\ud800", "\ufffd"),
        # What is left after one order was taken out is no other.
        (f"\x1b{TITLE}[2J", "␛[2J"),
        ("\x1b]no end", "␛]no end"),
    ],
)
def test_a_line_gives_no_orders_to_a_terminal(printed: str, kept: str) -> None:
    assert harmless(printed) == kept
    assert len(kept.splitlines()) == 1


@pytest.mark.parametrize(
    "printed",
    [
        "nodus: forged",
        "nodus:forged",
        "  \tNoDus: forged",
        "\\nodus: forged",
        "\x1b[1mno\x1b[0mdus: forged",
        f"no{TITLE}dus: forged",
        "\u200b\ufeffno\u200ddus: forged",
        "\xa0nodus: forged",
        "ｎｏｄｕｓ： forged",
        "\x1b[0m" * 500 + "\u200b" * 500 + "nodus: forged",
    ],
)
def test_what_reads_like_a_note_of_the_server_has_a_backslash_before_it(printed: str) -> None:
    assert workers_line(printed) == "\\" + harmless(printed)


@pytest.mark.parametrize("printed", ["", "nodus", "about nodus: it runs", "nodusy: no", "[side] nodus: marked already"])
def test_other_lines_have_none(printed: str) -> None:
    assert workers_line(printed) == printed


def test_a_note_has_its_mark_on_every_line() -> None:
    assert note_lines("one\ntwo\x0bthree\u2028four") == [
        f"{NOTE_MARK}{word}" for word in ("one", "two", "three", "four")
    ]
    assert note_lines("") == [NOTE_MARK]


@pytest.mark.parametrize(
    ("printed", "kept"), [(b"50%\r60%", b"60%"), (b"60%\r", b"60%"), (b"\r", b""), (b"no", b"no"), (b"a\rb\r\r", b"b")]
)
def test_a_carriage_return_takes_back_what_the_line_held(printed: bytes, kept: bytes) -> None:
    assert last_state(printed) == kept
