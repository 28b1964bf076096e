"""Find records of steps, questions and sleeps that earlier versions wrote under another identity.

In an earlier scheme an unkeyed call was known by its position: `name#2` was the third call of its name in the handler's
own task. In a function, calls in subtasks were counted by task: `name@ branch:1#0` was the first call of its name in
the second task whose coroutine is called `branch`. Tasks are not numbered any more. So a call in a subtask is matched
by the digest of its arguments, and what is matched once tells which task of the earlier version this one is.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator, Sequence

_STEP = re.compile(r"/step/[^/#@]+(?P<rest>#\d+(~[^/]*)?|@%20[^/]*)(?=/|$)")
_OLD_SCOPE = re.compile(rf"{_STEP.pattern}$")
_WAIT = re.compile(r"/(?P<kind>ask|sleep)/(?P<rest> .*#\d+|\d+)(~[^/]*)?$")
_TASKS_MAX = 64


@dataclass(frozen=True, slots=True)
class _OldCall:
    """A call that an earlier version recorded: its key, the task it was made in, its number there."""

    key: str
    path: str
    number: int

    @property
    def order(self) -> tuple[tuple[tuple[int, str], ...], int, str]:
        """Return a sort key: of tasks with one name, the later one comes later."""
        elements = (each.rpartition(":") for each in self.path.split(".") if each)
        return tuple((int(number), name) for name, _, number in elements), self.number, self.key

    @property
    def task_name(self) -> str:
        """Return the name of the coroutine function that the task ran; nothing if it was not known."""
        return self.path.rpartition(".")[2].rpartition(":")[0]


def _old_call(key: str, rest: str) -> _OldCall:
    path, _, number = rest.rpartition("#")
    return _OldCall(key, path.strip(), int(number))


class OldSteps:
    """Match the calls of one attempt at an activation with the records of an earlier version."""

    def __init__(self, activation_id: str, keys: Iterable[str]) -> None:
        self._calls: defaultdict[str, dict[str, _OldCall]] = defaultdict(dict)
        """By stem (the key up to the position), then by key."""
        for key in keys:
            for stem, call in _calls_in(activation_id, key):
                self._calls[stem].setdefault(call.key, call)
        self._scopes = {activation_id, *(stem.rpartition("/step/")[0] for stem in self._calls)}
        """The places of the handler and of steps in which an earlier version has called steps."""
        self._taken: set[str] = set()
        self._paths: WeakKeyDictionary[asyncio.Task[Any], str] = WeakKeyDictionary()
        self._counts: Counter[tuple[str, str]] = Counter()

    @property
    def is_empty(self) -> bool:
        """Return whether no earlier version has recorded anything of this activation."""
        return not self._calls

    def is_taken(self, key: str) -> bool:
        """Return whether a call has the record of this key."""
        return key in self._taken

    def step_in_own_task(self, stem: str, position: int, fits: Callable[[str], bool | None]) -> str | None:
        """Return the key of a call in the code's own task, which goes on under its position.

        `fits` returns whether a record has the same arguments; None if there is no record.
        """
        scope = stem.rpartition("/step/")[0]
        if scope not in self._scopes and not _OLD_SCOPE.search(scope):
            return None
        key = f"{stem}#{position}"
        if key not in self._taken and fits(key) is not False:
            return self._take(key)
        found = next((each for each in self._untaken(stem) if fits(each.key)), None)
        return None if found is None else self._take(found.key)

    def step_in_subtask(
        self, stem: str, task: asyncio.Task[Any] | None, fits: Callable[[str], bool | None]
    ) -> str | None:
        """Return the key of a call in a subtask: of its task if that is known, else one with the same arguments."""
        return self._in_subtask(stem, task, fits, lambda path, number: f"{stem}@{quote(f' {path}#{number}', safe='')}")

    def question_in_subtask(
        self, stem: str, task: asyncio.Task[Any] | None, fits: Callable[[str], bool | None]
    ) -> str | None:
        """Return the key of a question in a subtask."""
        found = self._in_subtask(stem, task, fits, lambda path, number: f"{stem} {path}#{number}")
        return found if found is not None and fits(found) else None

    def sleep_in_subtask(self, stem: str, task: asyncio.Task[Any] | None) -> str | None:
        """Return the key of a sleep in a subtask. Nothing but its task tells it from others."""
        calls = self._calls.get(stem, {})
        return self._in_subtask(stem, task, calls.__contains__, lambda path, number: f"{stem} {path}#{number}")

    def _in_subtask(
        self,
        stem: str,
        task: asyncio.Task[Any] | None,
        fits: Callable[[str], bool | None],
        make_key: Callable[[str, int], str],
    ) -> str | None:
        path = None if task is None else self._paths.get(task)
        if path is not None:
            key = make_key(path, self._counts[path, stem])
            if key not in self._taken and fits(key) is not False:
                self._counts[path, stem] += 1
                return self._take(key)
        found = self._best(stem, _name_of(task), fits)
        if found is None:
            return None
        if task is not None and found.path and path is None:
            self._paths[task] = found.path
        self._counts[found.path, stem] = found.number + 1
        return self._take(found.key)

    def _best(self, stem: str, task_name: str, fits: Callable[[str], bool | None]) -> _OldCall | None:
        left = list(self._untaken(stem))
        same = [each for each in left if each.task_name in {task_name, ""}]
        exact = next((each for each in same if fits(each.key)), None) or next(
            (each for each in left if fits(each.key)), None
        )
        # Without a record of its own, only the records inside of it show that there was such a call.
        return exact or next((each for each in same if each.path and fits(each.key) is None), None)

    def _untaken(self, stem: str) -> Iterator[_OldCall]:
        calls = sorted(self._calls.get(stem, {}).values(), key=lambda each: each.order)
        return (each for each in calls if each.key not in self._taken)

    def _take(self, key: str) -> str:
        self._taken.add(key)
        return key

    def take(self, key: str) -> None:
        """Note that a call has the record of this key."""
        self._taken.add(key)

    def task_paths(self, task: asyncio.Task[Any] | None) -> Sequence[str]:
        """Return the paths that the task may have had in an earlier version, the likeliest first."""
        if self.is_empty or task is None:
            return ()
        if task in self._paths:
            return (self._paths[task],)
        name = _name_of(task)
        known = {each.path for calls in self._calls.values() for each in calls.values() if each.path}
        alike = sorted(path for path in known if path.rpartition(".")[2].rpartition(":")[0] in {name, ""})
        guesses = [text for number in range(_TASKS_MAX) for text in (f"{name}:{number}", str(number))]
        return tuple(dict.fromkeys([*alike, *guesses]))

    def note_task_path(self, task: asyncio.Task[Any], path: str) -> None:
        """Remember which task of the earlier version this one is."""
        self._paths.setdefault(task, path)


def _calls_in(activation_id: str, key: str) -> Iterator[tuple[str, _OldCall]]:
    """Find the calls that a key belongs to: that of the record itself, and those of the steps around it."""
    start = len(activation_id)
    for match in _STEP.finditer(key, start):
        rest = match["rest"].partition("~")[0]
        place = key[: match.end()]
        yield key[: match.start("rest")], _old_call(place, rest if rest.startswith("#") else unquote(rest[1:]))
    wait = _WAIT.search(key, start)
    # Sleeps in the code's own task are counted as ever.
    if wait is not None and not (wait["kind"] == "sleep" and wait["rest"].isdigit()):
        rest = wait["rest"]
        yield key[: wait.start("rest")], _old_call(key, f"#{rest}" if rest.isdigit() else rest)


def _name_of(task: asyncio.Task[Any] | None) -> str:
    return "" if task is None else str(getattr(task.get_coro(), "__name__", ""))
