"""`Subject`: the workflow that the suite is to disturb, and how it is talked to."""

from __future__ import annotations

import dataclasses
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.checkpoint import InterruptedStep, StepDecision
from perdure.errors import RunNotFoundError
from perdure.events import CheckpointInfo, WorkflowErrorDetails, WorkflowEvent
from perdure.storage import StoreStorage, open_storage
from perdure.testing.resume import effects
from perdure.testing.resume.kill_points import with_points
from perdure.testing.resume.storage_kinds import SHIPPED, Kind

if TYPE_CHECKING:
    from collections.abc import AsyncIterable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.storage import PendingRequest
    from perdure.testing.resume.storage_kinds import Storages
    from perdure.workflows import Workflow

RUN_ID: Final = "subject"


def _always_true(request: PendingRequest) -> Any:
    del request
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workflow to be killed and resumed.

    `build` makes a new instance of the workflow, without a storage. `message` begins the run, each of `turns` is a
    further turn once it is idle. `answer` answers what it asks; `rival` answers as the n-th of several who answer the
    same request at once, each something else (without it, a bool's opposite). `storages` are your own, by name, each
    opened in a directory, or named by a URL: the suite runs on them instead of those that ship with perdure. For one
    that has more than the files of its directory, give a `Kind`.

    The outputs must depend on nothing but messages, state, steps and answers. `has_fixed_log=False` says that the
    order of supersteps depends on the time, as it does where timers run beside other work: then the log of a disturbed
    run is not compared with that of an undisturbed one.
    """

    build: Callable[[], Workflow]
    message: Any
    turns: tuple[Any, ...] = ()
    answer: Callable[[PendingRequest], Any] = _always_true
    rival: Callable[[PendingRequest, int], Any] | None = None
    storages: Storages = field(default_factory=lambda: SHIPPED)
    has_fixed_log: bool = True

    def kind(self, name: str) -> Kind:
        """The kind of storage of a name: one of `storages`, or one that ships."""
        found = self.storages.get(name) or SHIPPED[name]
        return found if isinstance(found, Kind) else Kind(found)

    def open(self, kind: str, directory: Path) -> StoreStorage:
        """A storage, with points to die at, that trusts what the workflow trusts."""
        made = self.kind(kind).open(directory)
        # That of a URL is shared by all of this process, who need no points.
        storage = with_points(StoreStorage(open_storage(made).store) if isinstance(made, str) else made)
        self.build().blueprint.bound(storage)
        return storage

    def answer_to(self, request: PendingRequest) -> Any:
        """The answer. A step that was cut off is simply done again."""
        return StepDecision("rerun") if isinstance(request.data, InterruptedStep) else self.answer(request)

    def rivals_answer_to(self, request: PendingRequest, number: int) -> Any:
        """What the n-th of several answers."""
        if self.rival is not None:
            return self.rival(request, number)
        answer = self.answer_to(request)
        return not answer if isinstance(answer, bool) and number % 2 else answer


_LEFT_OPEN = frozenset({"executor_suspended", "executor_failed"})


class Drive:
    """Drives a run of the subject."""

    def __init__(self, subject: Subject, storage: StoreStorage, run_id: str) -> None:
        self._subject = subject
        self._storage = storage
        self._run_id = run_id
        self._workflow: Workflow = subject.build()

    async def to_the_end(self) -> None:
        """Begin the run, or go on with it, until all turns are over and nothing is asked."""
        await self.to_a_request()
        while await self._given():
            await self.go_on()

    async def fork_to_the_end(self) -> None:
        """Go on with a fork until it rests and nothing is asked."""
        await self.go_on()
        while await self._answered():
            await self.go_on()

    async def to_a_request(self) -> None:
        """Begin the run, or go on with it, until it rests."""
        await _read(self._call(message=self._subject.message))

    async def go_on(self, responses: dict[str, Any] | None = None) -> None:
        """Go on until the run rests."""
        await _read(self._call(responses=responses))

    def _call(self, **given: Any) -> AsyncIterable[WorkflowEvent[Any]]:
        return self._workflow.run(run_id=self._run_id, stream=True, checkpoint_storage=self._storage, **given)

    async def _given(self) -> bool:
        """Give the run what it waits for; False if it has had everything."""
        if await self._answered():
            return True
        begun = [event async for event in self._storage.events(self._run_id) if event.type == "started"]
        left = self._subject.turns[len(begun) - 1 :]
        if not left:
            return False
        await self._storage.send(self._run_id, left[0], message_id=f"turn-{len(begun)}")
        return True

    async def _answered(self) -> bool:
        requests = await self._storage.requests(self._run_id)
        for request in requests:
            answers = {request.request_id: self._subject.answer_to(request)}
            if _is_answered_by_running(request):
                await self.go_on(answers)
            else:
                await self._storage.respond(self._run_id, answers)
        return bool(requests)


def _is_answered_by_running(request: PendingRequest) -> bool:
    """Half of the requests are answered by the call that goes on, half through the store: the same in each life."""
    return zlib.crc32(repr(request.data).encode()) % 2 == 0


async def _read(events: AsyncIterable[WorkflowEvent[Any]]) -> None:
    async for event in events:
        if event.type == "superstep_started":
            effects.begin_superstep()
        fact = event.data if event.type == "sub_workflow" else event
        if fact.type in _LEFT_OPEN:
            effects.leave_open(event.path, fact.executor_id or "")


_ATTEMPT = re.compile(r"attempt \d+ of \d+ failed")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?")
_PROCESS = re.compile(r"process \d+ on [^\s'\"]+")


@dataclass(frozen=True, slots=True)
class Look:
    """A run as it stands: its numbered log, its outputs in order, the state of its head, what still waits.

    Ids that chance has chosen, moments and the names of processes are left out.
    """

    log: Sequence[str] = ()
    course: Sequence[str] = ()
    """The log without its numbers, and without attempts that failed: how often the world refuses is no fact of it."""
    outputs: Sequence[str] = ()
    state: str = ""
    checkpoints: int = 0
    questions: int = 0
    """How often somebody had to decide about a step that was cut off."""
    waits: int = 0
    """How often it was woken: a wait that was over when the next life came to it is none."""

    @classmethod
    async def at(cls, storage: StoreStorage, run_id: str) -> Look:
        """Look at a run, decoding every checkpoint of it. Raises WorkflowCheckpointException if one can't be."""
        events = await _events(storage, run_id)
        checkpoints = await storage.list_checkpoints(run_id=run_id)
        names = _names(events, run_id)
        states = [
            _cleaned(_shown((each.state, each.messages, each.pending_request_info_events)), names)
            for each in checkpoints
        ]
        return cls(
            log=tuple(f"{event.seq} {_cleaned(_fact(event), names)}" for event in events),
            course=tuple(_cleaned(_fact(event), names) for event in _without_attempts(events)),
            outputs=tuple(_cleaned(_shown(e.data), names) for e in events if e.type in {"output", "intermediate"}),
            state=states[-1] if states else "",
            checkpoints=len(states),
            questions=sum(isinstance(event.data, InterruptedStep) for event in events),
            waits=sum(event.type == "woken" for event in events),
        )

    def differs(self, expected: Look, *, compares_log: bool = True) -> str | None:
        """What is other than expected; None if nothing is.

        A run that was asked or has waited another number of times has gone the same way in other supersteps.
        """
        pairs = [("output", self.outputs, expected.outputs), ("state", (self.state,), (expected.state,))]
        if compares_log and (self.questions, self.waits) == (expected.questions, expected.waits):
            pairs.append(("event", self.course, expected.course))
        return next((told for name, mine, other in pairs if (told := _difference(name, mine, other))), None)

    def is_continued_by(self, later: Look) -> str | None:
        """Whether the log of a later look begins with this one; otherwise what is not so."""
        return _difference("event", later.log[: len(self.log)], self.log)

    def gap(self) -> str | None:
        """Where the numbers of the log are not 1, 2, 3 and so on; None if they are."""
        numbers = [line.partition(" ")[0] for line in self.log]
        return _difference("number", numbers, [str(number) for number in range(1, len(numbers) + 1)])


async def _events(storage: StoreStorage, run_id: str) -> list[WorkflowEvent[Any]]:
    """The log. One who died before the first commit has left none."""
    try:
        return [event async for event in storage.events(run_id)]
    except RunNotFoundError:
        return []


def _without_attempts(events: Sequence[WorkflowEvent[Any]]) -> list[WorkflowEvent[Any]]:
    """The events without the warnings about failed attempts, the failures before them and the calls after them."""
    failed = {n for n, event in enumerate(events) if event.type == "warning" and _ATTEMPT.search(str(event.data))}
    before = {n - 1 for n in failed if events[n - 1].type == "executor_failed"}
    after = {n + 1 for n in failed if n + 1 < len(events) and events[n + 1].type == "executor_invoked"}
    return [event for n, event in enumerate(events) if n not in failed | before | after]


def _difference(name: str, mine: Sequence[str], expected: Sequence[str]) -> str | None:
    for number, (one, other) in enumerate(zip(mine, expected, strict=False), start=1):
        if one != other:
            return f"{name} {number} is {one}, expected {other}"
    if len(mine) == len(expected):
        return None
    longer, verb = (mine, "is one too many") if len(mine) > len(expected) else (expected, "is missing")
    at = min(len(mine), len(expected))
    return f"{name} {at + 1} {verb}: {longer[at]}"


def _names(events: Iterable[WorkflowEvent[Any]], run_id: str) -> Mapping[str, str]:
    """Names for what chance has named: the run, and its requests in their order."""
    asked = dict.fromkeys(event.request_id for event in events if event.type == "request_info")
    return {**{request_id: f"request-{number}" for number, request_id in enumerate(asked, 1)}, run_id: "run"}


def _cleaned(text: str, names: Mapping[str, str]) -> str:
    for found, name in names.items():
        text = text.replace(found, name)
    return _PROCESS.sub("(process)", _MOMENT.sub("(moment)", text))


def _fact(event: WorkflowEvent[Any]) -> str:
    where = "/".join((*event.path, event.executor_id or ""))
    iteration = "" if event.iteration is None else f" superstep {event.iteration}"
    request = f" {event.request_id}" if event.type == "request_info" else ""
    return f"{event.type} {where}{iteration}{request} {_shown(event.data)}".strip()


def _shown(value: object) -> str:
    """A value as text that does not depend on the order in which sets and mappings were made."""
    match value:
        case CheckpointInfo():
            return f"{value.checkpoint_id} after {value.previous_checkpoint_id}"
        case WorkflowErrorDetails():
            return f"{value.error_type}: {value.message}"
        case WorkflowEvent():
            return _fact(cast("WorkflowEvent[Any]", value))
        case dict():
            items = cast("dict[object, object]", value).items()
            return "{" + ", ".join(sorted(f"{_shown(key)}: {_shown(item)}" for key, item in items)) + "}"
        case set() | frozenset():
            return "{" + ", ".join(sorted(map(_shown, cast("set[object]", value)))) + "}"
        case list() | tuple():
            shown = ", ".join(map(_shown, cast("list[object]", value)))
            return f"[{shown}]" if isinstance(value, list) else f"({shown})"
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            members = [f"{each.name}={_shown(getattr(value, each.name))}" for each in dataclasses.fields(value)]
            return f"{type(value).__name__}({', '.join(members)})"
        case _:
            return repr(value)
