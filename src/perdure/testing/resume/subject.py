"""`Subject`: the workflow under test, and its inputs and answers."""

from __future__ import annotations

import dataclasses
import re
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.checkpoint import InterruptedStep, StepDecision
from perdure.errors import RunNotFoundError
from perdure.events import CheckpointInfo, StepInfo, SuperstepInfo, WorkflowErrorDetails, WorkflowEvent
from perdure.storage import PendingRequest, StoreStorage, open_storage
from perdure.testing.resume.kill_points import begin_superstep, mark_open
from perdure.testing.resume.storage_kinds import SHIPPED, KillingStore, Kind, Storages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.storage import Store
    from perdure.workflows import Workflow

RUN_ID: Final = "subject"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workflow to kill and resume.

    `build` makes a new instance of the workflow, without a storage. `message` starts the run; each of `turns` is sent
    when it is idle. `answer` answers its requests. `rival` gives the answer of the n-th process when several answer one
    request at once; each should differ (the default inverts a bool). `storages` replaces the shipped kinds of storage:
    by name, a function that opens a storage in a directory or returns a URL. Give a `Kind` for a storage with data
    outside its directory.

    The outputs must depend only on messages, state, steps and answers. Set `has_fixed_log=False` if the order of
    supersteps depends on time, for example with timers beside other work. Then the logs of runs are not compared.
    """

    build: Callable[[], Workflow]
    message: Any
    turns: tuple[Any, ...] = ()
    answer: Callable[[PendingRequest], Any] = lambda _: True
    rival: Callable[[PendingRequest, int], Any] | None = None
    storages: Storages = field(default_factory=lambda: SHIPPED)
    has_fixed_log: bool = True

    def kind(self, name: str) -> Kind:
        """Return a kind of storage: one of `storages`, or a shipped one."""
        found = self.storages.get(name) or SHIPPED[name]
        return found if isinstance(found, Kind) else Kind(found)

    def open(self, kind: str, directory: Path) -> StoreStorage:
        """Open a storage with kill points that trusts the workflow's types."""
        opened = self.kind(kind).open(directory)
        # A storage of a URL is shared in this process, and other users need no kill points.
        storage = StoreStorage(open_storage(opened).store) if isinstance(opened, str) else opened
        storage.store = cast("Store", KillingStore(storage.store))
        self.build().blueprint.bound(storage)
        return storage

    def answer_to(self, request: PendingRequest) -> Any:
        """Return the answer to a request. An interrupted step is run again."""
        return StepDecision("rerun") if isinstance(request.data, InterruptedStep) else self.answer(request)

    def rival_answer_to(self, request: PendingRequest, number: int) -> Any:
        """Return the answer of the n-th rival."""
        if self.rival is not None:
            return self.rival(request, number)
        answer = self.answer_to(request)
        return not answer if isinstance(answer, bool) and number % 2 else answer


_OPEN_EVENTS = frozenset({"executor_suspended", "executor_failed"})


class SubjectDriver:
    """Drives a run of the subject."""

    def __init__(self, subject: Subject, storage: StoreStorage, run_id: str) -> None:
        self._subject = subject
        self._storage = storage
        self._run_id = run_id
        self._workflow: Workflow = subject.build()

    async def run_to_end(self) -> None:
        """Start or resume the run until all turns are done and no request is open."""
        await self.run_to_request()
        while await self._give_next_input():
            await self.resume()

    async def run_fork_to_end(self) -> None:
        """Resume a fork until it is idle and no request is open."""
        await self.resume()
        while await self._answer_requests():
            await self.resume()

    async def run_to_request(self) -> None:
        """Start or resume the run until it is idle."""
        await self._advance(message=self._subject.message)

    async def resume(self, responses: dict[str, Any] | None = None) -> None:
        """Resume the run until it is idle."""
        await self._advance(responses=responses)

    async def _advance(self, **given: Any) -> None:
        where: Any = {"run_id": self._run_id, "checkpoint_storage": self._storage}
        async for event in self._workflow.run(stream=True, **where, **given):
            if event.type == "superstep_started":
                begin_superstep()
            fact = event.data if event.type == "sub_workflow" else event
            if fact.type in _OPEN_EVENTS:
                mark_open(event.path, fact.executor_id or "")

    async def _give_next_input(self) -> bool:
        """Give the run its next input. Return False if it has had everything."""
        if await self._answer_requests():
            return True
        started = [event async for event in self._storage.events(self._run_id) if event.type == "started"]
        left = self._subject.turns[len(started) - 1 :]
        if not left:
            return False
        await self._storage.send(self._run_id, left[0], message_id=f"turn-{len(started)}")
        return True

    async def _answer_requests(self) -> bool:
        requests = await self._storage.requests(self._run_id)
        for request in requests:
            answers = {request.request_id: self._subject.answer_to(request)}
            # The run answers about half of the requests, the same ones in each process; the store answers the others.
            if zlib.crc32(repr(request.data).encode()) % 2 == 0:
                await self.resume(answers)
            else:
                await self._storage.respond(self._run_id, answers)
        return bool(requests)


_ATTEMPT = re.compile(r"attempt \d+ of \d+ failed")
_TIMESTAMP = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?([+-]\d\d:\d\d|Z)?")
_PROCESS = re.compile(r"process \d+ on [^\s'\"]+")


@dataclass(frozen=True, slots=True)
class RunSnapshot:
    """A run at one moment: its numbered log, its outputs in order, the state of its head.

    Random ids, timestamps and process names are replaced. `course` is the log without numbers and failed attempts,
    because the number of failures depends on the outside world. `questions` counts requests about an interrupted step,
    `waits` wake-ups. A wait that ended before the next process came to it does not count.
    """

    log: Sequence[str] = ()
    course: Sequence[str] = ()
    outputs: Sequence[str] = ()
    state: str = ""
    checkpoints: int = 0
    questions: int = 0
    waits: int = 0

    @classmethod
    async def take(cls, storage: StoreStorage, run_id: str) -> RunSnapshot:
        """Take a snapshot, decoding every checkpoint. Raises WorkflowCheckpointException if one does not load."""
        events = await _read_events(storage, run_id)
        checkpoints = await storage.list_checkpoints(run_id=run_id)
        names = _stable_names(events, run_id)
        states = [
            _normalize(_render((each.state, each.messages, each.pending_request_info_events)), names)
            for each in checkpoints
        ]
        return cls(
            log=tuple(f"{event.seq} {_normalize(_describe_event(event), names)}" for event in events),
            course=tuple(_normalize(_describe_event(event), names) for event in _drop_failed_attempts(events)),
            outputs=tuple(_normalize(_render(e.data), names) for e in events if e.type in {"output", "intermediate"}),
            state=states[-1] if states else "",
            checkpoints=len(states),
            questions=sum(isinstance(event.data, InterruptedStep) for event in events),
            waits=sum(event.type == "woken" for event in events),
        )

    def find_difference(self, expected: RunSnapshot, *, compares_log: bool = True) -> str | None:
        """Return the first difference; None if there is none.

        Logs are compared only if both runs had as many questions and waits: these change the supersteps.
        """
        pairs = [("output", self.outputs, expected.outputs), ("state", (self.state,), (expected.state,))]
        if compares_log and (self.questions, self.waits) == (expected.questions, expected.waits):
            pairs.append(("event", self.course, expected.course))
        return next((text for name, mine, other in pairs if (text := _describe_difference(name, mine, other))), None)

    def find_broken_prefix(self, later: RunSnapshot) -> str | None:
        """Return the first event at which a later log does not continue this one; None if it does."""
        return _describe_difference("event", later.log[: len(self.log)], self.log)

    def find_gap(self) -> str | None:
        """Return the first gap in the numbers of the log; None if they are 1, 2, 3 and so on."""
        numbers = [line.partition(" ")[0] for line in self.log]
        return _describe_difference("number", numbers, [str(number) for number in range(1, len(numbers) + 1)])


async def _read_events(storage: StoreStorage, run_id: str) -> list[WorkflowEvent[Any]]:
    """Return the log. It is empty if the process was killed before the first commit."""
    try:
        return [event async for event in storage.events(run_id)]
    except RunNotFoundError:
        return []


def _drop_failed_attempts(events: Sequence[WorkflowEvent[Any]]) -> list[WorkflowEvent[Any]]:
    """Drop warnings about failed attempts, with the failures before them and the calls after them, and take-overs."""
    events = [event for event in events if event.innermost.type not in {"taken_over", "attempt_failed"}]
    failed = {n for n, event in enumerate(events) if event.type == "warning" and _ATTEMPT.search(str(event.data))}
    before = {n - 1 for n in failed if events[n - 1].type == "executor_failed"}
    after = {n + 1 for n in failed if n + 1 < len(events) and events[n + 1].type == "executor_invoked"}
    return [event for n, event in enumerate(events) if n not in failed | before | after]


def _describe_difference(name: str, mine: Sequence[str], expected: Sequence[str]) -> str | None:
    for number, (one, other) in enumerate(zip(mine, expected, strict=False), start=1):
        if one != other:
            return f"{name} {number} is {one}, expected {other}"
    if len(mine) == len(expected):
        return None
    longer, verb = (mine, "is one too many") if len(mine) > len(expected) else (expected, "is missing")
    at = min(len(mine), len(expected))
    return f"{name} {at + 1} {verb}: {longer[at]}"


def _stable_names(events: Iterable[WorkflowEvent[Any]], run_id: str) -> Mapping[str, str]:
    """Return stable names for the run and for its requests in order."""
    asked = dict.fromkeys(event.request_id for event in events if event.type == "request_info")
    return {**{request_id: f"request-{number}" for number, request_id in enumerate(asked, 1)}, run_id: "run"}


def _normalize(text: str, names: Mapping[str, str]) -> str:
    for found, name in names.items():
        text = text.replace(found, name)
    return _PROCESS.sub("(process)", _TIMESTAMP.sub("(moment)", text))


def _describe_event(event: WorkflowEvent[Any]) -> str:
    where = "/".join((*event.path, event.executor_id or ""))
    iteration = "" if event.iteration is None else f" superstep {event.iteration}"
    request = f" {event.request_id}" if event.type == "request_info" else ""
    return f"{event.type} {where}{iteration}{request} {_render(event.data)}".strip()


def _render(value: object) -> str:
    """Render a value independently of the order in sets and mappings."""
    name = type(value).__name__
    match value:
        case CheckpointInfo():
            return f"{value.checkpoint_id} after {value.previous_checkpoint_id}"
        case StepInfo():
            return f"{value.name} {value.outcome} {_render(value.spent)}"
        case SuperstepInfo():
            return _render(dict(value.spent))
        case WorkflowErrorDetails():
            return f"{value.error_type}: {value.message}"
        case WorkflowEvent():
            return _describe_event(cast("WorkflowEvent[Any]", value))
        case dict():
            items = cast("dict[object, object]", value).items()
            parts = sorted(f"{_render(key)}: {_render(item)}" for key, item in items)
        case set() | frozenset():
            parts = sorted(map(_render, cast("set[object]", value)))
        case list() | tuple():
            parts = map(_render, cast("list[object]", value))
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            parts = [f"{each.name}={_render(getattr(value, each.name))}" for each in dataclasses.fields(value)]
        case _:
            return repr(value)
    return f"{name}({', '.join(parts)})"
