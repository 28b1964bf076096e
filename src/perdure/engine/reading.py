"""How a function reads: whether it was changed since a run entered it, so that what it calls may have moved."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from perdure.checkpoint import label_in, label_record
from perdure.data import frozen

if TYPE_CHECKING:
    from perdure.engine.activation import ActivationContext

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
"""`asyncio.wait_for` begins a task in some versions of Python and none in others."""


@frozen
class Reading:
    """A function as it reads now, beside how it read when it was entered first."""

    now: str | None
    """What tells its text from others; None if that is not known."""
    is_edited: bool = False
    may_have_moved: bool = False
    """Whether it may call the same things from other places: it was edited, or runs in another Python."""


def compared(around: ActivationContext, place: str, now: str | None) -> Reading:
    """Note how the function at some place reads, unless it was entered before."""
    first = _noted(around, f"{place}/function", now)
    is_edited = first is not None and first != now
    return Reading(now, is_edited, is_edited or _noted(around, f"{place}/python", PYTHON) != PYTHON)


def _noted(around: ActivationContext, key: str, now: str | None) -> str | None:
    """What was noted first under a key; if nothing was, what is noted now."""
    found = around.journal.find(key)
    if found is not None:
        return label_in(found)
    if now is not None:
        around.journal.note(key, lambda: label_record(now))
    return now
