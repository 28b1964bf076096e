"""Output for people and programs: tables, JSON and JSON lines.

Stored data is never trusted: control characters and bidirectional controls are shown escaped, Rich never sees it as
markup, and long values are cut with a note. Data goes to stdout, everything else to stderr.
"""

import contextlib
import json
import os
import shutil
import sys
from collections.abc import AsyncIterable, Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from perdure.cli.views import SCHEMA, Row, moment, safe

Format: TypeAlias = Literal["table", "json", "jsonl"]

_CELL_LENGTH_MAX = 120
_NARROW = 8
_NOTHING: tuple[object, ...] = (None, "", {}, [], ())
_WHOLE = ("run_id", "request_id", "checkpoint_id", "_at", "at", "deadline", "status")
_WIDTH_WITHOUT_TERMINAL = 1_000
_STYLES = {
    "failed": "bold red",
    "quarantined": "bold red",
    "blocked": "bold red",
    "waiting": "yellow",
    "running": "green",
    "sleeping": "cyan",
    "cancelled": "dim",
    "exported": "dim",
}


@dataclass(frozen=True, slots=True)
class Output:
    """Writes what a command has found, in the chosen format. `fields` are the columns or keys to show."""

    format: Format
    fields: tuple[str, ...] = ()

    @property
    def is_table(self) -> bool:
        """True if people read the output."""
        return self.format == "table"

    async def rows(self, name: str, rows: AsyncIterable[Row], columns: Sequence[str]) -> None:
        """Write a list as it is read. A table is drawn when all rows are known, so that its columns fit."""
        if self.is_table:
            self.print(self.table([row async for row in rows], self.fields or columns))
            return
        first = True
        if self.format == "json":
            sys.stdout.write(f'{{"schema": {SCHEMA}, {json.dumps(name)}: [')
        async for row in rows:
            text = json.dumps(self._chosen(row))
            sys.stdout.write(text + "\n" if self.format == "jsonl" else ("\n  " if first else ",\n  ") + text)
            sys.stdout.flush()
            first = False
        if self.format == "json":
            sys.stdout.write("\n]}\n" if not first else "]}\n")

    @property
    def is_live(self) -> bool:
        """True if a table on the terminal can be drawn again and again."""
        return self.is_table and sys.stdout.isatty()

    @contextlib.contextmanager
    def live(self) -> Generator[Callable[[Iterable[Row], Sequence[str], str], None]]:
        """Fill the terminal with a table. The function draws it again, with a note below."""
        with Live(console=Console(highlight=False), screen=True, auto_refresh=False) as drawn:

            def show(rows: Iterable[Row], columns: Sequence[str], note: str) -> None:
                shown = list(rows)[: shutil.get_terminal_size().lines - 5]
                below = Text(safe(note, is_multiline=True), style="dim")
                drawn.update(Group(self.table(shown, self.fields or columns), Text(), below), refresh=True)

            yield show

    def record(self, name: str, row: Row) -> None:
        """Write one thing as JSON."""
        shown = {"schema": SCHEMA, name: self._chosen(row)}
        sys.stdout.write(json.dumps(shown, indent=2 if self.format == "json" else None) + "\n")

    def _chosen(self, row: Row) -> Mapping[str, Any]:
        return {name: row.get(name) for name in self.fields} if self.fields else row

    def table(self, rows: Iterable[Row], columns: Sequence[str]) -> Table:
        """Make a table without frames. Ids, times and the status are never cut: people copy and compare them."""
        every = list(rows)
        if not self.fields:
            columns = [each for each in columns if any(row.get(each) not in _NOTHING for row in every)] or columns
        cells = [[self.cell(column, row.get(column)) for column in columns] for row in every]
        headers = [safe(column).upper().replace("_", " ") for column in columns]
        widths = [max(len(header), *(row[at].cell_len for row in cells), 0) for at, header in enumerate(headers)]
        can_shrink = [at for at, column in enumerate(columns) if not column.endswith(_WHOLE)]
        while can_shrink and sum(widths) + 2 * len(widths) > self.width():
            widest = max(can_shrink, key=widths.__getitem__)
            if widths[widest] <= _NARROW:
                break
            widths[widest] -= 1
        drawn = Table(box=None, header_style="bold", pad_edge=False)
        for header, width in zip(headers, widths, strict=True):
            drawn.add_column(Text(header), no_wrap=True, overflow="ellipsis", width=width)
        for row in cells:
            drawn.add_row(*row)
        return drawn

    @staticmethod
    def cell(column: str, value: Any) -> Text:
        """Return a value as one line."""
        if isinstance(value, dict) and column in {"tags", "spent"}:
            pairs = cast("dict[str, object]", value).items()
            value = " ".join(f"{key}={each}" for key, each in pairs)
        if isinstance(value, str) and column.endswith(("_at", "at", "deadline")):
            value = moment(value)
        shown = cast("object", value)
        style = _STYLES.get(str(shown), "") if column == "status" else ""
        return Text(safe(shown, limit=_CELL_LENGTH_MAX if column != "run_id" else 1_000), style=style)

    def facts(self, pairs: Iterable[tuple[str, object]]) -> None:
        """Print names and values below each other. Leave out what is empty."""
        drawn = Table(box=None, show_header=False, pad_edge=False)
        drawn.add_column(style="bold", no_wrap=True)
        drawn.add_column(overflow="fold")
        for name, value in pairs:
            if value not in _NOTHING:
                drawn.add_row(name, value if isinstance(value, Text) else self.fact(name, value))
        self.print(drawn)

    def fact(self, name: str, value: object) -> Text:
        """Return a value that may have several lines."""
        if name in {"tags", "spent", "status"}:
            return self.cell(name, value)
        return Text(safe(value, is_multiline=True))

    def text(self, text: str, *, style: str = "", limit: int = 16_000) -> None:
        """Print stored text of several lines."""
        self.print(Text(safe(text, limit=limit, is_multiline=True), style=style))

    @staticmethod
    @contextlib.contextmanager
    def progress(what: str, total: int | None = None) -> Generator[Callable[[], None]]:
        """Show a progress bar on stderr if that is a terminal. The function counts one thing as done."""
        console = Console(stderr=True)
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        shown = columns if total is not None else (*columns[:2], columns[3])
        with Progress(*shown, console=console, transient=True, disable=not console.is_terminal) as drawn:
            task = drawn.add_task(what, total=total)
            yield lambda: drawn.advance(task)

    def line(self, text: str, *, style: str = "") -> None:
        """Print one line. What a terminal has no room for is cut."""
        shown = Text(safe(text, limit=_WIDTH_WITHOUT_TERMINAL), style=style)
        shown.truncate(self.width(), overflow="ellipsis")
        self.print(shown)

    @staticmethod
    def width() -> int:
        """Return how many columns a line may have."""
        is_known = sys.stdout.isatty() or "COLUMNS" in os.environ
        return shutil.get_terminal_size().columns if is_known else _WIDTH_WITHOUT_TERMINAL

    @staticmethod
    def print(drawn: Table | Text) -> None:
        """Print for people. Rich reads NO_COLOR and uses no colours if stdout is no terminal."""
        plain = Console(width=_WIDTH_WITHOUT_TERMINAL)
        width = plain.measure(drawn).minimum if isinstance(drawn, Table) and drawn.show_header else 0
        console = Console(width=max(Output.width(), width), highlight=False)
        with console.capture() as captured:
            # A terminal wraps long lines of text by itself, and then they can be copied whole.
            console.print(drawn, soft_wrap=isinstance(drawn, Text))
        sys.stdout.write("\n".join(line.rstrip() for line in captured.get().split("\n")))

    @staticmethod
    def note(text: str) -> None:
        """Tell the person something that is not data."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(safe(text, is_multiline=True)))
