"""The options of the command line."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

_DIRECTORY = Path("build") / "bench"


@dataclass(frozen=True, slots=True)
class Options:
    """The works to measure, the number of rounds, and the directory for stores."""

    rounds: int
    only: tuple[str, ...]
    is_quick: bool
    directory: Path

    @property
    def is_complete(self) -> bool:
        """True if everything is measured in full, as the results page requires."""
        return not self.only and not self.is_quick


def options() -> Options:
    """The options of this process."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="The same small work in perdure and its peers."
    )
    parser.add_argument(
        "--rounds", type=_positive, default=None, help="how often each measurement is made (default: 5; quick: 1)"
    )
    parser.add_argument(
        "--only",
        default="",
        metavar="LINES",
        help="only these lines of the table, by their letters (A,C,H), or the works that have this text in their title",
    )
    parser.add_argument("--quick", action="store_true", help="a little of everything: whether it works, not how fast")
    parser.add_argument(
        "--directory",
        type=Path,
        default=_DIRECTORY,
        help="where stores are written; the usual place for temporary files may be in memory, where syncing is free "
        f"(default: {_DIRECTORY})",
    )
    given = parser.parse_args()
    only = tuple(part.strip() for part in given.only.split(",") if part.strip())
    return Options(given.rounds or (1 if given.quick else 5), only, given.quick, given.directory.resolve())


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"give 1 or more, not {number}")
    return number
