"""What can be said on the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = Path("build") / "bench"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure, how often, and where to write."""

    rounds: int
    only: str
    directory: Path


def options() -> Options:
    """The options of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="The same small work in perdure and its peers."
    )
    parser.add_argument("--rounds", type=_positive, default=5, help="how often each measurement is made (default: 5)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the works that have TEXT in their title")
    parser.add_argument(
        "--directory",
        type=Path,
        default=_DIRECTORY,
        help="where stores are written; the usual place for temporary files may be in memory, where syncing is free "
        f"(default: {_DIRECTORY})",
    )
    given = parser.parse_args()
    return Options(given.rounds, given.only, given.directory)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"give 1 or more, not {number}")
    return number
