"""Agents as data: what a definition says of an agent that is made when the workflow is built."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure import Agent
from perdure.agent_workflows.copying import plain_copy
from perdure.agent_workflows.errors import AgentWorkflowBuildError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure import SupportsChatGetResponse


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """An agent that is made when the workflow is built, with the chat client of the builder.

    `tools` are names of tools that the builder was given. `options` are those of the chat client, as `temperature`.
    They are written down with the definition: a key or a password among them has to be a `Secret`, which is left out.
    """

    name: str | None = None
    instructions: str | None = None
    description: str | None = None
    model: str | None = None
    tools: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", plain_copy(self.options))


def made_agent(
    config: AgentConfig, *, name: str, client: SupportsChatGetResponse | None, tools: Mapping[str, Any]
) -> Agent[Any]:
    """The agent of a config. It is called `name` if the config has no name.

    Raises AgentWorkflowBuildError if there is no client, a tool was not given, or the options make no sense.
    """
    missing = [tool for tool in config.tools if tool not in tools]
    problems = [_unknown_tool(name, tool, tools) for tool in missing]
    if client is None:
        problems.insert(0, f"agent {name!r} is data and needs a chat client to be made with; give the builder one")
    if client is None or problems:
        raise AgentWorkflowBuildError(problems)
    try:
        return Agent(
            client,
            config.instructions,
            # An id that was drawn is another one in each process.
            id=name,
            name=config.name or name,
            description=config.description,
            tools=[tools[tool] for tool in config.tools] or None,
            default_options=_options(config),
        )
    except (TypeError, ValueError) as error:
        raise AgentWorkflowBuildError(f"agent {name!r} can't be made: {error}") from error


def _options(config: AgentConfig) -> dict[str, Any]:
    own = {} if config.model is None else {"model": config.model}
    return {**config.options, **own}


def _unknown_tool(name: str, tool: str, tools: Mapping[str, Any]) -> str:
    known = ", ".join(map(repr, tools)) or "none"
    return f"agent {name!r} is to have the tool {tool!r}, and the builder was given {known}; give it that tool, too"
