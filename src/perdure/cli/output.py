"""Output for people and programs: tables, JSON and JSON lines.

Stored data is never trusted: control characters and bidirectional controls are shown escaped, Rich never sees it as
markup, and long values are cut with a note. Data goes to stdout, everything else to stderr.
"""

import json
import shutil
import sys
import unicodedata
from collections.abc import AsyncIterable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from rich.console import Console
from rich.table import Table
from rich.text import Text

from perdure.inspector.views import SCHEMA, Row

Format: TypeAlias = Literal["table", "json", "jsonl"]

_VALUE_LENGTH_MAX = 2_000
_CELL_LENGTH_MAX = 120
_NARROW = 20
_WIDTH_WITHOUT_TERMINAL = 1_000
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
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


def safe(value: object, *, limit: int = _VALUE_LENGTH_MAX, is_multiline: bool = False) -> str:
    """Return text that can't move the cursor, change colours or reverse the line. Cut it at `limit` with a note."""
    text = "" if value is None else value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    cut = f"… ({len(text) - limit} more characters)" if len(text) > limit else ""
    kept = "\n\t" if is_multiline else ""
    shown = (
        character if character in kept or unicodedata.category(character) not in _HIDDEN else _escaped(character)
        for character in text[:limit]
    )
    return "".join(shown) + cut


def _escaped(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode()


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

    def record(self, name: str, row: Row) -> None:
        """Write one thing as JSON."""
        shown = {"schema": SCHEMA, name: self._chosen(row)}
        sys.stdout.write(json.dumps(shown, indent=2 if self.format == "json" else None) + "\n")

    def _chosen(self, row: Row) -> Mapping[str, Any]:
        return {name: row.get(name) for name in self.fields} if self.fields else row

    def table(self, rows: Iterable[Row], columns: Sequence[str]) -> Table:
        """Make a table without frames. The first column and narrow ones are never cut: people copy ids."""
        cells = [[self.cell(column, row.get(column)) for column in columns] for row in rows]
        headers = [safe(column).upper().replace("_", " ") for column in columns]
        widths = [max(len(header), *(row[at].cell_len for row in cells), 0) for at, header in enumerate(headers)]
        wide = [at for at, width in enumerate(widths) if at > 0 and width > _NARROW]
        left = self.width() - sum(width + 2 for at, width in enumerate(widths) if at not in wide)
        drawn = Table(box=None, header_style="bold", pad_edge=False)
        for at, header in enumerate(headers):
            share = min(widths[at], max(left // len(wide) - 2, _NARROW // 2)) if at in wide else widths[at]
            drawn.add_column(Text(header), no_wrap=True, overflow="ellipsis", width=share)
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
            if value not in (None, "", {}, [], ()):
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
    def width() -> int:
        """Return how many columns a line may have."""
        return shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH_WITHOUT_TERMINAL

    @staticmethod
    def print(drawn: Table | Text) -> None:
        """Print for people. Rich reads NO_COLOR and uses no colours if stdout is no terminal."""
        console = Console(width=Output.width(), highlight=False, soft_wrap=False)
        with console.capture() as captured:
            console.print(drawn)
        sys.stdout.write("\n".join(line.rstrip() for line in captured.get().split("\n")))

    @staticmethod
    def note(text: str) -> None:
        """Tell the person something that is not data."""
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(safe(text, is_multiline=True)))


def moment(text: str | None) -> str:
    """Return a stored time to the second, in UTC."""
    return "" if text is None else text[:19].replace("T", " ") + ("Z" if len(text) > 19 else "")  # noqa: PLR2004
