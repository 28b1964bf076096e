"""One turn of an agent in a workflow: the session that it goes on with, the answer, and what is kept of both."""

from __future__ import annotations

import inspect
import logging
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.agent import Agent
from perdure.agents.executor.requests import distinct, is_question, questions_of
from perdure.agents.executor.session import SessionRecord, update_of
from perdure.agents.messages.responses import AgentResponse
from perdure.agents.sessions.session import AgentSession
from perdure.data import mutable
from perdure.engine import GLOBAL_KWARGS_KEY, RUN_KWARGS_KEY
from perdure.graph import StepCall

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.executor.session import LiveSession
    from perdure.agents.messages.content import Content
    from perdure.agents.messages.message import Message
    from perdure.agents.messages.responses import AgentResponseUpdate
    from perdure.graph import ActivationPort, WorkflowContext
    from perdure.kernel import Request

_KEY = "shown"
_TEXTS = frozenset({"text", "text_reasoning"})
_MARK = "\0"
"""Stands in what was told before the name of each kind of content. No text has it."""


@mutable
class Shown:
    """All that was told, as one text, and how far another attempt has told the same again."""

    _told: str = ""
    _place: int = 0
    _kind: str = ""
    """Of what was told last."""
    _call_id: str = ""
    _is_call_new: bool = True
    _attempt: object = None

    @classmethod
    def to(cls, activation: object, memo: dict[str, object]) -> Shown:
        """What attempts before this one have told, as they left it behind."""
        shown = memo.setdefault(_KEY, cls())
        assert isinstance(shown, cls), "nobody else has this key"
        if shown._attempt is not activation:
            shown._attempt, shown._place, shown._kind, shown._call_id = activation, 0, "", ""
        return shown

    def rest_of(self, update: AgentResponseUpdate) -> AgentResponseUpdate | None:
        """What of an update is still to be told; None if nothing is."""
        contents = [rest for content in update.contents if (rest := self._rest(content)) is not None]
        if contents == update.contents:
            return update
        rest = copy(update)
        rest.contents = contents
        return rest if contents else None

    def _rest(self, content: Content) -> Content | None:
        kind, is_more = content.type, self._kind == content.type
        self._kind = kind
        key = content.call_id or content.id or ""
        if kind in _TEXTS:
            text = content.text or ""
            new = self._new("" if is_more else f"{_MARK}{kind}{_MARK}", text)
            return content if new == text else replace(content, text=new) if new else None
        if kind == "function_call" and is_more and key in {"", self._call_id}:
            # More of the arguments of the call before it.
            return content if self._is_call_new else None
        is_new = bool(self._new(f"{_MARK}{kind}{_MARK}", f"{key}{_MARK}"))
        self._call_id, self._is_call_new = key, is_new
        return content if is_new else None

    def _new(self, mark: str, text: str) -> str:
        """What of a text was not told yet at this place."""
        whole, told = f"{mark}{text}", self._told
        start, self._place = self._place, self._place + len(whole)
        if told.startswith(whole, start):
            return ""
        tail = told[start : self._place]
        # What was told beyond this place, if it was something else, is not what is told now.
        self._told = told[:start] + whole
        is_same_so_far = start + len(tail) == len(told) and whole.startswith(tail)
        return text[max(0, len(tail) - len(mark)) :] if is_same_so_far else text


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

        response, record = await activation.step(StepCall(f"turn of {self.name}", turn, (), is_stable=True))
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
