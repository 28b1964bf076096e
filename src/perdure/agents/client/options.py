"""Options of a model call, and the merging of an agent's options with those of one run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, cast

from typing_extensions import TypedDict, TypeVar

from perdure.agents.messages.responses import require_format
from perdure.errors import OptionsError

if TYPE_CHECKING:
    from pydantic import BaseModel

ResponseModelT = TypeVar("ResponseModelT", bound="BaseModel | None", default=Any)

Tools: TypeAlias = "Any | Sequence[Any] | None"
"""Functions, FunctionTools, MCP tools, and dicts for tools of the provider: one or several."""


class ToolMode(TypedDict, total=False):
    """If a model may, must or must not call tools, and which ones."""

    mode: Literal["auto", "required", "none"]
    required_function_name: str
    allowed_tools: list[str]


class ChatOptions(TypedDict, Generic[ResponseModelT], total=False):
    """Options that most models know. A client with more declares its own TypedDict."""

    model: str
    temperature: float
    top_p: float
    max_tokens: int
    stop: str | Sequence[str]
    seed: int
    logit_bias: dict[str | int, float]
    frequency_penalty: float
    presence_penalty: float
    tools: Tools
    tool_choice: ToolMode | Literal["auto", "required", "none"]
    allow_multiple_tool_calls: bool
    response_format: type[ResponseModelT] | Mapping[str, Any] | None
    metadata: dict[str, Any]
    user: str
    store: bool
    conversation_id: str
    instructions: str


_COMBINED: Mapping[str, Callable[[Any, Any], Any]] = {
    "instructions": lambda first, second: f"{first}\n{second}",
    "logit_bias": lambda first, second: {**first, **second},
    "metadata": lambda first, second: {**first, **second},
}
_RANGES = {
    "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0),
    "temperature": (0.0, 2.0),
    "top_p": (0.0, 1.0),
}
_MODES = ("auto", "required", "none")
_MODES_TEXT = "'auto', 'required' or 'none'"


def merge_options(*every: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge options: later ones win, instructions are joined, None is ignored. Tools are not merged."""
    merged: dict[str, Any] = {}
    for options in every:
        for name, value in (options or {}).items():
            if value is None:
                continue
            combine = _COMBINED.get(name)
            merged[name] = combine(merged[name], value) if combine is not None and merged.get(name) else value
    return merged


def merge_chat_options(base: Mapping[str, Any] | None, override: Mapping[str, Any] | None) -> dict[str, Any]:
    """Merge two sets of options: the second wins, instructions and tools are joined, None is ignored."""
    merged = merge_options(base, override)
    tools: list[Any] = []
    for options in (base, override):
        given: Any = (options or {}).get("tools") or ()
        tools += given if isinstance(given, list | tuple) else (given,)
    if tools:
        merged["tools"] = [tool for place, tool in enumerate(tools) if not any(tool is each for each in tools[:place])]
    return merged


async def validate_chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options if a model can accept them. Raises ValueError, TypeError."""
    return check_options(options)


def check_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options if the known ones are valid. Raises ValueError, TypeError."""
    found = dict(options)
    for name, (least, most) in _RANGES.items():
        if found.get(name) is not None:
            _require_number(name, found[name])
            if not least <= found[name] <= most:
                raise ValueError(f"{name} is {found[name]}; it must be between {least} and {most}")
            found[name] = float(found[name])
    if (tokens := found.get("max_tokens")) is not None:
        _require_number("max_tokens", tokens)
        if tokens <= 0:
            raise ValueError(f"max_tokens is {tokens}; it must be greater than 0")
    choice = found.get("tool_choice")
    if not (isinstance(choice, Mapping) and "mode" not in choice):  # a provider's own format
        validate_tool_mode(choice)
    require_format(found.get("response_format"))
    return found


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; it must be a number")


def validate_tool_mode(tool_choice: Any) -> ToolMode | None:
    """Return the tool choice as a dict. Raises OptionsError, TypeError."""
    if tool_choice is None:
        return None
    chosen: Any = {"mode": tool_choice} if isinstance(tool_choice, str) else tool_choice
    if not isinstance(chosen, Mapping):
        raise TypeError(f"tool_choice is {tool_choice!r}; it must be {_MODES_TEXT}, or a dict with one of them as mode")
    choice = cast("Mapping[str, Any]", chosen)
    mode = choice.get("mode")
    if mode not in _MODES:
        raise OptionsError(f"tool_choice is {mode!r}; it must be {_MODES_TEXT}")
    if mode != "required" and "required_function_name" in choice:
        raise OptionsError(f"tool_choice {mode!r} names a required function; only 'required' can")
    allowed = choice.get("allowed_tools")
    if allowed is not None and mode == "none":
        raise OptionsError("tool_choice 'none' has allowed_tools; drop one of the two")
    if allowed is not None and (isinstance(allowed, str) or not isinstance(allowed, Sequence)):
        raise OptionsError(f"the allowed_tools of tool_choice are {allowed!r}; they must be a list of names")
    return cast("ToolMode", chosen)
