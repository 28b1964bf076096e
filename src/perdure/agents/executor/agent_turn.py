"""One turn of an agent in a workflow: load the session, run the agent, stream its updates, store the session.

An `AgentTurn` runs the agent. That makes a `Turn` (agents/turn/recording.py), which names the recorded calls, and for
each request to the client a `TurnLoop` (agents/turn/loop.py), which makes them.
"""

from __future__ import annotations

import dataclasses
import inspect
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakValueDictionary

from perdure.agents.client.tokens import TOKEN_RESOURCES, TokenCounter
from perdure.agents.executor.requests import deduplicate, inner_requests, is_inner_question
from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
from perdure.agents.sessions.session import AgentSession, Change, apply_changes, copy_state, find_changes, share_logs
from perdure.agents.turn.recording import return_requests
from perdure.codec import register_type
from perdure.engine import RUN_KWARGS_KEY, kwargs_of_executor
from perdure.graph import StepCall, WorkflowContext

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.messages.content import Content
    from perdure.agents.messages.message import Message
    from perdure.kernel import Request

SESSION_KEY: Final = "session"


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """A session as the run stores it, with changes to apply to its state.

    It is a value: readers get copies, so it never needs to be copied itself.
    """

    session_id: str
    service_session_id: str | None = None
    state: Mapping[str, Any] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()

    @classmethod
    def of(cls, session: AgentSession) -> SessionRecord:
        """Record a session."""
        return cls(session.session_id, session.service_session_id, copy_state(session.state))

    def session(self) -> AgentSession:
        """Return the session for one turn."""
        session = AgentSession(session_id=self.session_id, service_session_id=self.service_session_id)
        session.state.update(copy_state(self.state))
        apply_changes(self.changes, session.state)
        return session

    def __deepcopy__(self, _: object) -> SessionRecord:
        """Return the record itself, which nobody changes."""
        return self


def _record_fields(record: SessionRecord) -> dict[str, Any]:
    fields = {each.name: getattr(record, each.name) for each in dataclasses.fields(record)}
    return {name: value for name, value in {**fields, "changes": list(record.changes)}.items() if value}


register_type(
    SessionRecord, name="perdure:SessionRecord", encode=_record_fields, decode=lambda fields: SessionRecord(**fields)
)


def session_update(session: AgentSession, *, base: SessionRecord, is_first: bool) -> SessionRecord:
    """Return a turn's changes to a session that several executors share, to be merged with those of others.

    The first update is the stored value, so it also holds the state before the turn. Later ones count by their changes.
    """
    before = base.session().state
    changed = list(find_changes(before, copy_state(session.state)))
    return SessionRecord(base.session_id, session.service_session_id, before if is_first else {}, changed)


class LiveSession:
    """The session object that the program holds, kept up to date with what runs do to the session.

    A run continues from its own record. Changes that the program makes to the object are seen by the next turn.

    Attributes:
        _pristine: The session before any run. A new run starts with it.
        _last_synced: The session when the object was last updated.
        _kept: The last stored record, with its decoded elements.
    """

    def __init__(self, session: AgentSession) -> None:
        self.session = session
        self._pristine: SessionRecord | None = None
        self._last_synced: SessionRecord | None = None
        self._kept: SessionRecord | None = None

    def base(self, stored: SessionRecord | None, *, is_shared: bool) -> SessionRecord:
        """Return the record that a turn starts from."""
        if self._pristine is None or self._last_synced is None:
            self._pristine = self._last_synced = SessionRecord.of(self.session)
        base = self._pristine if stored is None else self._with_decoded(stored)
        changed = list(find_changes(self._last_synced.state, self.session.state))
        if not changed:
            return base
        if is_shared:
            # Of parallel turns only one takes these changes; the changes of the others are added to them.
            self._last_synced = SessionRecord.of(self.session)
        session = base.session()
        apply_changes(changed, session.state)
        return SessionRecord.of(session)

    def renew(self, key: str) -> SessionRecord:
        """Return a session like that of a new run, under an id made unique by `key`."""
        pristine = self.base(None, is_shared=False)
        return SessionRecord(f"{pristine.session_id}-{key}", None, pristine.state)

    def session_of(self, record: SessionRecord) -> AgentSession:
        """Return the session for one turn, of the program's own class."""
        if type(self.session) is AgentSession:
            return record.session()
        session = copy(self.session)
        session.state = record.session().state
        session.service_session_id = record.service_session_id
        return session

    def _with_decoded(self, record: SessionRecord) -> SessionRecord:
        """Reuse decoded elements of the last record, so that only the new part of a long history is decoded."""
        if self._kept is not None:
            share_logs(record.state, self._kept.state)
        return record

    def update(self, session: AgentSession, kept: SessionRecord | None = None) -> None:
        """Update the object after a turn; `kept` is the stored record, if there is nothing left to merge."""
        self._kept = kept or self._kept
        self.session.state.clear()
        self.session.state.update(copy_state(session.state))
        self.session.service_session_id = session.service_session_id
        self._last_synced = SessionRecord.of(self.session)

    def merge(self, record: SessionRecord, update: SessionRecord) -> SessionRecord:
        """Merge parallel turns of a shared session. The last one to be merged updates the object."""
        session = self._with_decoded(record).session()
        apply_changes(update.changes, session.state)
        session.service_session_id = update.service_session_id or session.service_session_id
        after = SessionRecord(session.session_id, session.service_session_id, session.state)
        self.update(after.session(), after)
        return after


_holders: WeakValueDictionary[int, LiveSession] = WeakValueDictionary()
"""Holders by the identity of their session."""


def live_session(session: AgentSession) -> LiveSession:
    """Return the holder of a session, one for all executors that share it."""
    found = _holders.get(id(session))
    if found is None:
        found = _holders[id(session)] = LiveSession(session)
    return found


@dataclass
class AgentTurn:
    """Run an agent once. `questions` are its own, `inner_requests` those of a workflow inside it.

    A stream gets the updates if `streams_response`.
    """

    agent: SupportsAgentRun
    name: str
    session: Any
    live: LiveSession | None
    ctx: WorkflowContext[Any, Any]
    streams_response: bool = True
    questions: list[Content] = field(default_factory=list["Content"], init=False)
    inner_requests: list[Request] = field(default_factory=list["Request"], init=False)
    _has_streamed: bool = field(default=False, init=False)
    _shown: dict[int, AgentResponseUpdate] = field(default_factory=dict[int, "AgentResponseUpdate"], init=False)
    """The updates as they were streamed, by the identity of the agent's own updates."""

    async def run(self, messages: Sequence[Message]) -> AgentResponse[Any]:
        """Run the agent, store its session, and return its response."""
        if self.live is None:
            # A session of another kind can't be stored.
            response, _ = await self._respond(messages, self.session)
        else:
            response = await self._run_with_session(messages, self.live)
        if self.ctx.activation.streaming and not self._has_streamed:
            # It comes from a record, or from an agent that doesn't stream.
            for update in response.to_updates():
                self._stream_update(update)
        # The response first: a call in an update may lack arguments that were streamed before.
        self.questions = deduplicate([*response.user_input_requests, *self.questions])
        self.inner_requests = inner_requests(self.ctx.activation)
        return response

    async def _run_with_session(self, messages: Sequence[Message], live: LiveSession) -> AgentResponse[Any]:
        activation = self.ctx.activation
        common = activation.common_scope()
        scope = common or activation.private_scope()
        stored = activation.read(scope, SESSION_KEY) if SESSION_KEY in activation.keys(scope) else None
        base = live.base(stored, is_shared=common is not None)
        response, session = await self._respond(messages, live.session_of(base))
        if common is None:
            record = SessionRecord.of(session)
            live.update(session, record)
        else:
            record = session_update(session, base=stored or base, is_first=stored is None)
            live.update(session)
        activation.write(scope, SESSION_KEY, record)
        return response

    async def _respond(self, messages: Sequence[Message], session: Any) -> tuple[AgentResponse[Any], Any]:
        """Return the response and the session after it. An agent that records nothing runs as one step."""
        if getattr(self.agent, "records_itself", False):
            return await self._run_agent(messages, session), session
        activation = self.ctx.activation
        counter = TokenCounter(activation, messages)

        async def turn() -> tuple[AgentResponse[Any], SessionRecord | None]:
            async with activation.reserve(TOKEN_RESOURCES):
                response = await self._run_agent(messages, session)
                counter.count(response)
            return response, SessionRecord.of(session) if isinstance(session, AgentSession) else None

        response, record = await activation.step(StepCall(f"turn of {self.name}", turn, (), is_stable=True))
        counter.check(response)
        return response, session if record is None else record.session()

    async def _run_agent(self, messages: Sequence[Message], session: Any) -> AgentResponse[Any]:
        is_streaming = self.ctx.activation.streaming
        kwargs = kwargs_of_executor(self.ctx.get_state(RUN_KWARGS_KEY, {}), self.name)
        tools = self.ctx.get_runtime_tools()
        if tools is not None:
            parameters = inspect.signature(self.agent.run).parameters
            if "tools" in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                kwargs["tools"] = tools
        with return_requests(self.agent):
            stream: Any = self.agent.run(list(messages), stream=is_streaming, session=session, **kwargs)
            if not is_streaming:
                return await stream
            if inspect.iscoroutine(stream):
                stream = await stream
            updates: list[AgentResponseUpdate] = []
            async for update in stream:
                updates.append(update)
                self._stream_update(update)
            if hasattr(stream, "get_final_response"):
                return await stream.get_final_response()
            return AgentResponse[Any].from_updates(updates)

    def _stream_update(self, update: AgentResponseUpdate) -> None:
        """Stream an update without its requests, which are emitted as request events."""
        if discards := getattr(update, "discards", ()):
            self._take_back(discards)
            return
        self.questions += update.user_input_requests
        left = [each for each in update.contents if not (each.user_input_request is True or is_inner_question(each))]
        if not self.streams_response or (update.contents and not left):
            return
        self._has_streamed = True
        given = update
        contents = self._mark_declared_calls(left)
        if contents != update.contents:
            update = copy(update)
            update.contents = contents
        self._shown[id(given)] = update
        self.ctx.activation.show(update)

    def _take_back(self, updates: Sequence[AgentResponseUpdate]) -> None:
        """Take back the updates of an attempt inside a workflow that is the agent."""
        gone = {id(each) for update in updates for each in update.user_input_requests}
        self.questions = [each for each in self.questions if id(each) not in gone]
        self.ctx.activation.take_back([self._shown[id(each)] for each in updates if id(each) in self._shown])

    def _mark_declared_calls(self, contents: Sequence[Content]) -> list[Content]:
        """Mark the calls that the user answers as requests."""
        options = getattr(self.agent, "default_options", None)
        own: Iterable[Any] = (cast("dict[str, Any]", options) if isinstance(options, dict) else {}).get("tools") or ()
        names = {each.name for each in own if getattr(each, "declaration_only", False)}
        return [
            replace(each, id=each.id or each.call_id, user_input_request=True)
            if each.type == "function_call" and each.name in names
            else each
            for each in contents
        ]
