"""The keywords of a call of `run` that are no options: they are the run's own, unless one is a slip."""

from __future__ import annotations

import inspect
import logging
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from perdure.workflows import Workflow

if TYPE_CHECKING:
    from collections.abc import Iterable

logger = logging.getLogger(__name__)

_OPTIONS = frozenset(inspect.signature(Workflow.run).parameters)
_NEAR = 0.85
"""How much a keyword has to be like an option to be taken for a slip."""


def own_keywords(options: dict[str, Any], workflow: Workflow, *, takes_all: bool) -> dict[str, Any]:
    """The keywords that are no options, taken out of these. Raises TypeError for one that was meant to be one.

    `takes_all` says whether the function has a parameter for any of them.
    """
    own = {name: options.pop(name) for name in list(options) if name not in _OPTIONS}
    if not takes_all:
        _require_no_slip(own, workflow.name)
    has_storage = workflow.checkpoint_storage is not None or options.get("checkpoint_storage") is not None
    if own and options.get("run_id") is not None and not has_storage:
        logger.warning(
            "run %r of workflow %r has no checkpoint_storage and is kept by this instance alone; %s are taken for "
            "keywords of the run's own",
            options["run_id"],
            workflow.name,
            ", ".join(map(repr, own)),
        )
    return own


def _require_no_slip(own: Iterable[str], workflow_name: str) -> None:
    """Without a ** parameter nobody may ever look at them, and the option that was meant would be missing."""
    for name in own:
        near = get_close_matches(name, _OPTIONS, n=1, cutoff=_NEAR)
        if near:
            raise TypeError(
                f"run of workflow {workflow_name!r} has no option {name!r}: did you mean {near[0]!r}? For a keyword of "
                "the run's own choose another name, or give the function a ** parameter"
            )
