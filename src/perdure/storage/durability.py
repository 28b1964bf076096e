"""How far a commit has come when a store says that it is done."""

from __future__ import annotations

from typing import Literal, TypeAlias

Durability: TypeAlias = Literal["commit", "os"]
"""With "commit" it outlasts a power cut. With "os" the operating system has it: it outlasts the process only."""

_WORDS = ("commit", "os")


def require_durability(word: str) -> Durability:
    """Refuse what is no such word."""
    if word not in _WORDS:
        raise ValueError(
            f"durability={word!r} is none; give 'commit' (synced: it outlasts a power cut) or 'os' (it outlasts a "
            "killed process, and may be lost in a power cut)"
        )
    return word
