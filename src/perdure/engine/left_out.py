"""Steps that were recorded, and that a handler which was entered again did not come to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from perdure.engine.journal import STEP

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure.engine.journal import Journal


def steps_left_out(journal: Journal, home: str, begun: Collection[str], *, is_entered_again: bool) -> list[str]:
    """The names of an activation's steps that are recorded and were not begun, but for steps inside of others."""
    recorded = journal.steps_before(home, is_entered_again=is_entered_again)
    if not recorded:
        return []
    inner = (place.removeprefix(f"{home}{STEP}") for place in recorded if place not in begun)
    return sorted({unquote(re.split("[#@]", each)[0]) for each in inner if "/" not in each})


def warning_of(executor_id: str, names: Collection[str]) -> str:
    """What is told of them: what they did may have been done once more instead."""
    return (
        f"executor {executor_id!r} has returned without coming to what was recorded for it: {', '.join(names)}; "
        "let what it does depend on its message, state, steps and answers alone"
    )
