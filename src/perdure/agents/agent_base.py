"""What every agent is, and what agents of ours have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from perdure.agents.agent_tool import agent_tool
from perdure.agents.middleware_kinds import listed_middleware
from perdure.agents.sessions import AgentSession
from perdure.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agents.agent_tool import StreamCallback
    from perdure.agents.messages import AgentRunInputs
    from perdure.agents.middleware_kinds import MiddlewareTypes
    from perdure.agents.providers import ContextProvider
    from perdure.agents.tools import ApprovalMode, FunctionTool

_UNNAMED = "agent"


@runtime_checkable
class SupportsAgentRun(Protocol):
    """Anything that can be told something and answers: agents of every kind."""

    id: str
    name: str | None
    description: str | None

    def run(
        self,
        messages: AgentRunInputs | None = None,
        *,
        stream: bool = False,
        session: AgentSession | None = None,
        function_invocation_kwargs: Mapping[str, Any] | None = None,
        client_kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """An awaitable AgentResponse, or a ResponseStream of AgentResponseUpdates that ends in one."""
        ...

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new session."""
        ...

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        """A session that the provider keeps."""
        ...


class BaseAgent:
    """What agents have in common. A subclass says in `run` how it answers."""

    require_per_service_call_history_persistence: bool = False

    def __init__(
        self,
        *,
        id: str | None = None,  # noqa: A002 - the reference's name
        name: str | None = None,
        description: str | None = None,
        context_providers: Sequence[ContextProvider] | None = None,
        middleware: MiddlewareTypes | Sequence[MiddlewareTypes] | None = None,
        additional_properties: Mapping[str, Any] | None = None,
    ) -> None:
        self.id = id or SystemClock().new_id()
        self._perdure_drawn_id = None if id else self.id
        self.name = name
        self.description = description
        self.context_providers: list[ContextProvider] = _providers(context_providers)
        self.middleware: list[MiddlewareTypes] = listed_middleware(middleware)
        self.additional_properties: dict[str, Any] = dict(additional_properties or {})

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        """A new session."""
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: Any, *, session_id: str | None = None) -> AgentSession:
        """A session that the provider keeps, by the id that it has for it."""
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    def as_tool(
        self,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_name: str = "task",
        arg_description: str | None = None,
        approval_mode: ApprovalMode = "never_require",
        stream_callback: StreamCallback | None = None,
        propagate_session: bool = False,
    ) -> FunctionTool:
        """This agent as a tool of another: it is given a task, and its answer is the result.

        `propagate_session` lets it take part in the session of the other. Raises TypeError, ValueError.
        """
        if not isinstance(self, SupportsAgentRun):
            raise TypeError(f"{type(self).__name__!r} has no run method, so it can't be a tool")
        return agent_tool(
            self,
            name=name,
            description=description,
            arg_name=arg_name,
            arg_description=arg_description,
            approval_mode=approval_mode,
            stream_callback=stream_callback,
            propagate_session=propagate_session,
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}(name={self.name!r}, id={self.id!r})"


def lasting_name(agent: SupportsAgentRun) -> str:
    """What an agent is called in every process: its name, the id that it was given, or "agent"."""
    drawn: object = getattr(agent, "_perdure_drawn_id", None)
    # An id that was drawn is another one in each process; what is recorded needs a name that stays.
    return agent.name or (agent.id if agent.id != drawn else _UNNAMED)


def _providers(given: object) -> list[ContextProvider]:
    if given is None:
        return []
    several = list(cast("Sequence[object]", given)) if isinstance(given, Sequence) else [given]
    for each in several:
        if not (hasattr(each, "before_run") and hasattr(each, "after_run")):
            raise TypeError(f"context_providers is a list of ContextProviders, and {each!r} is none")
    return cast("list[ContextProvider]", several)
