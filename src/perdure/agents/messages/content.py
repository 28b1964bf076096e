"""Contents of a message: texts, data, tool calls and their results, requests to the user."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias, cast, get_args

from typing_extensions import TypedDict  # pydantic needs this one before Python 3.12

from perdure.codec import register_type
from perdure.errors import AdditionItemMismatch, ContentError

ContentType: TypeAlias = Literal[
    "text",
    "text_reasoning",
    "data",
    "uri",
    "error",
    "function_call",
    "function_result",
    "usage",
    "hosted_file",
    "hosted_vector_store",
    "code_interpreter_tool_call",
    "code_interpreter_tool_result",
    "image_generation_tool_call",
    "image_generation_tool_result",
    "mcp_server_tool_call",
    "mcp_server_tool_result",
    "search_tool_call",
    "search_tool_result",
    "shell_tool_call",
    "shell_tool_result",
    "shell_command_output",
    "function_approval_request",
    "function_approval_response",
    "oauth_consent_request",
]
UNKNOWN_MEDIA_TYPE = "application/octet-stream"
_TYPES = frozenset(get_args(ContentType))


CallArguments: TypeAlias = "str | Mapping[str, Any] | None"
"""The arguments of a call: JSON text, or a mapping."""


class UsageDetails(TypedDict, total=False):
    """Token counts of a model call. A provider may add counts of its own."""

    input_token_count: int | None
    output_token_count: int | None
    total_token_count: int | None
    cache_creation_input_token_count: int | None
    cache_read_input_token_count: int | None
    reasoning_output_token_count: int | None


def add_usage_details(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails:
    """Add the counts name by name. A name that neither has is left out."""
    total: dict[str, int] = {}
    for usage in (first, second):
        for name, count in (usage or {}).items():
            if isinstance(count, int):
                total[name] = total.get(name, 0) + count
    return cast("UsageDetails", total)


@dataclass(slots=True)
class Content:
    """One part of a message. `type` decides which fields are meaningful.

    `raw_representation` is the provider's own object. It is never stored, compared or serialized.

    Attributes:
        informational_only: True for a call that the provider has already made.
        user_input_request: True if the user has to answer before the agent continues.
    """

    type: ContentType
    _: KW_ONLY
    text: str | None = None
    protected_data: str | None = None
    uri: str | None = None
    media_type: str | None = None
    message: str | None = None
    error_code: str | None = None
    error_details: str | None = None
    usage_details: UsageDetails | None = None
    call_id: str | None = None
    name: str | None = None
    arguments: CallArguments = None
    exception: str | None = None
    informational_only: bool = False
    result: Any = None
    items: Sequence[Content] | None = None
    file_id: str | None = None
    vector_store_id: str | None = None
    inputs: Sequence[Content] | None = None
    outputs: Any = None
    image_id: str | None = None
    commands: Sequence[str] | None = None
    timeout_ms: int | None = None
    max_output_length: int | None = None
    status: str | None = None
    stdout: str | None = None
    stderr: str | None = None
    exit_code: int | None = None
    timed_out: bool | None = None
    tool_name: str | None = None
    server_name: str | None = None
    output: Any = None
    id: str | None = None
    function_call: Content | None = None
    user_input_request: bool | None = None
    approved: bool | None = None
    consent_link: str | None = None
    annotations: Sequence[Mapping[str, Any]] | None = None
    additional_properties: MutableMapping[str, Any] = field(default_factory=dict[str, Any])
    raw_representation: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise ContentError(f"unknown content type {self.type!r}; use one of {', '.join(sorted(_TYPES))}")

    @classmethod
    def from_text(cls, text: str, **more: Any) -> Content:
        """Create a text."""
        return cls("text", text=text, **more)

    __perdure_from_text__ = from_text

    @classmethod
    def from_text_reasoning(cls, *, text: str | None = None, protected_data: str | None = None, **more: Any) -> Content:
        """Create a model's reasoning, as text or as data that only the provider can read."""
        return cls("text_reasoning", text=text, protected_data=protected_data, **more)

    @classmethod
    def from_data(cls, data: bytes, media_type: str, **more: Any) -> Content:
        """Create inline data, such as an image, a sound or a document."""
        text = base64.b64encode(data).decode("ascii")
        return cls("data", uri=f"data:{media_type};base64,{text}", media_type=media_type, **more)

    @classmethod
    def from_uri(cls, uri: str, *, media_type: str | None = None, **more: Any) -> Content:
        """Create a link. A `data:` URI becomes inline data."""
        if uri.startswith("data:"):
            found = uri.removeprefix("data:").partition(",")[0].partition(";")[0]
            return cls("data", uri=uri, media_type=media_type or found or None, **more)
        return cls("uri", uri=uri, media_type=media_type, **more)

    @classmethod
    def from_error(cls, **fields: Any) -> Content:
        """Create an error that the model reported."""
        return cls("error", **fields)

    @classmethod
    def from_function_call(cls, call_id: str, name: str, *, arguments: CallArguments = None, **more: Any) -> Content:
        """Create a tool call that the model asks for."""
        return cls("function_call", call_id=call_id, name=name, arguments=arguments, **more)

    @classmethod
    def from_function_result(
        cls,
        call_id: str,
        *,
        result: Any = None,
        items: Sequence[Content] | None = None,
        exception: str | None = None,
        **more: Any,
    ) -> Content:
        """Create the result of a tool call, or the reason why there is none."""
        return cls("function_result", call_id=call_id, result=result, items=items, exception=exception, **more)

    @classmethod
    def from_usage(cls, usage_details: UsageDetails, **more: Any) -> Content:
        """Create token counts."""
        return cls("usage", usage_details=usage_details, **more)

    @classmethod
    def from_hosted_file(cls, file_id: str, **more: Any) -> Content:
        """Create a reference to a file that the provider stores."""
        return cls("hosted_file", file_id=file_id, **more)

    @classmethod
    def from_hosted_vector_store(cls, vector_store_id: str, **more: Any) -> Content:
        """Create a reference to a vector store of the provider."""
        return cls("hosted_vector_store", vector_store_id=vector_store_id, **more)

    @classmethod
    def from_function_approval_request(cls, id: str, function_call: Content, **more: Any) -> Content:  # noqa: A002 - public name
        """Ask the user to approve a call."""
        return cls("function_approval_request", id=id, function_call=function_call, user_input_request=True, **more)

    @classmethod
    def from_function_approval_response(cls, approved: bool, id: str, function_call: Content, **more: Any) -> Content:  # noqa: A002, FBT001 - public signature
        """Approve or reject a call."""
        return cls("function_approval_response", approved=approved, id=id, function_call=function_call, **more)

    @classmethod
    def from_oauth_consent_request(cls, consent_link: str, **more: Any) -> Content:
        """Ask the user to open a link and give consent."""
        return cls("oauth_consent_request", consent_link=consent_link, user_input_request=True, **more)

    @classmethod
    def from_search_tool_call(cls, call_id: str, *, tool_name: str, **more: Any) -> Content:
        """Create a search that the provider ran."""
        return cls("search_tool_call", call_id=call_id, tool_name=tool_name, **more)

    @classmethod
    def from_search_tool_result(cls, call_id: str, *, tool_name: str, result: Any = None, **more: Any) -> Content:
        """Create the result of a provider's search."""
        return cls("search_tool_result", call_id=call_id, tool_name=tool_name, result=result, **more)

    @classmethod
    def from_code_interpreter_tool_call(cls, **fields: Any) -> Content:
        """Create code that the provider ran."""
        return cls("code_interpreter_tool_call", **fields)

    @classmethod
    def from_code_interpreter_tool_result(cls, **fields: Any) -> Content:
        """Create the output of code that the provider ran."""
        return cls("code_interpreter_tool_result", **fields)

    @classmethod
    def from_image_generation_tool_call(cls, *, image_id: str | None = None, **more: Any) -> Content:
        """Create a request for an image."""
        return cls("image_generation_tool_call", image_id=image_id, **more)

    @classmethod
    def from_image_generation_tool_result(cls, **fields: Any) -> Content:
        """Create a generated image."""
        return cls("image_generation_tool_result", **fields)

    @classmethod
    def from_shell_tool_call(cls, **fields: Any) -> Content:
        """Create shell commands that the provider ran."""
        return cls("shell_tool_call", **fields)

    @classmethod
    def from_shell_tool_result(cls, **fields: Any) -> Content:
        """Create the outputs of shell commands, one `shell_command_output` each."""
        return cls("shell_tool_result", **fields)

    @classmethod
    def from_shell_command_output(cls, **fields: Any) -> Content:
        """Create the output of one shell command."""
        return cls("shell_command_output", **fields)

    @classmethod
    def from_mcp_server_tool_call(
        cls, call_id: str, tool_name: str, *, server_name: str | None = None, arguments: Any = None, **more: Any
    ) -> Content:
        """Create a call that the provider made to an MCP server."""
        more = {"informational_only": True, "server_name": server_name, "arguments": arguments, **more}
        return cls("mcp_server_tool_call", call_id=call_id, tool_name=tool_name, **more)

    @classmethod
    def from_mcp_server_tool_result(cls, call_id: str, *, output: Any = None, **more: Any) -> Content:
        """Create the result of a provider's call to an MCP server."""
        return cls("mcp_server_tool_result", call_id=call_id, output=output, **more)

    def to_function_approval_response(self, approved: bool) -> Content:  # noqa: FBT001 - public signature
        """Answer this approval request. Raises ContentError if it is not one."""
        if self.type != "function_approval_request" or self.id is None or self.function_call is None:
            raise ContentError(f"only a function_approval_request can be approved, not a {self.type!r} content")
        return Content.from_function_approval_response(approved, self.id, self.function_call)

    def parse_arguments(self) -> dict[str, Any] | None:
        """Return the call's arguments as a dict. Text that is not a JSON object becomes `{"raw": text}`."""
        if self.arguments is None:
            return None
        if isinstance(self.arguments, Mapping):
            return dict(self.arguments)
        if not self.arguments.strip():
            return {}
        try:
            parsed: Any = json.loads(self.arguments)
        except ValueError:
            return {"raw": self.arguments}
        return cast("dict[str, Any]", parsed) if isinstance(parsed, dict) else {"raw": parsed}

    def data_bytes(self) -> bytes:
        """Return the bytes of inline data. Raises ContentError if there are none."""
        _, marker, text = (self.uri or "").partition(";base64,")
        try:
            if marker:
                return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ContentError(f"the content's data is not valid base64: {error}") from error
        raise ContentError(f"a {self.type!r} content with URI {(self.uri or '')[:40]!r} has no inline data")

    def has_top_level_media_type(self, top_level_media_type: str) -> bool:
        """Compare the first part of the media type: `image` of `image/png`. Raises ContentError if it is unknown."""
        if self.media_type is None:
            raise ContentError(f"a {self.type!r} content without media_type has no known kind; set media_type")
        return self.media_type.partition("/")[0].lower() == top_level_media_type.lower()

    def to_dict(self, *, exclude_none: bool = True, exclude: set[str] | None = None) -> dict[str, Any]:
        """Convert to plain values for JSON. `from_dict` is the inverse."""
        stored = self.stored_fields() if exclude_none else {name: getattr(self, name) for name in _FIELDS}
        return {name: _to_plain(value) for name, value in stored.items() if name not in (exclude or ())}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Content:
        """Read the output of `to_dict`. Raises ContentError."""
        if "type" not in data:
            raise ContentError(f"a content needs a type, one of {', '.join(sorted(_TYPES))}; found only {list(data)}")
        unknown = sorted(set(data) - {*_FIELDS, "raw_representation"})
        if unknown:
            raise ContentError(f"unknown content fields {', '.join(unknown)}; known fields are {', '.join(_FIELDS)}")
        known = {name: data[name] for name in _FIELDS if data.get(name) is not None}
        return cls(**{name: _from_plain(value) if name in _NESTED else value for name, value in known.items()})

    def stored_fields(self) -> dict[str, Any]:
        """Return the fields to store: everything that is set, except `raw_representation`."""
        values = ((name, getattr(self, name)) for name in _FIELDS)
        # An empty value is data in a result or an answer. In these fields it means "not set".
        return {
            name: value for name, value in values if value is not None and (value or name not in _EMPTY_MEANS_UNSET)
        }

    def __add__(self, other: Content) -> Content:
        """Join two consecutive stream updates. Raises AdditionItemMismatch if they don't belong together."""
        if self.type != other.type or self.type not in {"text", "text_reasoning", "function_call", "usage"}:
            raise AdditionItemMismatch(f"a {self.type!r} content can't be joined with a {other.type!r} content")
        more: dict[str, Any] = {"additional_properties": {**self.additional_properties, **other.additional_properties}}
        if self.annotations or other.annotations:
            more["annotations"] = [*(self.annotations or ()), *(other.annotations or ())]
        if self.type == "usage":
            return replace(self, usage_details=add_usage_details(self.usage_details, other.usage_details), **more)
        if self.type == "function_call":
            return self._join_arguments(other, more)
        if self.protected_data and (other.text or other.protected_data):
            # The provider's signature covers the reasoning before it and nothing after it.
            raise AdditionItemMismatch("signed reasoning is complete: what follows is a new content")
        text = None if self.text is None and other.text is None else (self.text or "") + (other.text or "")
        return replace(self, text=text, protected_data=other.protected_data or self.protected_data, **more)

    def _join_arguments(self, other: Content, more: dict[str, Any]) -> Content:
        if other.call_id and self.call_id and other.call_id != self.call_id:
            raise AdditionItemMismatch(f"{self.call_id!r} and {other.call_id!r} are two different calls")
        if other.name and self.name and other.name != self.name:
            raise AdditionItemMismatch(f"{self.name!r} and {other.name!r} are called by two different calls")
        first, second = self.arguments, other.arguments
        if not first or not second:
            arguments = first or second
        elif isinstance(first, str) and isinstance(second, str):
            # Ids may be missing or repeated, but nothing can follow a complete JSON object.
            if second.strip() and _is_json_object(first):
                raise AdditionItemMismatch("the arguments are complete: what follows is another call")
            arguments = first + second
        elif isinstance(first, Mapping) and isinstance(second, Mapping):
            arguments = {**first, **second}
        else:
            raise AdditionItemMismatch("a call's arguments are all text or all mappings, not a mix")
        return replace(
            self,
            call_id=self.call_id or other.call_id,
            name=self.name or other.name,
            arguments=arguments,
            # The flag arrives with the last update of a call.
            user_input_request=self.user_input_request or other.user_input_request,
            id=self.id or other.id,
            **more,
        )

    def __str__(self) -> str:
        if self.type == "error":
            return f"Error {self.error_code}: {self.message or ''}" if self.error_code else self.message or ""
        return self.text or ""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={value!r:.80}" for name, value in self.stored_fields().items() if name != "type")
        return f"Content({self.type!r}, {shown})" if shown else f"Content({self.type!r})"


_FIELDS = tuple([each.name for each in fields(Content) if each.name != "raw_representation"])
_NESTED = frozenset({"items", "inputs", "outputs", "function_call"})
_EMPTY_MEANS_UNSET = frozenset({"informational_only", "additional_properties"})


def _to_plain(value: Any) -> Any:
    if isinstance(value, Content):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _to_plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_to_plain(each) for each in cast("Sequence[Any]", value)]
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [_from_plain(each) for each in cast("Sequence[Any]", value)]
    is_content = isinstance(value, Mapping) and "type" in value
    return Content.from_dict(cast("Mapping[str, Any]", value)) if is_content else cast("Any", value)


def _is_json_object(text: str) -> bool:
    # Arguments are joined often, so look at the ends before parsing.
    if not (text.lstrip().startswith("{") and text.rstrip().endswith("}")):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def function_result(call: Content, result: Any, *, exception: str | None = None) -> Content:
    """Return the result of a call.

    `result` holds the text. Contents beyond text, such as images, go into `items`, all of them in order.
    """
    given = cast("list[Any]", result) if isinstance(result, list) else []
    items: list[Content] | None = None
    if given and all(isinstance(each, Content) for each in given):
        result = "\n".join([each.text for each in given if each.type == "text" and each.text])
        items = None if all(each.type == "text" for each in given) else given
    return Content.from_function_result(
        call.call_id or "",
        result=result,
        items=items,
        exception=exception,
        additional_properties=dict(call.additional_properties),
    )


def function_error(call: Content, text: str, error: BaseException | str) -> Content:
    """Return the result of a failed call: `text` is for the model, `error` for the program."""
    return function_result(
        call, text, exception=error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    )


register_type(Content, name="perdure:Content", encode=Content.stored_fields, decode=lambda fields: Content(**fields))
