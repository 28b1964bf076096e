"""Agents as tools of other agents."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from perdure.agents.messages.message import Message
from perdure.agents.sessions.session import AgentSession
from perdure.agents.tools.tool import ApprovalMode, FunctionInvocationContext, FunctionTool
from perdure.agents.turn.approvals import APPROVALS_KEY, APPROVED_CALLS_KEY
from perdure.agents.turn.recording import return_requests
from perdure.errors import ToolExecutionException, UserInputRequiredException

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.lowlevel import Server
    from mcp_types import CallToolRequestParams

    from perdure.agents.messages.responses import AgentResponse, AgentResponseUpdate

    StreamCallback = Callable[[AgentResponseUpdate], Awaitable[None] | None]

_WAITING_KEY: Final = "agent_tools"
"""Where a session's state keeps the sessions of inner agents that wait for answers, by call."""


def agent_tool(
    agent: Any,
    *,
    name: str | None = None,
    description: str | None = None,
    arg_name: str = "task",
    arg_description: str | None = None,
    approval_mode: ApprovalMode = "never_require",
    stream_callback: StreamCallback | None = None,
    propagate_session: bool = False,
) -> FunctionTool:
    """Return this agent as a tool of another agent: it gets a task, and its answer is the result.

    With `propagate_session` it takes part in the other agent's session. Raises TypeError, ValueError.
    """
    if not callable(getattr(agent, "run", None)):
        raise TypeError(f"{type(agent).__name__!r} has no run method, so it can't be a tool")
    if not (name or agent.name):
        raise ValueError("a tool needs a name: use as_tool(name=...), or name the agent")
    tool_name = name or function_name(agent.name or "")
    schema = {
        "type": "object",
        "properties": {arg_name: {"type": "string", "description": arg_description or f"Task for {tool_name}"}},
        "required": [arg_name],
        "additionalProperties": False,
    }

    async def run(ctx: FunctionInvocationContext, **arguments: Any) -> str:
        message = Message("user", list(ctx.answers) or [str(arguments.get(arg_name, ""))])
        kwargs = {name: value for name, value in ctx.kwargs.items() if name != "session"}
        session = _open_session(ctx, tool_name, is_shared=propagate_session)
        start = partial(agent.run, message, session=session, function_invocation_kwargs=kwargs)
        response: AgentResponse[Any]
        with return_requests(agent):
            if stream_callback is None:
                response = await start()
            else:
                response = await start(stream=True).with_transform_hook(stream_callback).get_final_response()
        asked = response.user_input_requests
        if session is not None:
            _store_session(ctx, session, is_shared=propagate_session, is_waiting=bool(asked))
        if asked:
            raise UserInputRequiredException(asked)
        return response.text

    return AgentTool(
        name=tool_name,
        description=description or agent.description or "",
        func=run,
        input_model=schema,
        approval_mode=approval_mode,
        # An agent that records each of its calls can safely run again.
        if_interrupted="rerun" if getattr(agent, "records_itself", False) else "tell",
    )


def agent_mcp_server(
    agent: Any,
    *,
    server_name: str = "Agent",
    version: str | None = None,
    instructions: str | None = None,
    **settings: Any,
) -> Server[Any]:
    """Return an MCP server whose only tool is this agent, to be run with the SDK; `settings` are those of its `Server`.

    Each call is a run of the agent without a session; a failed one is an error result. Raises
    ModuleNotFoundError without the extra `mcp`.
    """
    try:
        from mcp import MCPError  # noqa: PLC0415 - an extra
        from mcp.server.lowlevel import Server  # noqa: PLC0415
        from mcp_types import INVALID_PARAMS, CallToolResult, ListToolsResult, TextContent, Tool  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("as_mcp_server needs the extra mcp: pip install 'perdure[mcp]'") from error
    tool = agent_tool(agent, name=function_name(agent.name or ""))
    listed = ListToolsResult(tools=[Tool(name=tool.name, description=tool.description, input_schema=tool.parameters())])

    async def list_tools(_: object, __: object) -> ListToolsResult:
        return listed

    async def call_tool(_: object, params: CallToolRequestParams) -> CallToolResult:
        if params.name != tool.name:
            raise MCPError(INVALID_PARAMS, f"there is no tool named {params.name!r}; the tool is {tool.name!r}")
        try:
            contents = await tool.invoke(arguments=params.arguments or {})
        except Exception as error:  # noqa: BLE001 - an agent may fail in any way
            return CallToolResult(content=[TextContent(text=f"{type(error).__name__}: {error}")], is_error=True)
        return CallToolResult(content=[TextContent(text=each.text) for each in contents if each.text])

    settings |= {"on_list_tools": list_tools, "on_call_tool": call_tool}
    return Server(server_name, version=version or "", instructions=instructions, **settings)


class AgentTool(FunctionTool):
    """A tool that runs an agent."""

    keeps_to_itself = True
    """True if parallel calls don't touch each other's part of the session."""


def _open_session(ctx: FunctionInvocationContext, name: str, *, is_shared: bool) -> AgentSession | None:
    """Return the inner agent's session for one call: its own, or a part of the outer agent's.

    Open questions of the two agents are kept apart. While the inner agent waits, the outer session stores its session.
    Without an outer session it has none. Raises ToolExecutionException.
    """
    outer: AgentSession | None = ctx.session
    if outer is None:
        if ctx.answers:
            raise ToolExecutionException(
                f"agent {name!r} has asked a question, but without a session the question is lost; run the outer agent "
                "with a session"
            )
        return None
    waiting: dict[str, Any] | None = outer.state.get(_WAITING_KEY, {}).pop(str(ctx.metadata.get("call_id")), None)
    if not is_shared:
        return AgentSession() if waiting is None else AgentSession.from_dict(waiting)
    # The provider's conversation id belongs to the outer agent alone.
    session = AgentSession(session_id=outer.session_id)
    session.state.update(_without_questions(outer.state), **(waiting or {}))
    return session


def _store_session(ctx: FunctionInvocationContext, session: AgentSession, *, is_shared: bool, is_waiting: bool) -> None:
    outer: dict[str, Any] = ctx.session.state
    if is_shared:
        outer.update(_without_questions(session.state))
    if is_waiting:
        asked = {APPROVALS_KEY: session.state.get(APPROVALS_KEY)} if is_shared else session.to_dict()
        outer.setdefault(_WAITING_KEY, {})[str(ctx.metadata.get("call_id"))] = asked


def _without_questions(state: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in state.items() if key not in {APPROVALS_KEY, APPROVED_CALLS_KEY, _WAITING_KEY}}


def function_name(name: str) -> str:
    """Convert a name to one that models accept: letters, digits and underscores."""
    found = re.sub(r"_+", "_", re.sub(r"[^a-zA-Z0-9_]", "_", name)).strip("_") or "agent"
    return f"_{found}" if found[0].isdigit() else found
