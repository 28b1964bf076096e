"""One turn of an agent in a workflow: the session that it goes on with, the answer, and what is kept of both."""

from __future__ import annotations

import inspect
import logging
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.agent import Agent
from perdure.agents.executor_questions import is_question, questions_of
from perdure.agents.executor_requests import distinct
from perdure.agents.executor_session import SessionRecord, update_of
from perdure.agents.executor_shown import Shown
from perdure.agents.responses import AgentResponse
from perdure.agents.sessions import AgentSession
from perdure.engine import GLOBAL_KWARGS_KEY, RUN_KWARGS_KEY
from perdure.graph import StepCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.content import Content
    from perdure.agents.executor_session import LiveSession
    from perdure.agents.messages import Message
    from perdure.agents.responses import AgentResponseUpdate
    from perdure.graph import ActivationPort, WorkflowContext
    from perdure.kernel import Request

logger = logging.getLogger(__name__)

SESSION_KEY: Final = "session"
_KWARGS = ("function_invocation_kwargs", "client_kwargs")


@dataclass
class AgentTurn:
    """Asks an agent once. `asked` is what the agent wants to know before it goes on.

    `questions` are those of a workflow inside of the agent. Who reads a stream is told the answer if `is_told`.
    """

    agent: SupportsAgentRun
    name: str
    session: Any
    live: LiveSession | None
    ctx: WorkflowContext[Any, Any]
    is_told: bool = True
    asked: list[Content] = field(default_factory=list["Content"], init=False)
    questions: list[Request] = field(default_factory=list["Request"], init=False)
    _has_shown: bool = field(default=False, init=False)

    @property
    def _activation(self) -> ActivationPort:
        return self.ctx.activation

    async def taken(self, messages: Sequence[Message]) -> AgentResponse[Any]:
        """The agent's answer. The session is kept with it."""
        if self.live is None:
            # It is none of ours, and nobody knows how to keep it.
            response, _ = await self._answered(messages, self.session)
        else:
            response = await self._kept(messages, self.live)
        if self._activation.streaming and not self._has_shown:
            # It came from a record, or from an agent that does not stream.
            for update in response.to_updates():
                self._show(update)
        # The whole first: a piece of a stream that asks a call lacks the arguments, which were told before.
        self.asked = distinct([*response.user_input_requests, *self.asked])
        self.questions = questions_of(self._activation)
        return response

    async def _kept(self, messages: Sequence[Message], live: LiveSession) -> AgentResponse[Any]:
        common = self._activation.common_scope()
        scope = common or self._activation.private_scope()
        stored = self._stored(scope)
        base = live.base(stored, is_shared=common is not None)
        response, session = await self._answered(messages, live.session_of(base))
        if common is None:
            record = SessionRecord.of(session)
            live.leave(session, record)
        else:
            record = update_of(session, base=stored or base, is_first=stored is None)
            live.leave(session)
        self._activation.write(scope, SESSION_KEY, record)
        return response

    def _stored(self, scope: str) -> SessionRecord | None:
        try:
            return self._activation.read(scope, SESSION_KEY)
        except KeyError:
            return None

    async def _answered(self, messages: Sequence[Message], session: Any) -> tuple[AgentResponse[Any], Any]:
        """The answer, and the session after it. An agent of ours records each of its calls itself."""
        if isinstance(self.agent, Agent) or getattr(self.agent, "records_itself", False):
            return await self._run(messages, session), session
        return await self._recorded(messages, session)

    async def _recorded(self, messages: Sequence[Message], session: Any) -> tuple[AgentResponse[Any], Any]:
        """The whole turn of an agent that records nothing, as one step."""
        activation = self._activation

        async def turn() -> tuple[AgentResponse[Any], SessionRecord | None]:
            activation.require_budget()
            response = await self._run(messages, session)
            activation.spend(tokens_in(response))
            return response, SessionRecord.of(session) if isinstance(session, AgentSession) else None

        response, record = await activation.step(StepCall(f"turn of {self.name}", turn, ()))
        return response, session if record is None else record.session()

    async def _run(self, messages: Sequence[Message], session: Any) -> AgentResponse[Any]:
        kwargs = self._kwargs()
        if not self._activation.streaming:
            whole: Any = self.agent.run(list(messages), stream=False, session=session, **kwargs)
            return await whole
        stream: Any = self.agent.run(list(messages), stream=True, session=session, **kwargs)
        if inspect.iscoroutine(stream):
            stream = await stream
        updates: list[AgentResponseUpdate] = []
        async for update in stream:
            updates.append(update)
            self._show(update)
        if hasattr(stream, "get_final_response"):
            return await stream.get_final_response()
        return AgentResponse.from_updates(updates)

    def _show(self, update: AgentResponseUpdate) -> None:
        """Tell an update, without what is told as a request."""
        self.asked += update.user_input_requests
        left = [each for each in update.contents if not (each.user_input_request is True or is_question(each))]
        if not self.is_told or (update.contents and not left):
            return
        self._has_shown = True
        if len(left) < len(update.contents):
            update = copy(update)
            update.contents = left
        rest = Shown.to(self._activation, self._activation.memo).rest_of(self._declared(update))
        if rest is not None:
            self._activation.show(rest)

    def _declared(self, update: AgentResponseUpdate) -> AgentResponseUpdate:
        """An update that says which of its calls others are to make: they are asked for them."""
        names = _declared_tools(self.agent)
        if not any(content.name in names for content in update.contents if content.type == "function_call"):
            return update
        told = copy(update)
        told.contents = [_asking(each) if each.name in names else each for each in update.contents]
        return told

    def _kwargs(self) -> dict[str, Any]:
        """What the run was given for this executor, or for all."""
        given: Mapping[str, Mapping[str, Any]] = self.ctx.get_state(RUN_KWARGS_KEY, {})
        return {kind: self._own(given.get(kind, {})) for kind in _KWARGS}

    def _own(self, by_target: Mapping[str, Any]) -> dict[str, Any] | None:
        own: object = by_target.get(self.name, by_target.get(GLOBAL_KWARGS_KEY))
        if own is None or isinstance(own, dict):
            return cast("dict[str, Any] | None", own)
        logger.warning("agent %r is given kwargs that are no dict but a %s: ignored", self.name, type(own).__name__)
        return None


def _declared_tools(agent: SupportsAgentRun) -> set[str]:
    own: Iterable[Any] = agent.default_options.get("tools") or () if isinstance(agent, Agent) else ()
    return {each.name for each in own if getattr(each, "declaration_only", False)}


def _asking(call: Content) -> Content:
    return replace(call, id=call.id or call.call_id, user_input_request=True) if call.type == "function_call" else call


def tokens_in(response: AgentResponse[Any]) -> dict[str, float]:
    """What an answer has cost, as a run counts it."""
    usage: Mapping[str, Any] = response.usage_details or {}
    names = {"input_tokens": "input", "output_tokens": "output", "total_tokens": "total"}
    counts = {name: usage.get(f"{short}_token_count") for name, short in names.items()}
    return {name: count for name, count in counts.items() if count}
