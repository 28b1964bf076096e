"""Sheets for the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from bench.sheets import Sheet

_TEXTS = {"line", "work", "aim", "measured", "met", "best peer", "store", "checkpoint", "pip install"}


def table(sheet: Sheet) -> Table:
    """A sheet as a table of rich's; rows that stand out are bold."""
    drawn = Table(title=sheet.title, title_style="bold cyan", title_justify="left", header_style="dim", box=None)
    for index, name in enumerate(sheet.columns):
        drawn.add_column(name, justify="left" if index == 0 or name in _TEXTS else "right", overflow="fold")
    for index, row in enumerate(sheet.rows):
        cells = [Text(cell.replace("**", ""), style="red" if cell.startswith("**") else "") for cell in row]
        drawn.add_row(*cells, style="bold" if index in sheet.strong else "")
    return drawn
