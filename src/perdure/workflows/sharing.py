"""What executors were given in common across the border of a sub-workflow: it can't be one there, and that is said."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perdure.graph import Graph

logger = logging.getLogger(__name__)


def warn_of_separation(graph: Graph) -> None:
    """Warn of executors that were given the same session, in a graph and in a sub-workflow of it.

    The state of a sub-workflow is its own, so each of the two graphs goes on with a session of its own.
    """
    here = {id(what): executor_id for executor_id, what in _given(graph)}
    for child_id, child in graph.children.items():
        for executor_id, what in _given_inside(child):
            if id(what) in here:
                logger.warning(
                    "executor %r and executor %r inside of sub-workflow %r were given one session, and will have one "
                    "each: the state of a sub-workflow is its own",
                    here[id(what)],
                    executor_id,
                    child_id,
                )


def _given(graph: Graph) -> Iterator[tuple[str, object]]:
    for executor_id, executor in graph.executors.items():
        shared = executor.shares()
        if shared is not None:
            yield executor_id, shared.what


def _given_inside(graph: Graph) -> Iterator[tuple[str, object]]:
    yield from _given(graph)
    for child in graph.children.values():
        yield from _given_inside(child)
