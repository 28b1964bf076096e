"""Agents as tools of other agents."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from perdure.agents.messages.message import Message
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.tool import FunctionInvocationContext, FunctionTool
from perdure.agents.turn.approvals import STATE_KEY
from perdure.agents.turn.call_ids import MADE_KEY
from perdure.errors import ToolExecutionException, UserInputRequiredException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.agents.agent import SupportsAgentRun
    from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate
    from perdure.agents.tools.tool import ApprovalMode

    StreamCallback = Callable[[AgentResponseUpdate], Awaitable[None] | None]

_WAITING: Final = "agent_tools"
"""Where a session keeps the sessions of agents that are its agent's tools and wait for answers, by call."""


def agent_tool(
    agent: SupportsAgentRun,
    *,
    name: str | None,
    description: str | None,
    arg_name: str,
    arg_description: str | None,
    approval_mode: ApprovalMode,
    stream_callback: StreamCallback | None,
    propagate_session: bool,
) -> FunctionTool:
    """A tool that gives an agent a task. Raises ValueError if neither has a name."""
    if not (name or agent.name):
        raise ValueError("a tool needs a name: give as_tool(name=...), or the agent a name")
    known_as = name or function_name(agent.name or "")
    schema = {
        "type": "object",
        "properties": {arg_name: {"type": "string", "description": arg_description or f"Task for {known_as}"}},
        "required": [arg_name],
        "additionalProperties": False,
    }

    async def act(ctx: FunctionInvocationContext, **arguments: Any) -> str:
        told = Message("user", list(ctx.answers) or [str(arguments.get(arg_name, ""))])
        kwargs = {name: value for name, value in ctx.kwargs.items() if name != "session"}
        inner = _Inner(ctx, is_shared=propagate_session)
        response = await _response(agent, told, inner.session(known_as), kwargs, stream_callback)
        inner.leave(is_waiting=bool(response.user_input_requests))
        if response.user_input_requests:
            raise UserInputRequiredException(response.user_input_requests)
        return response.text

    return AgentTool(
        name=known_as,
        description=description or agent.description or "",
        func=act,
        input_model=schema,
        approval_mode=approval_mode,
        # Where each call that the agent makes is recorded for itself, going on is safe.
        if_interrupted="rerun" if _records_itself(agent) else "tell",
    )


def _records_itself(agent: SupportsAgentRun) -> bool:
    from perdure.agents.agent import Agent  # noqa: PLC0415 - agents make tools of themselves

    return isinstance(agent, Agent) or getattr(agent, "records_itself", False)


class AgentTool(FunctionTool):
    """A tool that is an agent."""

    keeps_to_itself = True
    """Whether calls side by side leave the session of each other alone: what each waits for is kept by its call."""


async def _response(
    agent: SupportsAgentRun,
    told: Message,
    session: AgentSession | None,
    kwargs: dict[str, Any],
    stream_callback: StreamCallback | None,
) -> AgentResponse[Any]:
    if stream_callback is None:
        return await agent.run(told, session=session, function_invocation_kwargs=kwargs)
    stream = agent.run(told, stream=True, session=session, function_invocation_kwargs=kwargs)

    async def tell(update: AgentResponseUpdate) -> None:
        outcome = stream_callback(update)
        if outcome is not None:
            await outcome

    return await stream.with_transform_hook(tell).get_final_response()


class _Inner:
    """The session of the inner agent, for one call: its own, or that of the outer one.

    What both would ask under one name is not shared. What the inner one waits for stays with the outer session.
    """

    def __init__(self, ctx: FunctionInvocationContext, *, is_shared: bool) -> None:
        self._ctx = ctx
        self._is_shared = is_shared
        self._session: AgentSession | None = None

    def session(self, name: str) -> AgentSession | None:
        """The session to go on with; None if there is none outside. Raises ToolExecutionException."""
        outer: AgentSession | None = self._ctx.session
        if outer is None:
            self._require_no_answers(name)
            return None
        waiting: dict[str, Any] | None = outer.state.get(_WAITING, {}).pop(self._call_id, None)
        if self._is_shared:
            # What the provider calls the conversation stays that of the outer agent.
            self._session = AgentSession(session_id=outer.session_id)
            self._session.state.update(_without_questions(outer.state), **(waiting or {}))
        else:
            self._session = AgentSession() if waiting is None else AgentSession.from_dict(waiting)
        return self._session

    def _require_no_answers(self, name: str) -> None:
        if self._ctx.answers:
            raise ToolExecutionException(
                f"agent {name!r} has asked something, and nobody knows any more what it was about; run the agent that "
                "it is a tool of with a session"
            )

    @property
    def _call_id(self) -> str:
        return str(self._ctx.metadata.get("call_id"))

    def leave(self, *, is_waiting: bool) -> None:
        """Keep what has become of it."""
        session = self._session
        if session is None:
            return
        outer: dict[str, Any] = self._ctx.session.state
        if self._is_shared:
            outer.update(_without_questions(session.state))
        if is_waiting:
            asked = {STATE_KEY: session.state.get(STATE_KEY)} if self._is_shared else session.to_dict()
            outer.setdefault(_WAITING, {})[self._call_id] = asked


def _without_questions(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in {STATE_KEY, MADE_KEY, _WAITING}}


def function_name(name: str) -> str:
    """A name that a model can call: letters, digits, underscores."""
    found = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_]", "_", name)).strip("_") or "agent"
    return f"_{found}" if found[0].isdigit() else found
