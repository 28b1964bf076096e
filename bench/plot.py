"""The picture of line D: what a superstep takes and writes, while the history grows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib import pyplot

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.summary import Line
    from bench.work import Point

_DASHES = {"SQLite": "-", "Postgres": "--", "file": ":"}
_COLOURS = {
    "perdure": "#0b6e4f",
    "perdure Log": "#29bf89",
    "langgraph": "#c1121f",
    "langgraph delta": "#f28482",
    "agent-framework": "#1d4e89",
    "dbos": "#8e6c00",
    "burr": "#7b2d8b",
    "machine": "#888888",
}


def draw(lines: Sequence[Line], path: Path) -> None:
    """Write the picture, in the format that the name of the file ends with."""
    mpl.use("agg")
    # Text stays text, and the same numbers give the same file.
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "bench", "font.size": 9})
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5.2), layout="constrained")
    for line in lines:
        name, store = line.entry.peer.name, line.entry.store.value
        style = {
            "label": f"{name}, {store}",
            "color": _COLOURS.get(name),
            "linestyle": _DASHES.get(store, "-"),
            "linewidth": 2.2 if name.startswith("perdure") else 1.2,
        }
        supersteps, seconds, written = _steps(line.points)
        left.plot(supersteps, [each * 1e3 for each in seconds], **style)
        right.plot(supersteps, [each / 1e3 for each in written], **style)
    for axes, title, unit in ((left, "time of a superstep", "ms"), (right, "written in a superstep", "KB")):
        axes.set_yscale("log")
        axes.set_title(title)
        axes.set_xlabel("superstep; each adds 1 KB to the history")
        axes.set_ylabel(unit)
        axes.grid(visible=True, which="major", alpha=0.3)
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(figure)


def _steps(points: Sequence[Point]) -> tuple[list[int], list[float], list[float]]:
    """Between one look and the next, for one superstep."""
    supersteps: list[int] = []
    seconds: list[float] = []
    written: list[float] = []
    last_superstep, last_seconds, last_written = 0, 0.0, 0
    for point in points:
        passed = point.superstep - last_superstep
        if passed > 0:
            supersteps.append(point.superstep)
            seconds.append((point.seconds - last_seconds) / passed)
            # A stretch in which nothing was written has no place on this axis.
            written.append(max(1.0, (point.written - last_written) / passed))
        last_superstep, last_seconds, last_written = point.superstep, point.seconds, point.written
    return supersteps, seconds, written
