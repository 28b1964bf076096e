"""Where in a function something is called: which of the tasks that work side by side, and how many came before it.

Tasks that a function begins (`asyncio.gather`, a task group) are numbered when they are made, those of one name apart
from those of another: which of them is the faster one does not matter, nor what libraries begin beside them. The loop
tells of a task that is made through its task factory.

Where it does not (a plain handler, and what the engine itself begins), a task is numbered as it comes to the first
thing that is recorded: a step, a question, a sleep, a turn of an agent. A loop runs tasks first in the order in which
they were made, so only one that waits for something else before that is overtaken.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections import Counter
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable
from weakref import WeakKeyDictionary, WeakSet, ref

from perdure.data import mutable
from perdure.graph import current_activation, of_function

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

_AS_COMPLETED = asyncio.as_completed.__code__
_FRAMES_MAX = 7
"""From the factory to `asyncio.as_completed`."""
_ENGINE = f"{Path(__file__).parents[1]}{os.sep}"


@mutable
class Branch:
    """One task of a function, or of a step that calls others."""

    owner: object
    """The activation that the function belongs to: it may run another workflow, whose handlers are no part of it."""
    task: ref[asyncio.Task[Any]] | None
    """Weak: a task knows its context, and so its branch. Both would live on until garbage is collected."""
    is_of_function: bool
    path: str = ""
    children: Counter[str] = field(default_factory=Counter[str])
    """By name: how many tasks it has begun."""
    calls: Counter[str] = field(default_factory=Counter[str])
    reserved: dict[int, Branch] = field(default_factory=dict[int, "Branch"])
    """By coroutine: those that were given together, and are begun in any order."""
    tasks: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet[asyncio.Task[Any]])
    """All tasks that the function has begun, whichever of them did."""

    def begins(self, task: asyncio.Task[Any] | None, name: str = "") -> Branch:
        """A task that this one has begun, with the next number of its name."""
        number = self.children[name]
        self.children[name] += 1
        last = f"{name}:{number}" if name else str(number)
        path = f"{self.path}.{last}" if self.path else last
        return Branch(self.owner, _weak(task), self.is_of_function, path, tasks=self.tasks)

    def begins_of(self, together: Sequence[object], coro: object) -> Branch:
        """The same for one of several that were given together, whichever of them is begun first."""
        if id(coro) not in self.reserved:
            for each in together:
                if inspect.iscoroutine(each) and (name := _name_of(each)) is not None:
                    self.reserved[id(each)] = self.begins(None, name)
        return self.reserved.pop(id(coro))


@runtime_checkable
class Rooted(Protocol):
    """An activation, which has a trunk."""

    @property
    def trunk(self) -> Branch:
        """Where the counting of its handler begins."""
        ...

    @property
    def tasks(self) -> WeakSet[asyncio.Task[Any]]:
        """The tasks that functions have begun which are part of its handler."""
        ...


_branch: ContextVar[Branch | None] = ContextVar("perdure_branch", default=None)
_known: WeakKeyDictionary[asyncio.Task[Any], Branch] = WeakKeyDictionary()
"""By task: of those that were given a context of their own, it says nothing."""
_numbered: ContextVar[int] = ContextVar("perdure_numbered", default=0)
"""Whose task is being made: a factory that somebody has put before ours may end up with another one of ours."""


def trunk_of(owner: object, task: asyncio.Task[Any] | None) -> Branch:
    """Where the counting begins of a plain handler, which was entered in this task."""
    return Branch(owner, _weak(task), is_of_function=False)


@contextmanager
def trunk() -> Generator[None]:
    """Begin to count: a function, or one attempt at a step of it, is entered."""
    owner = current_activation()
    branch = Branch(owner, _weak(_task()), is_of_function=True)
    if isinstance(owner, Rooted):
        branch.tasks = owner.tasks
    with of_function(owner), _counting(branch), _told_of_tasks():
        yield


@contextmanager
def inner_trunk() -> Generator[None]:
    """Begin to count anew inside of a step, if a function has called it."""
    around = _branch.get()
    with _counting(None if around is None else Branch(around.owner, _weak(_task()), around.is_of_function)):
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
    if task is None or (branch.task is not None and task is branch.task()):
        return branch
    if branch.task is None:  # it was begun in a thread, and goes on in the loop; or it was begun just now
        branch.task = ref(task)
        return branch
    known = _known.get(task)
    if known is not None and known.owner is branch.owner:
        return known
    child = branch.begins(task)
    _branch.set(child)
    return child


def _task() -> asyncio.Task[Any] | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread
        return None


def _weak(task: asyncio.Task[Any] | None) -> ref[asyncio.Task[Any]] | None:
    return None if task is None else ref(task)


class _Numbering:
    """A task factory that numbers what functions begin, and makes tasks as the one before it does."""

    def __init__(self, before: Callable[..., Any] | None) -> None:
        self.before = before
        self.functions = 0
        """How many functions are running."""

    def __call__(self, loop: asyncio.AbstractEventLoop, coro: Any, **options: Any) -> Any:
        make = self.before or _made
        branch, name = _branch.get(), _name_of(coro)
        if branch is None or name is None or _numbered.get() == id(coro):
            return make(loop, coro, **options)
        if current_activation() is not branch.owner:  # a handler of another workflow, which the function runs
            return make(loop, coro, **options)
        here, together = _in_this_task(branch), _given_together(coro)
        child = here.begins(None, name) if together is None else here.begins_of(together, coro)
        context = copy_context()
        context.run(_branch.set, child)
        context.run(_numbered.set, id(coro))
        # Not every factory takes a context. All of them let a task begin with a copy of the one they are called in.
        task = context.run(make, loop, coro, **options)
        child.task = ref(task)
        child.tasks.add(task)
        _known[task] = child
        return task

    def __getattr__(self, name: str) -> Any:
        # Libraries look at a factory to find out whether its tasks begin eagerly.
        return getattr(self.before, name)


def _given_together(coro: object) -> Sequence[object] | None:
    """What `asyncio.as_completed` was given, if it is who makes the task: it does so in the order of a set."""
    frame = inspect.currentframe()
    for _ in range(_FRAMES_MAX):
        if frame is None or frame.f_code is _AS_COMPLETED:
            break
        frame = frame.f_back
    given = frame.f_locals.get("fs") if frame is not None and frame.f_code is _AS_COMPLETED else None
    if not isinstance(given, list | tuple):
        return None
    listed = cast("Sequence[object]", given)
    return listed if any(each is coro for each in listed) else None


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
