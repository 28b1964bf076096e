"""What a call of a model can be told: common options, and how those of an agent and of one run come together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence  # noqa: TC003 - the fields of options are looked at
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

from typing_extensions import TypedDict, TypeVar

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


async def validate_chat_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, if their numbers are such as a model can take. Raises ValueError."""
    found = dict(options)
    for name, (least, most) in _RANGES.items():
        if found.get(name) is not None:
            if not least <= found[name] <= most:
                raise ValueError(f"{name} is {found[name]}; it must be between {least} and {most}")
            found[name] = float(found[name])
    if found.get("max_tokens") is not None and found["max_tokens"] <= 0:
        raise ValueError(f"max_tokens is {found['max_tokens']}; it must be greater than 0")
    return found
