"""What is wanted of a call: options as pydantic-ai's settings, tools, and what the answer is to look like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.native_tools import NATIVE_TOOL_TYPES, AbstractNativeTool
from pydantic_ai.output import OutputObjectDefinition
from pydantic_ai.settings import ModelSettings, ToolOrOutput
from pydantic_ai.tools import ToolDefinition

from perdure.agent_errors import ChatClientInvalidRequestException

if TYPE_CHECKING:
    from pydantic import BaseModel

    from perdure.agents import ResponseFormat

OUTPUT_TOOL: Final = "final_result"
"""The tool that a model is made to call with its answer, where it can't be made to answer in JSON."""

_NAMES: Final = {"stop": "stop_sequences", "allow_multiple_tool_calls": "parallel_tool_calls"}
_NO_SETTINGS: Final = frozenset(
    {
        "model",
        "model_id",
        "tools",
        "tool_choice",
        "response_format",
        "instructions",
        "conversation_id",
        "store",
        "metadata",
        "user",
    }
)


def settings_of(options: Mapping[str, Any], own: Mapping[str, Any]) -> ModelSettings:
    """Options as settings: those of a client, and over them those of a call. A name that we don't know is passed on."""
    found: dict[str, Any] = dict(own)
    for name, value in options.items():
        if value is not None and name not in _NO_SETTINGS:
            found[_NAMES.get(name, name)] = value
    if isinstance(found.get("stop_sequences"), str):
        found["stop_sequences"] = [found["stop_sequences"]]
    if not options.get("tools"):
        found.pop("parallel_tool_calls", None)
    elif (choice := _choice(options.get("tool_choice"))) is not None:
        found["tool_choice"] = choice
    return cast("ModelSettings", found)


def _choice(choice: Any) -> Any:
    """Whether the model may, has to or must not call tools, and which."""
    if not isinstance(choice, Mapping):
        return choice
    told = cast("Mapping[str, Any]", choice)
    if name := told.get("required_function_name"):
        return [name]
    allowed = told.get("allowed_tools")
    if not allowed:
        return told.get("mode")
    return list(allowed) if told.get("mode") == "required" else ToolOrOutput(function_tools=list(allowed))


def parameters_of(options: Mapping[str, Any]) -> ModelRequestParameters:
    """Tools, and what the answer is to look like. Whether by JSON or by a tool is left to what the model can do.

    Raises ChatClientInvalidRequestException.
    """
    tools = options.get("tools")
    each = cast("Sequence[Any]", tools) if isinstance(tools, Sequence) else [] if tools is None else [tools]
    functions = [definition for tool in each if (definition := _definition(tool)) is not None]
    native = [_native(tool) for tool in each if _definition(tool) is None]
    shape = _shape(options.get("response_format"))
    if shape is None:
        return ModelRequestParameters(function_tools=functions, native_tools=native)
    output = replace(
        _described(OUTPUT_TOOL, shape.json_schema, shape.description or "Give the answer with this."), kind="output"
    )
    return ModelRequestParameters(
        function_tools=functions,
        native_tools=native,
        output_mode="auto",
        output_object=shape,
        output_tools=[output],
    )


def _definition(tool: Any) -> ToolDefinition | None:
    """A tool that the model can have called; None of one that its provider runs."""
    if isinstance(tool, Mapping):
        described = cast("Mapping[str, Any]", tool)
        if described.get("type", "function") != "function":
            return None
        function = cast("Mapping[str, Any]", described.get("function") or described)
        schema: Mapping[str, Any] = function.get("parameters") or {"type": "object", "properties": {}}
        return _described(str(function.get("name")), schema, function.get("description"))
    if isinstance(tool, AbstractNativeTool):
        return None
    return _described(tool.name, tool.parameters(), tool.description)


def _described(name: str, schema: Mapping[str, Any], description: str | None) -> ToolDefinition:
    return ToolDefinition(name=name, parameters_json_schema=dict(schema), description=description or None)


def _native(tool: Any) -> AbstractNativeTool:
    if isinstance(tool, AbstractNativeTool):
        return tool
    told = dict(cast("Mapping[str, Any]", tool))
    kind = str(told.pop("type"))
    if kind not in NATIVE_TOOL_TYPES:
        raise ChatClientInvalidRequestException(
            f"there is no tool of type {kind!r} that a provider runs; there are: {', '.join(sorted(NATIVE_TOOL_TYPES))}"
        )
    try:
        return TypeAdapter(NATIVE_TOOL_TYPES[kind]).validate_python({"kind": kind, **told})
    except ValidationError as error:
        raise ChatClientInvalidRequestException(f"the tool {kind!r} can't be made of {told!r}: {error}") from error


def _shape(response_format: ResponseFormat) -> OutputObjectDefinition | None:
    if response_format is None:
        return None
    if isinstance(response_format, Mapping):
        return _shape_of_schema(response_format)
    model = cast("type[BaseModel]", response_format)
    schema = model.model_json_schema()
    return _object(schema, name=model.__name__, description=schema.get("description"))


def _shape_of_schema(told: Mapping[str, Any]) -> OutputObjectDefinition | None:
    """A JSON schema: by itself, or with the wrapping that OpenAI's wire format has."""
    if told.get("type") in {"text", "json_object"}:
        return None
    inner = cast("Mapping[str, Any]", told.get("json_schema") or told)
    schema = dict(cast("Mapping[str, Any]", inner.get("schema") or inner))
    name = inner.get("name") or schema.get("title")
    return _object(schema, name=name, description=inner.get("description") or schema.get("description"))


def _object(schema: dict[str, Any], *, name: str | None, description: str | None) -> OutputObjectDefinition:
    if schema.get("type") != "object":
        raise ChatClientInvalidRequestException(
            f"response_format {name!r} is a JSON schema of type {schema.get('type')!r}; models answer in objects: "
            "put it in a field of one"
        )
    return OutputObjectDefinition(json_schema=schema, name=name, description=description)
