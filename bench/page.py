"""The page of results, as Markdown."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.sheets import LEGEND

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.catalogue import Missing
    from bench.peer import Peer
    from bench.sheets import Sheet

_LEFT: Final = {"line", "work", "aim", "measured", "met", "best peer", "store", "checkpoint", "operation", "peer"}


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the page."""

    machine: str
    how: str
    peers: Sequence[Peer]
    missing: Sequence[Missing]
    aims: Sheet
    limits: Sheet
    sheets: Sequence[Sheet]
    picture: str | None

    def text(self) -> str:
        """The page."""
        return "\n".join(self._lines()) + "\n"

    def _lines(self) -> Iterator[str]:
        yield "# What was measured"
        yield ""
        yield "Written by `make bench`; do not edit. [README.md](README.md) says how it measures."
        yield ""
        yield f"{self.machine}. {self.how}"
        for sheet in (self.aims, self.limits):
            yield ""
            yield from _drawn(sheet)
        if self.picture is not None:
            yield ""
            yield f"![D: time and bytes of a superstep, over the supersteps]({self.picture})"
        for sheet in self.sheets:
            yield ""
            yield from _drawn(sheet)
        yield ""
        yield from self._who()
        yield ""
        yield "## The columns"
        yield ""
        yield from (f"- **{name}**: {text}" for name, text in LEGEND)

    def _who(self) -> Iterator[str]:
        yield "## Who takes part, and who syncs"
        yield ""
        yield "| peer | set up as | what becomes of a checkpoint | left out of |"
        yield "|---|---|---|---|"
        for peer in self.peers:
            if peer.about:
                yield f"| {peer.name} | {peer.about} | {peer.keeps or 'the same'} | {peer.cannot} |"
        for each in self.missing:
            yield f"| {each.name} | not installed: {each.reason} | | all |"


def _drawn(sheet: Sheet) -> Iterator[str]:
    yield f"## {sheet.title}"
    yield ""
    yield _row(sheet.columns)
    yield _row(["---" if index == 0 or name in _LEFT else "---:" for index, name in enumerate(sheet.columns)])
    for index, cells in enumerate(sheet.rows):
        is_strong = index in sheet.strong
        yield _row([f"**{cell}**" if is_strong and cell else cell for cell in cells])


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
