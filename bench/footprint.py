"""The footprint of an installation: pip installs each library in an environment of its own."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from bench.peer import Installs
from bench.probe import size_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from bench.peer import Peer

_STAMP = "installed"


@dataclass(frozen=True, slots=True)
class Footprint:
    """Packages and bytes after `pip install`, including the library itself."""

    peer: str
    packages: int
    bytes: int
    python: Path
    requirement: str


@dataclass(frozen=True, slots=True)
class Refusal:
    """Pip could not install it."""

    peer: str
    reason: str


def footprints(peers: Sequence[Peer], directory: Path) -> list[Footprint | Refusal]:
    """One for each peer that is a package. What was installed by an earlier bench is used again."""
    return [
        _footprint(peer.name, peer.requirement, directory / peer.name) for peer in peers if isinstance(peer, Installs)
    ]


def _footprint(name: str, requirement: str, home: Path) -> Footprint | Refusal:
    stamp = home / _STAMP
    python = home / "bin" / "python"
    # A directory is installed anew each time, since its contents may have changed.
    is_published = "==" in requirement
    if not (is_published and stamp.exists() and stamp.read_text("utf-8") == requirement):
        shutil.rmtree(home, ignore_errors=True)
        _python("-m", "venv", "--without-pip", str(home))
        told = _python("-m", "pip", "--python", str(python), "install", "--quiet", *requirement.split())
        if told is not None:
            return Refusal(name, told)
        stamp.write_text(requirement, "utf-8")
    packages = next(home.glob("lib/python*/site-packages"))
    shown = requirement if is_published else name
    return Footprint(name, len(list(packages.glob("*.dist-info"))), size_of(packages), python, shown)


def _python(*arguments: str) -> str | None:
    """The last line that a command complains with; None if it went well."""
    done = subprocess.run([sys.executable, *arguments], check=False, capture_output=True, text=True)  # noqa: S603
    if done.returncode == 0:
        return None
    return (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
