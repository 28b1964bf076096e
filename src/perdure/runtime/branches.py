"""Where in a function something is called: which of the tasks that work side by side, and how many came before it.

Tasks that a function begins (`asyncio.gather`, a task group) are numbered when they are made, those of one name apart
from those of another: which of them is the faster one does not matter, nor what libraries begin beside them. The loop
tells of a task that is made through its task factory.

Where it does not (a plain handler, a task with a context of its own, and what the engine itself begins), a task is
numbered as it comes to the first thing that is recorded: a step, a question, a sleep, a turn of an agent. A loop runs
tasks first in the order in which they were made, so only one that waits for something else before that is overtaken.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from perdure.graph.current import current_activation

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

_ENGINE = f"{Path(__file__).parents[1]}{os.sep}"


@dataclass(slots=True)
class Branch:
    """One task of a function, or of a step that calls others."""

    owner: object
    """The activation that the function belongs to: it may run another workflow, whose handlers are no part of it."""
    task: asyncio.Task[Any] | None
    is_of_function: bool
    path: str = ""
    children: Counter[str] = field(default_factory=Counter[str])
    """By name: how many tasks it has begun."""
    calls: Counter[str] = field(default_factory=Counter[str])

    def begins(self, task: asyncio.Task[Any] | None, name: str = "") -> Branch:
        """A task that this one has begun, with the next number of its name."""
        number = self.children[name]
        self.children[name] += 1
        last = f"{name}:{number}" if name else str(number)
        return Branch(self.owner, task, self.is_of_function, f"{self.path}.{last}" if self.path else last)


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
    with _counting(Branch(current_activation(), _task(), is_of_function=True)), _told_of_tasks():
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
    number = branch.calls[name]
    branch.calls[name] += 1
    # The keys that users give don't begin with a space.
    return f" {branch.path}#{number}"


def branch_path(owner: object) -> str:
    """The task of the owner's function that this is called in; nothing in the one that the function itself runs in.

    In a plain handler it is always nothing: what is named after it there has other names. But the task is numbered.
    """
    branch = _here(owner)
    return branch.path if branch is not None and branch.is_of_function else ""


def task_path(owner: object) -> str:
    """The task of the owner's handler, function or not, that this is called in; nothing in the one it runs in."""
    branch = _here(owner)
    return "" if branch is None else branch.path


def is_begun_by(path: str, other: str) -> bool:
    """Whether a task, by its path, was begun by another one, or by one that this one has begun."""
    return path != other and (not other or path.startswith(f"{other}."))


def _here(owner: object) -> Branch | None:
    """The branch that is at work here. A task that comes to something for the first time is numbered."""
    branch = _branch.get()
    if branch is None or (owner is not None and branch.owner is not owner):
        if not isinstance(owner, Rooted):
            return None
        branch = owner.trunk
    return _in_this_task(branch)


def _in_this_task(branch: Branch) -> Branch:
    task = _task()
    if task is None or task is branch.task:
        return branch
    if branch.task is None:  # it was begun in a thread, and goes on in the loop; or it was begun just now
        branch.task = task
        return branch
    child = branch.begins(task)
    _branch.set(child)
    return child


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread
        return None


class _Numbering:
    """A task factory that numbers what functions begin, and makes tasks as the one before it does."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before
        self.functions = 0
        """How many functions are running."""

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        make = self.before or _made
        branch, name = _branch.get(), _name_of(coro)
        if branch is None or name is None or options.get("context") is not None:
            return make(loop, coro, **options)
        child = _in_this_task(branch).begins(None, name)
        context = copy_context()
        context.run(_branch.set, child)
        # Not every factory takes a context. All of them let a task begin with a copy of the one they are called in.
        child.task = task = context.run(make, loop, coro, **options)
        return task


def _made(loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> asyncio.Task[Any]:
    return asyncio.Task(coro, loop=loop, **options)


def _name_of(coro: Any) -> str | None:
    """What a task is called after; None for what the engine itself begins, which differs from life to life."""
    code = getattr(coro, "cr_code", None)
    if code is None:
        return "awaitable"
    return None if code.co_filename.startswith(_ENGINE) else code.co_name


@contextmanager
def _told_of_tasks() -> Generator[None]:
    """Let the loop tell of the tasks that are made, as long as a function is running."""
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    if not isinstance(factory, _Numbering):
        factory = _Numbering(factory)
        loop.set_task_factory(factory)
    factory.functions += 1
    try:
        yield
    finally:
        factory.functions -= 1
        # Somebody else's may have come in front of it meanwhile; that one is not ours to take away.
        if not factory.functions and loop.get_task_factory() is factory:
            loop.set_task_factory(factory.before)
