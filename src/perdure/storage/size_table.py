"""A size report as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.storage.sizes import PartSize, SizeReport

_ROWS_MAX = 20
_NAME_LENGTH_MAX = 60
_KIB = 1024


def table(report: SizeReport) -> str:
    """The report as lines: what there is in all, then what the newest checkpoint is made of."""
    lines = [_summary(report), _stored(report)]
    if report.entries:
        lines += ["", *_rows(report), *_rest(report.entries[_ROWS_MAX:])]
    return "\n".join(lines)


def bytes_text(size: int) -> str:
    """A number of bytes for people."""
    if abs(size) < _KIB:
        return f"{size} B"
    amount, unit = size / _KIB, "KiB"
    for larger in ("MiB", "GiB", "TiB"):
        if abs(amount) < _KIB:
            break
        amount, unit = amount / _KIB, larger
    return f"{amount:.1f} {unit}"


def _summary(report: SizeReport) -> str:
    if report.checkpoint_id is None:
        return f"run {report.run_id!r} has no checkpoint yet"
    return f"run {report.run_id!r} at {report.checkpoint_id!r}: {bytes_text(report.size)}"


def _stored(report: SizeReport) -> str:
    kinds = (
        ("parts", report.parts_stored),
        ("manifests", report.manifests_stored),
        ("events", report.events_stored),
        ("journal", report.journal_stored),
        ("inbox", report.inbox_stored),
    )
    listed = ", ".join(f"{name} {bytes_text(size)}" for name, size in kinds if size)
    checkpoints = "1 checkpoint" if report.checkpoints == 1 else f"{report.checkpoints} checkpoints"
    return f"stored: {bytes_text(report.stored)} in {checkpoints}" + (f" ({listed})" if listed else "")


def _rows(report: SizeReport) -> list[str]:
    overs = tuple(report.entries[0].growth)
    new = "new" if report.since is None else f"new since {report.since}"
    heads = ["what", "size", "parts", new, "shared", *(f"growth over {over}" for over in overs)]
    rows = [_row(entry) for entry in report.entries[:_ROWS_MAX]]
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    return [_line(cells, widths) for cells in (heads, *rows)]


def _row(entry: PartSize) -> list[str]:
    growth = [f"+{bytes_text(by)}" if by > 0 else bytes_text(by) for by in entry.growth.values()]
    sizes = [bytes_text(entry.size), str(entry.parts), bytes_text(entry.new), bytes_text(entry.shared)]
    return [_shortened(entry.name), *sizes, *growth]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = (
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join((first, *others)).rstrip()


def _shortened(name: str) -> str:
    return name if len(name) <= _NAME_LENGTH_MAX else f"{name[: _NAME_LENGTH_MAX - 1]}…"


def _rest(entries: Sequence[PartSize]) -> list[str]:
    if not entries:
        return []
    return [f"and {len(entries)} smaller ones: {bytes_text(sum(entry.size for entry in entries))}"]
