"""Where in a function something is called: which of the tasks that work side by side, and how many came before it.

Tasks that a function begins (`asyncio.gather`, a task group) are numbered as they come to the first thing that is
recorded: a step, a question, a sleep, a turn of an agent. A loop runs tasks first in the order in which they were made,
so it does not matter which of them is the faster one. Only one that waits for something else before that may be
overtaken.
"""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from perdure.graph.current import current_activation

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(slots=True)
class Branch:
    """One task of a function, or of a step that calls others."""

    owner: object
    """The activation that the function belongs to: it may run another workflow, whose handlers are no part of it."""
    task: asyncio.Task[Any] | None
    is_of_function: bool
    path: str = ""
    children: int = 0
    calls: dict[str, int] = field(default_factory=dict[str, int])


@runtime_checkable
class Rooted(Protocol):
    """An activation, which has a trunk."""

    @property
    def trunk(self) -> Branch:
        """Where the counting of its handler begins."""
        ...


_branch: ContextVar[Branch | None] = ContextVar("perdure_branch", default=None)


def trunk_of(owner: object, task: asyncio.Task[Any] | None) -> Branch:
    """Where the counting begins of a plain handler, which was entered in this task."""
    return Branch(owner, task, is_of_function=False)


@contextmanager
def trunk() -> Generator[None]:
    """Begin to count: a function, or one attempt at a step of it, is entered."""
    with _counting(Branch(current_activation(), _task(), is_of_function=True)):
        yield


@contextmanager
def inner_trunk() -> Generator[None]:
    """Begin to count anew inside of a step, if a function has called it."""
    around = _branch.get()
    with _counting(None if around is None else Branch(around.owner, _task(), around.is_of_function)):
        yield


@contextmanager
def _counting(branch: Branch | None) -> Generator[None]:
    token = _branch.set(branch)
    try:
        yield
    finally:
        _branch.reset(token)


def branch_place(name: str, owner: object = None) -> str | None:
    """Names the next call of something in this task; None in the task that the function itself runs in.

    None, too, if it is not a function of this owner that is running here.
    """
    branch = _here(owner)
    if branch is None or not branch.path:
        return None
    number = branch.calls.get(name, 0)
    branch.calls[name] = number + 1
    # The keys that users give don't begin with a space.
    return f" {branch.path}#{number}"


def branch_path(owner: object) -> str:
    """The task of the owner's function that this is called in; nothing in the one that the function itself runs in.

    In a plain handler it is always nothing: what is named after it there has other names. But the task is numbered.
    """
    branch = _here(owner)
    return branch.path if branch is not None and branch.is_of_function else ""


def _here(owner: object) -> Branch | None:
    """The branch that is at work here. A task that comes to something for the first time is numbered."""
    branch = _branch.get()
    if branch is None or (owner is not None and branch.owner is not owner):
        if not isinstance(owner, Rooted):
            return None
        branch = owner.trunk
    task = _task()
    if task is None or task is branch.task:
        return branch
    if branch.task is None:  # it was begun in a thread, and goes on in the loop
        branch.task = task
        return branch
    return _branched_off(branch, task)


def _branched_off(parent: Branch, task: asyncio.Task[Any]) -> Branch:
    path = f"{parent.path}.{parent.children}" if parent.path else str(parent.children)
    branch = Branch(parent.owner, task, parent.is_of_function, path)
    parent.children += 1
    _branch.set(branch)
    return branch


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread
        return None
