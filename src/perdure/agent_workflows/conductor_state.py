"""What the conductor keeps of an execution, in its own scope: how far it is, and of each node what it has put out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from perdure import register_type
from perdure.agent_workflows.definition import RESULT
from perdure.agent_workflows.progress import Progress

if TYPE_CHECKING:
    from perdure import State

T = TypeVar("T")

_PROGRESS: Final = "progress"
_RECORD: Final = "record"
_REQUEST: Final = "request"
_WAYS: Final = "ways"
_TERMS: Final = "terms"
_ACTING: Final = "acting "
_VISITS: Final = "visits "
_SAID: Final = "said "
_TASK: Final = "task "
_THREAD: Final = "thread "


@dataclass(frozen=True, slots=True)
class Acting:
    """A node that has a task: who acts (itself, or who stands in for it), for which time, since when."""

    node_id: str
    actor: str
    visit: int = 0
    since: str = ""
    error: str | None = None
    """Of a fallback: what has gone wrong before."""


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an execution beside what decides who acts."""

    execution_id: str
    begun_at: str
    digest: str = ""
    """Of the edges that it has begun with."""
    terms: str = ""
    """The digest of their conditions, as they were last."""
    forked_from: tuple[str, ...] = ()
    """The executions that it is a fork of, the first of them first."""
    waiting: tuple[Acting, ...] = ()
    """Who is to stand in for a node, and acts for another one first."""
    failures: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    """By who has acted, and for whom: why it has failed."""
    layers: Mapping[str, str] = field(default_factory=dict[str, str])
    """By number: since when the layers are at work that have begun and not ended."""
    unchanged: tuple[tuple[str, str], ...] = ()
    """The edges that went back, and since then nothing has changed in their loop."""
    unread: Mapping[str, str] = field(default_factory=dict[str, str])
    """By node that could not be given a task: what is not there that it reads."""
    is_called: bool = False
    """Whether the conductor has called itself, to go on in a superstep of its own."""
    is_finished: bool = False

    @property
    def failed(self) -> dict[str, str]:
        """By who has acted: why it has failed."""
        return {actor: "; ".join(dict.fromkeys(errors.values())) for actor, errors in self.failures.items()}


@dataclass(frozen=True, slots=True)
class Said:
    """What a node has put out last."""

    outputs: Mapping[str, Any]
    text: str = ""

    def without(self, keys: Collection[str]) -> dict[str, Any]:
        """The outputs without some of them. A value as a whole has them inside of it, too."""
        whole = self.outputs.get(RESULT)
        kept = {key: value for key, value in self.outputs.items() if key not in keys}
        if RESULT in kept and isinstance(whole, Mapping):
            inside = cast("Mapping[str, Any]", whole)
            kept[RESULT] = {key: value for key, value in inside.items() if key not in keys}
        return kept


@dataclass(frozen=True, slots=True)
class Task:
    """What a node was given last. `is_in_thread` if its conversation had it already."""

    text: str
    is_in_thread: bool = False
    digest: str | None = None


for _class in (Acting, Record, Said, Task):
    register_type(_class, name=f"perdure:AgentWorkflow{_class.__name__}")


class Book:
    """The state of one execution while a handler is at work. `close` keeps what has changed."""

    def __init__(self, scope: State) -> None:
        self._scope = scope
        record: Record | None = scope.get(_RECORD)
        self._record = record
        kept: str | None = scope.get(_PROGRESS)
        self.progress = Progress() if kept is None else Progress.of_text(kept)

    def open(self, record: Record, request: Any, *, ways: tuple[str, ...], terms: Mapping[str, str]) -> None:
        """Begin an execution: what an earlier one has left is forgotten, but for how often nodes acted."""
        for key in self._keys(_SAID, _TASK, _THREAD):
            self._scope.delete(key)
        self.progress = Progress()
        self._record = record
        self._scope.set(_REQUEST, request)
        self._scope.set(_WAYS, ways)
        self._scope.set(_TERMS, dict(terms))

    def _keys(self, *prefixes: str) -> list[str]:
        keys = self._scope.keys()
        return [key for key in keys if key.startswith(prefixes)]

    @property
    def ways(self) -> tuple[str, ...]:
        """The edges of the plan that the execution has begun with."""
        return self._scope.get(_WAYS, ())

    @property
    def terms(self) -> Mapping[str, str]:
        """The conditions of its edges, as they were last."""
        return self._scope.get(_TERMS, {})

    def agree(self, digest: str, terms: Mapping[str, str]) -> None:
        """Keep that the conditions are others now."""
        self._scope.set(_TERMS, dict(terms))
        self.note(terms=digest)

    @property
    def has_begun(self) -> bool:
        """Whether there is an execution, be it at its end."""
        return self._record is not None

    @property
    def is_busy(self) -> bool:
        """Whether an execution has begun and not ended."""
        return self._record is not None and not self._record.is_finished

    @property
    def record(self) -> Record:
        """What is known of the execution."""
        assert self._record is not None, "an execution has begun"
        return self._record

    def note(self, **changes: Any) -> None:
        """Change the record."""
        self._record = replace(self.record, **changes)

    def fail(self, acting: Acting, error: str) -> None:
        """Keep that whoever acts for a node has failed."""
        failures = self.record.failures
        self.note(failures={**failures, acting.actor: {**failures.get(acting.actor, {}), acting.node_id: error}})

    def succeed(self, acting: Acting) -> None:
        """Forget a failure of an earlier pass. A node that another stands in for has failed all the same."""
        if acting.actor == acting.node_id:
            self.forgive(acting.node_id)
        elif acting.actor in self.record.failures:
            self._forget(lambda actor, node_id: (actor, node_id) == (acting.actor, acting.node_id))

    def forgive(self, node_id: str) -> None:
        """Forget all failures of who acted for a node."""
        if self.record.failures:
            self._forget(lambda _, failed: failed == node_id)

    def _forget(self, is_forgotten: Callable[[str, str], bool]) -> None:
        left = {
            actor: {node_id: error for node_id, error in errors.items() if not is_forgotten(actor, node_id)}
            for actor, errors in self.record.failures.items()
        }
        self.note(failures={actor: errors for actor, errors in left.items() if errors})

    def close(self) -> None:
        """Keep how far it is."""
        self._scope.set(_PROGRESS, self.progress.to_text())
        self._scope.set(_RECORD, self.record)

    @property
    def request(self) -> Any:
        """What the execution was begun with."""
        return self._scope.get(_REQUEST)

    def acting(self, actor: str) -> Acting | None:
        """For whom an actor acts."""
        return self._scope.get(f"{_ACTING}{actor}")

    def visits(self, actor: str) -> int:
        """How often an actor has acted."""
        return self._scope.get(f"{_VISITS}{actor}", 0)

    def employ(self, acting: Acting) -> None:
        """Keep for whom an actor acts, and that it does so once more."""
        self._scope.set(f"{_ACTING}{acting.actor}", acting)
        self._scope.set(f"{_VISITS}{acting.actor}", acting.visit + 1)

    def dismiss(self, actor: str) -> None:
        """Keep that an actor acts for nobody."""
        if self.acting(actor) is not None:
            self._scope.delete(f"{_ACTING}{actor}")

    def said(self, node_id: str) -> Said | None:
        """What a node has put out last."""
        return self._scope.get(f"{_SAID}{node_id}")

    def hear(self, node_id: str, said: Said | None) -> None:
        """Keep what a node has put out; with None, forget it."""
        if said is not None:
            self._scope.set(f"{_SAID}{node_id}", said)
        elif self.said(node_id) is not None:
            self._scope.delete(f"{_SAID}{node_id}")

    def speakers(self) -> list[str]:
        """The nodes of which something is kept that they have put out."""
        return [key.removeprefix(_SAID) for key in self._keys(_SAID)]

    def task(self, node_id: str) -> Task | None:
        """What a node was given last."""
        return self._scope.get(f"{_TASK}{node_id}")

    def give(self, node_id: str, task: Task) -> None:
        """Keep what a node is given."""
        self._scope.set(f"{_TASK}{node_id}", task)

    def take_back(self, node_id: str) -> None:
        """Forget what a node was given."""
        if self.task(node_id) is not None:
            self._scope.delete(f"{_TASK}{node_id}")

    def threads(self) -> list[str]:
        """The threads that this execution has joined."""
        return [key.removeprefix(_THREAD) for key in self._keys(_THREAD)]

    def sequence(self, thread_id: str) -> int | None:
        """The number of the last event of a thread, as far as this execution knows; None if it has not joined."""
        return self._scope.get(f"{_THREAD}{thread_id}")

    def know(self, thread_id: str, sequence: int) -> None:
        """Keep the number of the last event of a thread."""
        self._scope.set(f"{_THREAD}{thread_id}", sequence)


class Heard(Mapping[str, T]):
    """Something of what each node has put out, read when it is asked for."""

    def __init__(self, book: Book, what: Callable[[Said], T]) -> None:
        self._book = book
        self._what = what

    def __getitem__(self, node_id: str) -> T:
        said = self._book.said(node_id)
        if said is None:
            raise KeyError(node_id)
        return self._what(said)

    def __iter__(self) -> Iterator[str]:
        return iter(self._book.speakers())

    def __len__(self) -> int:
        return len(self._book.speakers())
