"""Numbers as people read them."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """Seconds, or thousandths or millionths of them."""
    for unit, one in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= one:
            return f"{number(seconds / one)} {unit}"
    return f"{number(seconds / 1e-6)} us"


def size(count: float) -> str:
    """Bytes, or thousands or millions of them."""
    for unit, one in (("MB", 1e6), ("KB", 1e3)):
        if count >= one:
            return f"{number(count / one)} {unit}"
    return f"{count:.0f} B"


def number(value: float) -> str:
    """With a decimal point where three digits leave room for it: 1.23, 12.3, 123, 12,345."""
    decimals = next((places for places, limit in ((2, 10), (1, 100)) if value < limit), 0)
    return f"{value:,.{decimals}f}"
