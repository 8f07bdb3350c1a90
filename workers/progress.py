"""What an operator sees while something starts: one line a step, with its time.

On a terminal the line of the step at work is shown at once and finished in place; elsewhere only finished lines appear.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from rich.console import Console, RenderableType

CLEAR_LINE = "\r\x1b[K"


class Progress:
    """Lines on standard output."""

    def __init__(self) -> None:
        self._console = Console(highlight=False, soft_wrap=True)
        self._open_step = ""

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that `text` is under way, then that it is done and how long it took; nothing is added when it fails."""
        begun = time.monotonic()
        self._show_open(text)
        try:
            yield
        except BaseException:
            self._clear_open()
            raise
        self._clear_open()
        self._console.print(f"[green]✓[/green] {text} [dim]{time.monotonic() - begun:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """A line of its own, even in the middle of a step."""
        shown = self._open_step
        self._clear_open()
        self._console.print(text, markup=False)
        if shown:
            self._show_open(shown)

    def show(self, what: RenderableType) -> None:
        """A table."""
        self._console.print(what)

    def warn(self, text: str) -> None:
        """A line that should catch the eye."""
        shown = self._open_step
        self._clear_open()
        self._console.print(f"! {text}", style="yellow", markup=False)
        if shown:
            self._show_open(shown)

    def _show_open(self, text: str) -> None:
        if self._console.is_terminal:
            self._open_step = text
            self._console.print(f"[dim]… {text}[/dim]", end="")
            self._console.file.flush()

    def _clear_open(self) -> None:
        if self._open_step:
            self._open_step = ""
            self._console.file.write(CLEAR_LINE)
            self._console.file.flush()
