"""The agent of a node: what was given as one, and a copy of that, which is told how the node answers."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any, cast

from perdure import Agent, ChatMiddlewareLayer
from perdure.agent_workflows.choices import ChoiceTool, MustChoose
from perdure.agent_workflows.definition import Handoffs, StructuredOutput, UnionOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.choices import Choice
    from perdure.agent_workflows.definition import Node


def given_agent(given: Any) -> Any:
    """What was given as the agent of a node: of an agent workflow, that workflow as an agent."""
    from perdure.agent_workflows.workflow import AgentWorkflow  # noqa: PLC0415 - it is made of nodes

    return given.as_agent() if isinstance(given, AgentWorkflow) else given


def agent_of(node: Node, agent: SupportsAgentRun, choices: Sequence[Choice]) -> SupportsAgentRun:
    """The agent as the node needs it. The one that was given is not changed.

    Raises TypeError if an agent is to do what only an `Agent` can, ValueError if two of its tools have one name.
    """
    why = _why_agent(node)
    if why is None:
        return agent
    if not isinstance(agent, Agent):
        raise TypeError(
            f"node {node.id!r} {why}, and only an Agent can be told that, not a {type(agent).__name__}; give the node "
            "an Agent, or leave that out"
        )
    own = cast("Agent[Any]", agent)
    return _with_options(own, _options(node, own, choices), has_choices=bool(choices))


def _why_agent(node: Node) -> str | None:
    """What of a node takes an `Agent`, in words; None if any agent will do."""
    match node.output:
        case Handoffs():
            return "is a router"
        case UnionOutput():
            return "has an output of several types"
        case StructuredOutput():
            return "has a structured output"
        case _:
            return None if node.instructions is None else "has instructions"


def _options(node: Node, agent: Agent[Any], choices: Sequence[Choice]) -> dict[str, Any]:
    own: dict[str, Any] = dict(agent.default_options)
    if node.instructions is not None:
        own["instructions"] = "\n".join(filter(None, (own.get("instructions"), node.instructions)))
    if choices:
        own.pop("response_format", None)
        # Models that can be told to call one tool at a time are told so.
        own |= {"tools": _tools(node, own, choices), "tool_choice": "required", "allow_multiple_tool_calls": False}
    elif isinstance(node.output, StructuredOutput):
        own["response_format"] = node.output.type
    return own


def _tools(node: Node, options: dict[str, Any], choices: Sequence[Choice]) -> list[Any]:
    tools: list[Any] = list(options.get("tools") or ())
    names = {getattr(tool, "name", None) for tool in tools}
    for choice in choices:
        if choice.tool_name in names:
            raise ValueError(
                f"the agent of node {node.id!r} has a tool named {choice.tool_name!r}, and the node needs that name "
                f"for the choice of {choice.means!r}; rename the tool"
            )
        tools.append(ChoiceTool(choice))
    return tools


def _with_options(agent: Agent[Any], options: dict[str, Any], *, has_choices: bool) -> Agent[Any]:
    copied = copy.copy(agent)
    copied.context_providers = list(agent.context_providers)
    # A client without this layer would pass middleware on to its provider.
    forced = [MustChoose()] if has_choices and isinstance(agent.client, ChatMiddlewareLayer) else []
    copied.middleware = [*agent.middleware, *forced]
    copied.additional_properties = dict(agent.additional_properties)
    copied.default_options = options
    return copied
