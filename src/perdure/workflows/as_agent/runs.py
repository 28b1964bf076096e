"""Which run a session talks to, and what its next message is to that run: a turn, answers, or the wish to go on."""

from __future__ import annotations

import hashlib
import logging
import weakref
from collections import OrderedDict
from dataclasses import asdict, field, fields, replace
from typing import TYPE_CHECKING, Any, cast

from perdure.agents import Content
from perdure.checkpoint import request_event, shown
from perdure.data import frozen, mutable
from perdure.engine import Call, input_digest
from perdure.errors import AgentException, CheckpointNotFoundError, EncodeError
from perdure.kernel import Snapshot
from perdure.workflows.as_agent.translation import answered_ids, answers_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from perdure.agents import Message
    from perdure.engine import LoadedRun
    from perdure.events import WorkflowEvent
    from perdure.streams import ResponseStream
    from perdure.workflows.as_agent.translation import Given
    from perdure.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

_REMEMBERED_MAX = 1000


@frozen
class Standing:
    """What only this process knows of a run that an agent talks to."""

    turn: int
    """The turn that was begun last."""
    said: Sequence[Message]
    """What began it."""
    before: Snapshot
    """The run before it, and ..."""
    tenure: LoadedRun | None = None
    """... the run itself, where no storage has them."""


class Memory:
    """The runs that an agent talks to, by id. Without a storage it is all that there is of them."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, Standing] = OrderedDict()
        self._rested: OrderedDict[str, Snapshot] = OrderedDict()
        self._read: weakref.ref[ResponseStream[Any, Any]] | None = None

    def of(self, run_id: str) -> Standing | None:
        """What is known of a run."""
        if run_id in self._runs:
            self._runs.move_to_end(run_id)
        return self._runs.get(run_id)

    def keep(self, run_id: str, standing: Standing) -> None:
        """Remember a run. Of very many, the one that was not heard of for longest is forgotten."""
        self._runs[run_id] = standing
        self._runs.move_to_end(run_id)
        if len(self._runs) > _REMEMBERED_MAX:
            self._runs.popitem(last=False)

    def rested(self, run_id: str) -> Snapshot | None:
        """A run that a handler has talked to, as it was left."""
        return self._rested.get(run_id)

    def rest(self, run_id: str, snapshot: Snapshot) -> None:
        """Remember a run that a handler talks to."""
        self._rested[run_id] = snapshot
        self._rested.move_to_end(run_id)
        if len(self._rested) > _REMEMBERED_MAX:
            self._rested.popitem(last=False)

    def reading(self, stream: ResponseStream[Any, Any]) -> None:
        """The stream of the workflow is read."""
        self._read = weakref.ref(stream)

    async def let_go(self) -> None:
        """Close the stream of a call that was dropped in the middle: whoever read it has not come to that yet."""
        stream = self._read() if self._read is not None else None
        if stream is not None:
            await stream.aclose()


@mutable
class Conversation:
    """One message, or several at once, on their way to the run that they are for."""

    workflow: Workflow
    storage: object
    bookmark: Bookmark
    memory: Memory
    has_session: bool
    """Without a session the run is that of the workflow instance."""
    seed: str | None
    """What the id of the first run is derived from, so that whoever has nothing else finds it again."""
    kwargs: Mapping[str, Mapping[str, Any] | None]
    streaming: bool
    _told: Mapping[str, int] | None = field(default=None, init=False)
    """How much of each history the run knows when this call ends well, if it is told more than answers."""

    async def next_call(self, given: Given) -> Call:
        """What the workflow is called with.

        Raises AgentInvalidResponseException if answers are waited for and these are none.
        """
        said = given.said
        tenure = await self._found(said)
        if tenure is None:
            return self._first_turn(given)
        snapshot = tenure.snapshot
        if not said:
            is_meant = self.has_session or snapshot.requests or not snapshot.is_idle
            return self._going_on(tenure) if is_meant else self._turn(given)
        if _is_about(said, snapshot):
            return self._answering(said, tenure)
        if snapshot.turn == self.bookmark.turn + 1 and self._was_said(said):
            return self._going_on(tenure)
        if snapshot.requests:
            # Raises: there is something in it that is no answer.
            return self._answering(said, tenure)
        if not snapshot.is_idle:
            self._require_leave(tenure)
            await self._give_up(tenure)
            if self.workflow.tenure is None:
                return self._first_turn(given)
        return self._turn(given)

    async def resume(self, checkpoint_id: str) -> list[WorkflowEvent[Any]]:
        """Let the run go on from a checkpoint until it rests; what it tells."""
        told = await self._events(self._call(checkpoint_id=checkpoint_id))
        # What the run was told since, or in another branch, it does not know.
        self._told = {}
        self.rest()
        return told

    def rest(self) -> None:
        """The run rests: the session has all of it."""
        tenure = self.workflow.tenure
        assert tenure is not None, "a call that has ended well has a run"
        self._remember(tenure)
        self.bookmark.move(tenure.run_id, tenure.head_id if tenure.binding is not None else None, tenure.snapshot)
        if self._told is not None:
            self.bookmark.heard = dict(self._told)

    def still_open(self) -> list[WorkflowEvent[Any]]:
        """What the run waits for when it rests."""
        tenure = self.workflow.tenure
        return [] if tenure is None else list(self.pending(tenure).values())

    def fail(self) -> None:
        """The call has failed: the run is still there, if it is talked to again."""
        if self.workflow.tenure is not None:
            self._remember(self.workflow.tenure)

    def _remember(self, tenure: LoadedRun) -> None:
        known = self.memory.of(self.bookmark.run_id or "")
        if known is not None:
            self.memory.keep(tenure.run_id, replace(known, tenure=tenure if tenure.binding is None else None))

    def _call(self, **more: Any) -> Call:
        return Call(storage=self.storage, kwargs=self.kwargs, streaming=self.streaming, **more)

    def _turn(self, given: Given) -> Call:
        tenure = self.workflow.tenure
        assert tenure is not None, "a next turn has a run"
        self.bookmark.run_id = tenure.run_id
        before = tenure.snapshot if self.storage is None else Snapshot()
        self.memory.keep(tenure.run_id, Standing(tenure.snapshot.turn + 1, given.said, before))
        self._told = given.counts
        said = self._named(given.said, turn=tenure.snapshot.turn + 1)
        return self._call(message=given.since(self.bookmark.heard), message_id=said)

    def _first_turn(self, given: Given) -> Call:
        run_id = self.bookmark.run_id
        assert run_id is not None, "a run that begins has its id"
        self.memory.keep(run_id, Standing(1, given.said, Snapshot()))
        self._told = given.counts
        return self._call(message=given.whole(), message_id=self._named(given.said, turn=1), run_id=run_id)

    def _going_on(self, tenure: LoadedRun) -> Call:
        return self._call(run_id=tenure.run_id, only_goes_on=True)

    def _answering(self, said: Sequence[Message], tenure: LoadedRun) -> Call:
        answers = answers_in(said, self.pending(tenure))
        fresh = {key: answer for key, answer in answers.items() if not _is_given(key, answer, tenure.snapshot)}
        if fresh:
            return self._call(responses=fresh)
        self._require_unheard(tenure, answers)
        return self._going_on(tenure)

    def _require_unheard(self, tenure: LoadedRun, answers: Iterable[str]) -> None:
        """Raise AgentException if the session has what came of answers that are given again, or if that is long ago."""
        is_of_this_turn = tenure.snapshot.turn == self.bookmark.turn
        if is_of_this_turn and (self.bookmark.is_open or not tenure.snapshot.is_idle):
            return
        where = "the session has what came of it" if is_of_this_turn else "the run has gone on since"
        raise AgentException(
            f"{', '.join(map(repr, answers))} was answered before, and {where}: look into the session's history, or "
            "say something new"
        )

    @staticmethod
    def pending(tenure: LoadedRun) -> dict[str, WorkflowEvent[Any]]:
        """The requests that wait, by id."""
        return {key: request_event(each, tenure.values) for key, each in tenure.snapshot.requests.items()}

    async def _found(self, said: Sequence[Message]) -> LoadedRun | None:
        """The run, with the workflow instance standing for it. None if it is still to begin, as the bookmark says."""
        if not self.has_session:
            return await self._own()
        if self.bookmark.run_id is not None:
            found = await self._at(self.bookmark.run_id)
            if found is None:
                self._require_expendable()
                self._begin_at(self.workflow.blueprint.clock.new_id())
            return found
        derived = self._first_id()
        found = await self._at(derived)
        if found is not None and self._is_ours(found, said):
            # Whoever kept the session died before it knew of the run, or before it was saved.
            self.bookmark.run_id = derived
            return found
        self._begin_at(derived if found is None else self.workflow.blueprint.clock.new_id())
        return None

    def _is_ours(self, found: LoadedRun, said: Sequence[Message]) -> bool:
        """Whether a run that the session does not know goes on with this, and is no other conversation of its id."""
        is_first = found.snapshot.turn == 1
        return is_first and (not said or _is_about(said, found.snapshot) or self._was_said(said))

    async def _own(self) -> LoadedRun | None:
        """The run of the workflow instance, which others may have used meanwhile."""
        tenure = self.workflow.tenure
        if tenure is None:
            self._begin_at(self._first_id())
            return None
        if tenure.run_id != self.bookmark.run_id:
            self._begin_at(tenure.run_id)
            self.bookmark.turn = tenure.snapshot.turn
        return await self._at(tenure.run_id) or tenure

    def _begin_at(self, run_id: str) -> None:
        mark = self.bookmark
        mark.run_id, mark.turn, mark.checkpoint_id, mark.told, mark.is_open = run_id, 0, None, 0, False
        mark.heard = {}

    def _first_id(self) -> str:
        """The id of the first run."""
        if self.seed is None:
            return self.workflow.blueprint.clock.new_id()
        name = f"{self.bookmark.agent}\0{self.seed}"
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    async def _at(self, run_id: str) -> LoadedRun | None:
        """Let the workflow stand for a run as it is now; None if it is not to be found."""
        own = self.workflow.tenure if self.workflow.run_id == run_id else None
        if self.storage is None:
            known = self.memory.of(run_id)
            if own is None and known is not None and known.tenure is not None:
                own = self.workflow.tenure = known.tenure
            return own
        binding = self.workflow.blueprint.bound(self.storage)
        record = await binding.store.run(run_id)
        if record is None:
            # A run without a storage so far goes on in this one.
            return own
        if own is None or own.binding is None or record.head != own.head_id:
            await self._events(self._call(run_id=run_id, only_enters=True, only_goes_on=True))
        return self.workflow.tenure

    def _require_expendable(self) -> None:
        """The run is not here. Raises AgentException if it had asked something; else it begins anew."""
        mark = self.bookmark
        where = "this process, and there is no checkpoint storage" if self.storage is None else "this storage"
        if mark.is_open:
            raise AgentException(
                f"run {mark.run_id!r} of this session waits for answers, and it is not in {where}: give the storage "
                "that it was begun with, to the workflow or as checkpoint_storage; or begin a new session"
            )
        logger.warning(
            "run %r of this session is not in %s; a new run gets the conversation so far", mark.run_id, where
        )

    def _was_said(self, said: Sequence[Message]) -> bool:
        """Whether the turn behind the bookmark was begun with just this."""
        tenure = self.workflow.tenure
        assert tenure is not None, "there is a run with a turn"
        known = self.memory.of(tenure.run_id)
        if known is not None and known.turn == tenure.snapshot.turn:
            return list(known.said) == list(said)
        name = self._named(said, turn=tenure.snapshot.turn)
        return name is not None and name in tenure.snapshot.received

    def _named(self, said: Sequence[Message], *, turn: int) -> str | None:
        """What names the message of a turn, in every process; None where no storage keeps it, or can."""
        if self.storage is None:
            return None
        try:
            return f"turn {turn}: {input_digest(self.workflow.blueprint.bound(self.storage), list(said))}"
        except EncodeError:
            return None

    def _require_leave(self, tenure: LoadedRun) -> None:
        """Raise AgentException if the turn can't be left: what was answered in it would be asked again."""
        if self.bookmark.is_open and tenure.snapshot.turn == self.bookmark.turn:
            raise AgentException(
                f"run {tenure.run_id!r} has not come to its end since its requests were answered, and this is another "
                "message: give the same answers again, or no message, to let it go on; then say what is new"
            )

    async def _give_up(self, tenure: LoadedRun) -> None:
        """Leave a turn that has not ended: the next one begins where the one before it has ended."""
        good, known = self.bookmark.checkpoint_id, self.memory.of(tenure.run_id)
        if self.storage is None:
            if known is None or known.turn != tenure.snapshot.turn:
                return  # nobody knows where to: the workflow says so
            tenure.snapshot = known.before
        elif good is not None:
            await self._go_back(good, tenure)
        else:
            self.workflow.tenure = None
            self._begin_at(self.workflow.blueprint.clock.new_id())
        now = self.workflow.run_id or self.bookmark.run_id
        logger.warning(
            "the last turn of run %r did not end, and this is another message: it is the next turn of run %r, from "
            "where the turn before had ended; to go on with the one that did not, give the same message or none",
            tenure.run_id,
            now,
        )

    async def _go_back(self, checkpoint_id: str, tenure: LoadedRun) -> None:
        try:
            await self._events(self._call(checkpoint_id=checkpoint_id, only_enters=True, only_goes_on=True))
        except CheckpointNotFoundError as error:
            raise AgentException(
                f"the last turn of run {tenure.run_id!r} did not end, and this is another message; it can't be left, "
                "for the storage has forgotten where it began: give the same message again, or none, to let it go on; "
                "or let the storage keep more than the latest checkpoint"
            ) from error

    async def _events(self, call: Call) -> list[WorkflowEvent[Any]]:
        return [event async for event in self.workflow.stream(call)]


def _is_about(said: Sequence[Message], snapshot: Snapshot) -> bool:
    """Whether all that is said are answers, and the run waits for answers or has had these before."""
    answered = answered_ids(said)
    return bool(answered) and (bool(snapshot.requests) or all(snapshot.answers_to(each) for each in answered))


def _is_given(request_id: str, answer: object, snapshot: Snapshot) -> bool:
    """Whether a request that is not open any more was answered with just this."""
    given = snapshot.answers_to(request_id)
    if request_id in snapshot.requests or not given:
        return False
    forms = [answer, answer.result] if isinstance(answer, Content) else [answer]
    return given[-1].what in [shown(form) for form in forms]


STATE_KEY = "workflow"


@mutable
class Bookmark:
    """Where the last turn that ended well has left a run. Behind it the run may have begun another one."""

    agent: str = ""
    run_id: str | None = None
    turn: int = 0
    checkpoint_id: str | None = None
    told: int = 0
    """How many outputs of the turn the session has."""
    is_open: bool = False
    """Whether requests wait for answers."""
    heard: dict[str, int] = field(default_factory=dict[str, int])
    """By history: how many messages there were when the last turn began, all of which the run was told."""

    @classmethod
    def of(cls, state: MutableMapping[str, Any], agent: str) -> Bookmark:
        """The bookmark of an agent in the state of a session; an empty one if there is none."""
        found: Any = state.get(_place(state, agent))
        known = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
        names = {each.name for each in fields(cls)}
        stored: dict[str, Any] = {name: value for name, value in known.items() if name in names}
        stored["agent"] = agent
        return cls(**stored)

    def put(self, state: MutableMapping[str, Any]) -> None:
        """Keep it in the state of a session."""
        state[_place(state, self.agent)] = asdict(self)

    def move(self, run_id: str, checkpoint_id: str | None, snapshot: Snapshot) -> None:
        """The run rests here, and the session knows all that it has told."""
        self.run_id, self.checkpoint_id, self.turn = run_id, checkpoint_id, snapshot.turn
        self.told, self.is_open = len(snapshot.outputs), bool(snapshot.requests)


def _place(state: MutableMapping[str, Any], agent: str) -> str:
    """Where it stands. Of several agents that share a session, each has a place of its own."""
    first: Any = state.get(STATE_KEY)
    is_mine = not isinstance(first, dict) or cast("dict[str, Any]", first).get("agent", agent) == agent
    return STATE_KEY if is_mine else f"{STATE_KEY}:{agent}"
