"""How operators' commands show lists: tables that fit a terminal, and one line a row where a program reads them."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table

PIPED_WIDTH = 1_000
"""Columns where nobody looks: no cell of ours is cut or folded."""


def show_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print rows below their headings, or only these when there are none."""
    console = Console(file=sys.stdout)
    if not console.is_terminal:
        console = Console(file=sys.stdout, width=PIPED_WIDTH, no_color=True)
    table = Table(*columns, box=box.SIMPLE_HEAD if console.is_terminal else None, pad_edge=False)
    for column in table.columns:
        column.overflow = "fold"
    for row in rows:
        # Names and reasons are of people: brackets in them are no markup.
        table.add_row(*(cell.replace("[", r"\[") for cell in row))
    console.print(table)
