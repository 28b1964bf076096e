"""Options as the parameters of a chat completion."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from perdure.agent_errors import ChatClientInvalidRequestException
from perdure.agents import expanded_tools, is_function_tool, normalize_tools
from perdure.providers.openai.options import OpenAIChatOptions
from perdure.providers.openai.sending import wire_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.providers.openai.sending import Wire

_RENAMED = {"allow_multiple_tool_calls": "parallel_tool_calls", "model_id": "model"}
_NEVER_SENT = frozenset(
    {"conversation_id", "instructions", "messages", "response_format", "stream", "tool_choice", "tools"}
)
"""Options that mean something to an agent alone, and those that are put in another way."""

_OF_OTHER_APIS = frozenset({"code_interpreter", "file_search", "image_generation", "mcp", "shell", "computer_use"})


def parameters_of(options: Mapping[str, Any], known: frozenset[str], *, is_openai: bool) -> Wire:
    """What is asked beside the conversation. `known` are the parameters that the SDK has; others go into the body.

    Raises ChatClientInvalidRequestException.
    """
    renamed = _RENAMED | ({"max_tokens": "max_completion_tokens"} if is_openai else {})
    asked: Wire = {}
    unknown: Wire = {}
    for name, value in options.items():
        if value is not None and name not in _NEVER_SENT:
            wire = renamed.get(name, name)
            (asked if wire in known else unknown)[wire] = value
    asked |= _tools(options, asked)
    if options.get("response_format") is not None:
        asked["response_format"] = wire_format(options["response_format"])
    if unknown:
        asked["extra_body"] = {**unknown, **asked.get("extra_body", {})}
    return asked


def unknown_options(options: Mapping[str, Any], known: Collection[str]) -> list[str]:
    """The names that neither we nor the SDK know, nor `OpenAIChatOptions`; what is misspelt is among them."""
    ours = {*known, *_RENAMED, *_NEVER_SENT, *OpenAIChatOptions.__optional_keys__}
    return [name for name, value in options.items() if value is not None and name not in ours]


def stream_parameters(options: Mapping[str, Any]) -> Wire:
    """What a stream is asked for: the tokens too, unless the options say otherwise."""
    told = options.get("stream_options", {"include_usage": True})
    return {"stream": True} if told is None else {"stream": True, "stream_options": told}


def _tools(options: Mapping[str, Any], asked: Wire) -> Wire:
    """The tools, and what belongs to them: without any, servers refuse it."""
    every = _wire_tools(expanded_tools(normalize_tools(options.get("tools"))))
    searches = [tool for tool in every if str(tool.get("type", "")).startswith("web_search")]
    found: Wire = {}
    if searches:
        found["web_search_options"] = {name: value for name, value in searches[0].items() if name != "type"}
    tools = [tool for tool in every if tool not in searches]
    if not tools:
        asked.pop("parallel_tool_calls", None)
        return found
    choice = options.get("tool_choice")
    return found | {"tools": tools} | ({} if choice is None else {"tool_choice": wire_choice(choice)})


def _wire_tools(tools: Iterable[Any]) -> list[Wire]:
    found: list[Wire] = []
    for tool in tools:
        if isinstance(tool, Mapping):
            hosted = dict(cast("Mapping[str, Any]", tool))
            if hosted.get("type") in _OF_OTHER_APIS:
                raise ChatClientInvalidRequestException(
                    f"chat completions have no tool {hosted['type']!r} that the provider runs; "
                    "give the agent a function or an MCP server in its place"
                )
            found.append(hosted)
        elif is_function_tool(tool):
            function = {"name": tool.name, "description": tool.description or "", "parameters": tool.parameters()}
            found.append({"type": "function", "function": function})
        else:
            raise ChatClientInvalidRequestException(
                f"{tool!r} is no tool that can be told to a model; give functions, tools made by @tool, or dicts"
            )
    return found


def wire_choice(choice: object) -> Any:
    """Whether tools may, must or must not be called, and which."""
    if not isinstance(choice, Mapping):
        return choice
    chosen = cast("Mapping[str, Any]", choice)
    if "mode" not in chosen:
        return dict(chosen)
    if name := chosen.get("required_function_name"):
        return {"type": "function", "function": {"name": name}}
    if allowed := chosen.get("allowed_tools"):
        tools = [{"type": "function", "function": {"name": name}} for name in allowed]
        return {"type": "allowed_tools", "allowed_tools": {"mode": chosen["mode"], "tools": tools}}
    return chosen["mode"]


def wire_format(response_format: object) -> Wire:
    """What an answer is to look like: a pydantic model, a JSON schema, or what the wire itself knows."""
    if inspect.isclass(response_format):
        return _strict_format(response_format)
    if not isinstance(response_format, Mapping):
        raise ChatClientInvalidRequestException(
            f"response_format is a pydantic model or a JSON schema, not {response_format!r}"
        )
    given = dict(cast("Mapping[str, Any]", response_format))
    if given.get("type") in {"json_schema", "json_object", "text"}:
        return given
    if isinstance(given.get("schema"), Mapping):
        named = {"name": wire_name(str(given.get("name") or "")) or "answer"}
        return {"type": "json_schema", "json_schema": given | named}
    name = wire_name(str(given.get("title") or "")) or "answer"
    return {"type": "json_schema", "json_schema": {"name": name, "schema": given}}


def _strict_format(model: type) -> Wire:
    import openai  # noqa: PLC0415 - it comes with an extra

    # The SDK knows what a strict schema is; this is its public way to one.
    function = openai.pydantic_function_tool(model)["function"]
    schema = {"name": wire_name(model.__name__) or "answer", "schema": function.get("parameters", {}), "strict": True}
    return {"type": "json_schema", "json_schema": schema}
