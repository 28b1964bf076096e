"""Who is told of events while an execution goes on."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

from perdure import WorkflowEvent

logger = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[Any], object | Awaitable[object]]


class Listeners:
    """Functions that are told events, in the order in which they came. One that fails breaks nothing."""

    def __init__(self) -> None:
        self._listeners: dict[object, tuple[type[Any] | None, Listener]] = {}

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def add(self, kind: type[Any] | None, listener: Listener) -> Callable[[], None]:
        """Tell this function of events with such data, or of all; what is returned ends that."""
        key = object()
        self._listeners[key] = (kind, listener)

        def end() -> None:
            self._listeners.pop(key, None)

        return end

    async def tell(self, event: WorkflowEvent[Any]) -> None:
        """Tell all whom it concerns."""
        for kind, listener in list(self._listeners.values()):
            if kind is None:
                await _told(listener, event)
            elif isinstance(event.data, kind):
                await _told(listener, event.data)


async def _told(listener: Listener, what: object) -> None:
    try:
        outcome = listener(what)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:
        logger.exception("a subscriber of an agent workflow has failed at %s; the execution goes on", _named(what))


def _named(what: object) -> str:
    """An event without what is in it: texts of users and models have no place in a log."""
    if isinstance(what, WorkflowEvent):
        event = cast("WorkflowEvent[Any]", what)
        data: object = event.data
        kind, concerns = f"{event.type} ({type(data).__name__})", getattr(data, "node_id", event.executor_id)
    else:
        kind, concerns = type(what).__name__, getattr(what, "node_id", None)
    return kind if concerns is None else f"{kind} of {concerns!r}"
