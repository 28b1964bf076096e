"""The run behind a session, and the call for its next message: a turn, answers, or a continuation."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import OrderedDict
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from perdure.agents import Content, Message
from perdure.checkpoint import request_event, shown
from perdure.engine import Call, Closing, LoadedRun, input_digest, output_events
from perdure.errors import AgentException, CheckpointNotFoundError, EncodeError
from perdure.kernel import Snapshot
from perdure.workflows.as_agent.translation import TurnInput, answered_ids, find_answers, plain_answers

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Mapping, MutableMapping, Sequence

    from perdure.events import WorkflowEvent
    from perdure.streams import ResponseStream
    from perdure.workflows.as_agent.agent import AgentCall

logger = logging.getLogger(__name__)

T = TypeVar("T")

STATE_KEY = "workflow"
_REMEMBERED_MAX = 1000


@dataclass(frozen=True, slots=True)
class KnownRun:
    """Facts about a run that only this process knows.

    Attributes:
        turn: The last turn that was begun.
        said: Its input.
        before: The run before that turn, if no storage has it.
        loaded_run: The run itself, if no storage has it.
    """

    turn: int
    said: Sequence[Message]
    before: Snapshot
    loaded_run: LoadedRun | None = None


class RecentRuns(OrderedDict[str, T]):
    """Values by run id. Of very many, the one that was not set for the longest time is dropped."""

    def __setitem__(self, run_id: str, value: T) -> None:
        super().__setitem__(run_id, value)
        self.move_to_end(run_id)
        if len(self) > _REMEMBERED_MAX:
            self.popitem(last=False)


class RunMemory:
    """The runs of an agent by id. Without a storage this is all there is of them.

    Attributes:
        left_runs: Runs that a handler used, as it left them.
        stream: The workflow's stream while it is read.
    """

    def __init__(self) -> None:
        self.runs = RecentRuns[KnownRun]()
        self.left_runs = RecentRuns[Snapshot]()
        self.stream: weakref.ref[ResponseStream[Any, Any]] | None = None


class Conversation:
    """One input, on its way to the run of its session. Without a session it starts a run, or answers one."""

    def __init__(self, call: AgentCall) -> None:
        self._call = call
        self._workflow = call.workflow
        self._storage = call.storage
        self._memory = call.memory
        self._position = call.position
        self._has_session = call.session is not None
        self._seen: Mapping[str, int] | None = None
        """The length of each history that the run knows after this call, unless it gets only answers."""

    async def events(self, given: TurnInput) -> AsyncGenerator[WorkflowEvent[Any]]:
        """Yield the events of the run until it is idle, after resuming it from a checkpoint if one is named."""
        checkpoint_id = self._call.checkpoint_id
        dropped = self._memory.stream() if self._memory.stream is not None else None
        if dropped is not None:
            await dropped.aclose()
        try:
            if checkpoint_id is not None:
                resumed = await self._read(checkpoint_id=checkpoint_id)
                # The run doesn't know messages of later turns or other branches.
                self._seen = {}
                self._finish()
                if not given.said:
                    for event in resumed:
                        yield event
            if checkpoint_id is None or given.said:
                async with Closing(self._stream(await self._next_call(given))) as events:
                    async for event in events:
                        yield event
            self._finish()
        except BaseException:
            self._remember()
            raise
        finally:
            self._position.store(self._call.state)

    async def _stream(self, call: Call) -> AsyncGenerator[WorkflowEvent[Any]]:
        run = self._workflow.loaded_run
        if call.skip_past_events and run is not None:
            # The outputs that the session doesn't have, and the open requests.
            skipped = self._position.told if run.snapshot.turn == self._position.turn else 0
            missing = list(run.snapshot.outputs)[skipped:]
            for event in output_events(missing, run.values, in_pieces=self._call.streaming):
                yield event
            for event in self.pending():
                yield event
        stream = self._workflow.stream(call)
        self._memory.stream = weakref.ref(stream)
        try:
            async for event in stream:
                yield event
        finally:
            await close_stream(stream)

    async def _next_call(self, given: TurnInput) -> Call:
        """Return the call of the workflow.

        Raises AgentInvalidResponseException if the run waits for answers and the messages are not clearly some.
        """
        said = given.said
        loaded_run = await self._find_run(said)
        if loaded_run is None:
            return self._begin_turn(given, None)
        snapshot = loaded_run.snapshot
        # Without messages: continue a run of this session, or one that is not at its end.
        if not said:
            is_meant = self._has_session or snapshot.requests or not snapshot.is_idle
            return self._continue(loaded_run) if is_meant else self._begin_turn(given, loaded_run)
        if _are_answers(said, snapshot):
            return self._answer(said, loaded_run)
        # The run began this very turn, or had this very answer, and the session was not saved after it.
        forms = [form for _, form in plain_answers(said)]
        was_given = any(_was_given(key, form, snapshot) for key in self._position.asked for form in forms)
        if was_given or (snapshot.turn == self._position.turn + 1 and self._has_input(said)):
            return self._continue(loaded_run)
        # Plain messages: they can only be answers.
        if snapshot.requests:
            return self._answer(said, loaded_run)
        # A turn that failed or was cut off: other messages begin a new one.
        if not snapshot.is_idle:
            await self._leave_turn(loaded_run)
        return self._begin_turn(given, self._workflow.loaded_run)

    def _finish(self) -> None:
        """Set the position after a successful call."""
        run = self._workflow.loaded_run
        assert run is not None, "a successful call has a run"
        self._remember()
        self._position.advance(run.run_id, run.head_id if run.binding is not None else None, run.snapshot)
        if self._seen is not None:
            self._position.heard = dict(self._seen)
        if not self._has_session and not run.snapshot.requests:
            # Nobody can come back to it.
            self._memory.runs.pop(run.run_id, None)

    def pending(self) -> list[WorkflowEvent[Any]]:
        """Return the open requests."""
        run = self._workflow.loaded_run
        return [] if run is None else [request_event(each, run.values) for each in run.snapshot.requests.values()]

    def _remember(self) -> None:
        """Keep the run, if no storage has it, for the next call."""
        run, known = self._workflow.loaded_run, self._memory.runs.get(self._position.run_id or "")
        if run is not None and known is not None:
            self._memory.runs[run.run_id] = replace(known, loaded_run=run if run.binding is None else None)

    def _make_call(self, **more: Any) -> Call:
        call = self._call
        return Call(storage=call.storage, kwargs=call.kwargs, tools=call.tools, streaming=call.streaming, **more)

    async def _read(self, **more: Any) -> list[WorkflowEvent[Any]]:
        return [event async for event in self._workflow.stream(self._make_call(**more))]

    def _begin_turn(self, given: TurnInput, loaded_run: LoadedRun | None) -> Call:
        """Return the call for the next turn of a run; without one, for the first turn of a new run."""
        turn, before, run_id = 1, Snapshot(), self._position.run_id
        if loaded_run is not None:
            turn, run_id = loaded_run.snapshot.turn + 1, loaded_run.run_id
            before = loaded_run.snapshot if self._storage is None else before
        assert run_id is not None, "the id was chosen before"
        self._position.run_id = run_id
        self._memory.runs[run_id] = KnownRun(turn, given.said, before)
        self._seen = given.counts
        return self._make_call(
            message=given.since(self._position.heard),
            message_id=self._input_name(given.said, turn=turn),
            run_id=run_id if loaded_run is None else None,
        )

    def _continue(self, loaded_run: LoadedRun) -> Call:
        return self._make_call(run_id=loaded_run.run_id, skip_past_events=True)

    def _answer(self, said: Sequence[Message], loaded_run: LoadedRun) -> Call:
        pending = {event.request_id: event for event in self.pending()}
        answers = find_answers(said, pending, seen=self._position.asked)
        fresh = {key: answer for key, answer in answers.items() if not _was_given(key, answer, loaded_run.snapshot)}
        if fresh:
            return self._make_call(responses=fresh)
        is_of_this_turn = loaded_run.snapshot.turn == self._position.turn
        if is_of_this_turn and (self._position.is_open or not loaded_run.snapshot.is_idle):
            return self._continue(loaded_run)
        situation = "the session has the result" if is_of_this_turn else "the run has gone on since"
        raise AgentException(
            f"already answered: {', '.join(map(repr, answers))}; {situation}: read the session's history, or "
            "send something new"
        )

    async def _find_run(self, said: Sequence[Message]) -> LoadedRun | None:
        """Switch the workflow to the session's run. Returns None if it has to be started."""
        run_id = self._position.run_id
        if run_id is not None:
            found = await self._switch_to(run_id)
            if found is None:
                where = "this process, and there is no checkpoint storage" if self._storage is None else "this storage"
                if self._position.is_open:
                    raise AgentException(
                        f"run {run_id!r} of this session waits for answers, but it is not in {where}; give the storage "
                        "that it was started with, to the workflow or as checkpoint_storage, or start a new session"
                    )
                logger.warning(
                    "run %r of this session is not in %s; a new run gets the conversation so far", run_id, where
                )
                self._start_at(self._new_id())
            return found
        first_id = self._first_id()
        found = await self._switch_to(first_id) if self._has_session else None
        if (
            found is not None
            and found.snapshot.turn == 1
            and (not said or _are_answers(said, found.snapshot) or self._has_input(said))
        ):
            # The process died before the session was saved with the run's id.
            self._position.run_id = first_id
            return found
        self._start_at(first_id if found is None else self._new_id())
        return None

    def _first_id(self) -> str:
        """Return the id of a first run. It is derived, so that the run is found again without a position."""
        activation, session = self._call.turn.activation, self._call.session
        if activation is not None:
            # In a workflow only the handler call is stable: it may create a new session each time it is entered.
            seed = f"{activation.idempotency_key}/{self._call.turn.number}"
        elif session is not None:
            seed = session.session_id
        else:
            return self._new_id()
        return hashlib.blake2b(f"{self._position.agent}\0{seed}".encode(), digest_size=16).hexdigest()

    def _new_id(self) -> str:
        return self._workflow.blueprint_on(self._storage).clock.new_id()

    def _start_at(self, run_id: str) -> None:
        position = self._position
        position.run_id, position.checkpoint_id, position.heard = run_id, None, {}
        position.turn, position.told, position.is_open, position.asked = 0, 0, False, []

    async def _switch_to(self, run_id: str) -> LoadedRun | None:
        """Switch the workflow to the current state of a run; None if it is not found."""
        own = self._workflow.loaded_run if self._workflow.run_id == run_id else None
        if self._storage is None:
            known = self._memory.runs.get(run_id)
            if own is None and known is not None and known.loaded_run is not None:
                own = self._workflow.loaded_run = known.loaded_run
            return own
        binding = self._workflow.blueprint_on(self._storage).bound(self._storage)
        record = await binding.store.run(run_id)
        if record is None:
            # A run that had no storage continues in this one.
            return own
        if own is None or own.binding is None or record.head != own.head_id:
            await self._read(run_id=run_id, commit_input_only=True, skip_past_events=True)
        return self._workflow.loaded_run

    def _has_input(self, said: Sequence[Message]) -> bool:
        """Return True if the turn after the position was started with the same messages."""
        loaded_run = self._workflow.loaded_run
        assert loaded_run is not None, "the run was found"
        known = self._memory.runs.get(loaded_run.run_id)
        if known is not None and known.turn == loaded_run.snapshot.turn:
            return list(known.said) == list(said)
        name = self._input_name(said, turn=loaded_run.snapshot.turn)
        return name is not None and name in loaded_run.snapshot.received

    def _input_name(self, said: Sequence[Message], *, turn: int) -> str | None:
        """Return a name for a turn's input that is equal in every process; None without a storage."""
        if self._storage is None:
            return None
        try:
            binding = self._workflow.blueprint_on(self._storage).bound(self._storage)
            return f"turn {turn}: {input_digest(binding, list(said))}"
        except EncodeError:
            return None

    async def _leave_turn(self, loaded_run: LoadedRun) -> None:
        """Leave an unfinished turn: the next one starts where the turn before it ended.

        Raises AgentException if its requests were answered: they would be asked again.
        """
        if self._position.is_open and loaded_run.snapshot.turn == self._position.turn:
            raise AgentException(
                f"run {loaded_run.run_id!r} has not finished since its requests were answered, and this is another "
                "message; send the same answers again, or no message, to let it continue; then send the new message"
            )
        known = self._memory.runs.get(loaded_run.run_id)
        if self._storage is None:
            if known is None or known.turn != loaded_run.snapshot.turn:
                return  # the position is unknown: the workflow raises
            loaded_run.snapshot = known.before
        elif self._position.checkpoint_id is not None:
            checkpoint_id = self._position.checkpoint_id
            try:
                await self._read(checkpoint_id=checkpoint_id, commit_input_only=True, skip_past_events=True)
            except CheckpointNotFoundError as error:
                raise AgentException(
                    f"the last turn of run {loaded_run.run_id!r} did not finish, and this is another message; the turn "
                    "can't be left, because its first checkpoint was deleted: send the same message again, or none, to "
                    "continue it, or let the storage keep more than the latest checkpoint"
                ) from error
        else:
            self._workflow.loaded_run = None
            self._start_at(self._new_id())
        now = self._workflow.run_id or self._position.run_id
        logger.warning(
            "the last turn of run %r did not finish, and this is another message: it starts the next turn of run %r, "
            "from the end of the turn before; to continue the unfinished turn, send the same message or none",
            loaded_run.run_id,
            now,
        )


def _are_answers(said: Sequence[Message], snapshot: Snapshot) -> bool:
    """Return True if all contents are answers, and the run waits for answers or has had these before."""
    answered = answered_ids(said)
    return bool(answered) and (bool(snapshot.requests) or all(snapshot.answers_to(each) for each in answered))


def _was_given(request_id: str, answer: object, snapshot: Snapshot) -> bool:
    """Return True if a closed request was answered with the same value."""
    given = snapshot.answers_to(request_id)
    if request_id in snapshot.requests or not given:
        return False
    forms = [answer, answer.result] if isinstance(answer, Content) else [answer]
    return given[-1].what in [shown(form) for form in forms]


async def close_stream(stream: ResponseStream[Any, Any]) -> None:
    """Close a stream. An event loop that shuts down closes all generators at once; this one may already be closing."""
    with suppress(RuntimeError):
        await stream.aclose()


@dataclass(slots=True)
class RunPosition:
    """The position of a run after the last successful turn. The run may have begun another turn since.

    Attributes:
        told: The number of the turn's outputs that the session has.
        is_open: True if requests are open.
        asked: The open requests. A message without a request id answers one of these.
        heard: The length of each history when the last turn began. The run has seen these messages.
    """

    agent: str = ""
    run_id: str | None = None
    turn: int = 0
    checkpoint_id: str | None = None
    told: int = 0
    is_open: bool = False
    asked: list[str] = field(default_factory=list[str])
    heard: dict[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def of(cls, state: MutableMapping[str, Any], agent: str) -> RunPosition:
        """Read an agent's position from a session's state; an empty one if there is none."""
        found: Any = state.get(_state_key(state, agent))
        known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        names = {each.name for each in fields(cls)}
        stored: dict[str, Any] = {name: value for name, value in known.items() if name in names}
        stored["agent"] = agent
        return cls(**stored)

    def store(self, state: MutableMapping[str, Any]) -> None:
        """Store the position in a session's state."""
        state[_state_key(state, self.agent)] = asdict(self)

    def advance(self, run_id: str, checkpoint_id: str | None, snapshot: Snapshot) -> None:
        """Set the position after a turn whose outputs the session has."""
        self.run_id, self.checkpoint_id, self.turn = run_id, checkpoint_id, snapshot.turn
        self.told, self.is_open = len(snapshot.outputs), bool(snapshot.requests)
        self.asked = list(snapshot.requests)


def _state_key(state: MutableMapping[str, Any], agent: str) -> str:
    """Return the key in the state. Agents that share a session have a key each."""
    first: Any = state.get(STATE_KEY)
    is_mine = not isinstance(first, dict) or cast("dict[str, Any]", first).get("agent", agent) == agent
    return STATE_KEY if is_mine else f"{STATE_KEY}:{agent}"
