"""Predicates of edges: several as one, and what they are called."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.agent_workflows.definition import EdgeContext, Predicate


@dataclass(frozen=True, slots=True)
class AllOf:
    """A predicate that holds if all of its parts do. They are asked in order, up to the first that does not."""

    parts: tuple[Predicate, ...]

    async def __call__(self, context: EdgeContext) -> bool:
        """Whether all hold."""
        for part in self.parts:
            answer = part(context)
            if not (await answer if inspect.isawaitable(answer) else answer):
                return False
        return True


def all_of(*predicates: Predicate | None) -> Predicate | None:
    """The predicate that holds if all of these do; None if there is none of them."""
    parts = tuple(part for each in predicates for part in parts_of(each))
    return AllOf(parts) if len(parts) > 1 else next(iter(parts), None)


def parts_of(predicate: Predicate | None) -> tuple[Predicate, ...]:
    """The functions that a user has given, of which a predicate is made."""
    if predicate is None:
        return ()
    return predicate.parts if isinstance(predicate, AllOf) else (predicate,)


def name_of(predicate: Predicate) -> str | None:
    """What a function is called; None if it has no name, as a lambda has none."""
    name = getattr(predicate, "__name__", type(predicate).__name__)
    return name if name.isidentifier() else None
