"""What a call of a model can be told: common options, and how those of an agent and of one run come together."""

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
"""Functions, FunctionTools, MCP tools, and dicts for tools that the provider has: one, or several."""


class ToolMode(TypedDict, total=False):
    """Whether a model may call tools, has to, or must not; and which of them."""

    mode: Literal["auto", "required", "none"]
    required_function_name: str
    allowed_tools: list[str]


class ChatOptions(TypedDict, Generic[ResponseModelT], total=False):
    """What most models can be told. A client may know more, and says so in a TypedDict of its own."""

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


_Combine: TypeAlias = "Callable[[Any, Any], Any]"
_COMBINED: Mapping[str, _Combine] = {
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
_MODES_SAID = "'auto', 'required' or 'none'"


def merged_options(*every: Mapping[str, Any] | None) -> dict[str, Any]:
    """Options together: the later ones win, instructions add up, None says nothing. Tools are not looked at."""
    merged: dict[str, Any] = {}
    for options in every:
        for name, value in (options or {}).items():
            if value is None:
                continue
            combine = _COMBINED.get(name)
            merged[name] = combine(merged[name], value) if combine is not None and merged.get(name) else value
    return merged


def merge_chat_options(base: Mapping[str, Any] | None, override: Mapping[str, Any] | None) -> dict[str, Any]:
    """Two sets of options together: the second wins, instructions and tools add up, None says nothing."""
    merged = merged_options(base, override)
    tools = [tool for options in (base, override) for tool in _listed((options or {}).get("tools"))]
    if tools:
        merged["tools"] = [tool for place, tool in enumerate(tools) if not any(tool is each for each in tools[:place])]
    return merged


def _listed(tools: Any) -> Sequence[Any]:
    if tools is None:
        return ()
    return cast("Sequence[Any]", tools) if isinstance(tools, list | tuple) else (tools,)


async def validate_chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if they are such as a model can take. Raises ValueError, TypeError."""
    return checked_options(options)


def checked_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if those that are known are such as a model can take. Raises ValueError, TypeError."""
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
    if not (isinstance(choice, Mapping) and "mode" not in choice):  # A provider may have its own way to say it.
        validate_tool_mode(choice)
    require_format(found.get("response_format"))
    return found


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{name} is {value!r}; it must be a number")


def validate_tool_mode(tool_choice: Any) -> ToolMode | None:
    """Whether a model may call tools, as a dict. Raises OptionsError, TypeError."""
    if tool_choice is None:
        return None
    chosen: Any = {"mode": tool_choice} if isinstance(tool_choice, str) else tool_choice
    if not isinstance(chosen, Mapping):
        raise TypeError(f"tool_choice is {tool_choice!r}; it must be {_MODES_SAID}, or a dict with one of them as mode")
    _require_mode(cast("Mapping[str, Any]", chosen))
    return cast("ToolMode", chosen)


def _require_mode(chosen: Mapping[str, Any]) -> None:
    mode = chosen.get("mode")
    if mode not in _MODES:
        raise OptionsError(f"the tool_choice is {mode!r}; it must be {_MODES_SAID}")
    if mode != "required" and "required_function_name" in chosen:
        raise OptionsError(f"the tool_choice is {mode!r} and names a function; only 'required' can require one")
    allowed = chosen.get("allowed_tools")
    if allowed is None:
        return
    if mode == "none":
        raise OptionsError("the tool_choice is 'none' and allows tools; leave out one of the two")
    if isinstance(allowed, str) or not isinstance(allowed, Sequence):
        raise OptionsError(f"the allowed_tools of tool_choice are {allowed!r}; they must be a list of names")
