"""What a message is made of: texts, data, calls of tools and their results, requests to whoever uses an agent."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import KW_ONLY, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, cast, get_args

from typing_extensions import TypedDict  # pydantic wants this one before Python 3.12

from perdure.data import mutable
from perdure.errors import AdditionItemMismatch, ContentError

if TYPE_CHECKING:
    from collections.abc import Sequence


class HostedContents:
    """Makes contents of what a provider's own tools were asked and gave."""

    __slots__ = ()

    if TYPE_CHECKING:

        def __init__(self, type: Any, **fields: Any) -> None: ...  # noqa: A002 - the reference's name

    @classmethod
    def from_search_tool_call(
        cls, call_id: str, *, tool_name: str, arguments: str | Mapping[str, Any] | None = None, **more: Any
    ) -> Self:
        """A search."""
        return cls("search_tool_call", call_id=call_id, tool_name=tool_name, arguments=arguments, **more)

    @classmethod
    def from_search_tool_result(cls, call_id: str, *, tool_name: str, result: Any = None, **more: Any) -> Self:
        """What a search has found."""
        return cls("search_tool_result", call_id=call_id, tool_name=tool_name, result=result, **more)

    @classmethod
    def from_code_interpreter_tool_call(
        cls, *, call_id: str | None = None, inputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """Code that was run."""
        return cls("code_interpreter_tool_call", call_id=call_id, inputs=inputs, **more)

    @classmethod
    def from_code_interpreter_tool_result(
        cls, *, call_id: str | None = None, outputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """What code gave that was run."""
        return cls("code_interpreter_tool_result", call_id=call_id, outputs=outputs, **more)

    @classmethod
    def from_image_generation_tool_call(cls, *, image_id: str | None = None, **more: Any) -> Self:
        """A picture that was asked for."""
        return cls("image_generation_tool_call", image_id=image_id, **more)

    @classmethod
    def from_image_generation_tool_result(
        cls, *, image_id: str | None = None, outputs: Any = None, **more: Any
    ) -> Self:
        """A picture that was made."""
        return cls("image_generation_tool_result", image_id=image_id, outputs=outputs, **more)

    @classmethod
    def from_shell_tool_call(
        cls, *, call_id: str | None = None, commands: Sequence[str] | None = None, **more: Any
    ) -> Self:
        """Commands that were given to a shell."""
        return cls("shell_tool_call", call_id=call_id, commands=commands, **more)

    @classmethod
    def from_shell_tool_result(
        cls, *, call_id: str | None = None, outputs: Sequence[Any] | None = None, **more: Any
    ) -> Self:
        """What the commands gave, one content of type `shell_command_output` for each."""
        return cls("shell_tool_result", call_id=call_id, outputs=outputs, **more)

    @classmethod
    def from_shell_command_output(
        cls, *, stdout: str | None = None, stderr: str | None = None, exit_code: int | None = None, **more: Any
    ) -> Self:
        """What one command gave."""
        return cls("shell_command_output", stdout=stdout, stderr=stderr, exit_code=exit_code, **more)

    @classmethod
    def from_mcp_server_tool_call(
        cls, call_id: str, tool_name: str, *, server_name: str | None = None, arguments: Any = None, **more: Any
    ) -> Self:
        """A call that the provider has made at an MCP server."""
        told = {"server_name": server_name, "arguments": arguments, "informational_only": True, **more}
        return cls("mcp_server_tool_call", call_id=call_id, tool_name=tool_name, **told)

    @classmethod
    def from_mcp_server_tool_result(cls, call_id: str, *, output: Any = None, **more: Any) -> Self:
        """What an MCP server gave to the provider."""
        return cls("mcp_server_tool_result", call_id=call_id, output=output, **more)


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
_TYPES = frozenset(get_args(ContentType))


class UsageDetails(TypedDict, total=False):
    """Tokens that a model has counted. A provider may count more, under names of its own."""

    input_token_count: int | None
    output_token_count: int | None
    total_token_count: int | None
    cache_creation_input_token_count: int | None
    cache_read_input_token_count: int | None
    reasoning_output_token_count: int | None


def add_usage_details(first: UsageDetails | None, second: UsageDetails | None) -> UsageDetails:
    """The sum, name by name; what neither has counted is not there."""
    total: dict[str, int] = {}
    for usage in (first, second):
        for name, count in (usage or {}).items():
            if isinstance(count, int):
                total[name] = total.get(name, 0) + count
    return cast("UsageDetails", total)


@mutable
class Content(HostedContents):
    """One piece of a message. `type` says which of the fields mean something.

    What a provider sent stands in `raw_representation`, for programs that know it; it is never stored, compared or
    written.
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
    arguments: str | Mapping[str, Any] | None = None
    exception: str | None = None
    informational_only: bool = False
    """Whether a call is one that the provider has already done itself."""
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
    """Whether whoever uses the agent has to answer before it goes on."""
    approved: bool | None = None
    consent_link: str | None = None
    annotations: Sequence[Mapping[str, Any]] | None = None
    additional_properties: MutableMapping[str, Any] = field(default_factory=dict[str, Any])
    raw_representation: Any = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.type not in _TYPES:
            raise ContentError(f"there is no content of type {self.type!r}; there are: {', '.join(sorted(_TYPES))}")

    @classmethod
    def from_text(cls, text: str, **more: Any) -> Content:
        """A text."""
        return cls("text", text=text, **more)

    @classmethod
    def from_text_reasoning(cls, *, text: str | None = None, protected_data: str | None = None, **more: Any) -> Content:
        """What a model has thought, in words or sealed by its provider."""
        return cls("text_reasoning", text=text, protected_data=protected_data, **more)

    @classmethod
    def from_data(cls, data: bytes, media_type: str, **more: Any) -> Content:
        """Bytes: an image, a sound, a document."""
        text = base64.b64encode(data).decode("ascii")
        return cls("data", uri=f"data:{media_type};base64,{text}", media_type=media_type, **more)

    @classmethod
    def from_uri(cls, uri: str, *, media_type: str | None = None, **more: Any) -> Content:
        """Something that stands elsewhere; a `data:` URI is data."""
        if uri.startswith("data:"):
            found = uri.removeprefix("data:").partition(",")[0].partition(";")[0]
            return cls("data", uri=uri, media_type=media_type or found or None, **more)
        return cls("uri", uri=uri, media_type=media_type, **more)

    @classmethod
    def from_error(
        cls, *, message: str | None = None, error_code: str | None = None, error_details: str | None = None, **more: Any
    ) -> Content:
        """Something that went wrong at the model."""
        return cls("error", message=message, error_code=error_code, error_details=error_details, **more)

    @classmethod
    def from_function_call(
        cls, call_id: str, name: str, *, arguments: str | Mapping[str, Any] | None = None, **more: Any
    ) -> Content:
        """A call of a tool that the model wants made."""
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
        """What a tool gave, or why it did not."""
        return cls("function_result", call_id=call_id, result=result, items=items, exception=exception, **more)

    @classmethod
    def from_usage(cls, usage_details: UsageDetails, **more: Any) -> Content:
        """Tokens that were counted."""
        return cls("usage", usage_details=usage_details, **more)

    @classmethod
    def from_hosted_file(cls, file_id: str, **more: Any) -> Content:
        """A file that the provider keeps."""
        return cls("hosted_file", file_id=file_id, **more)

    @classmethod
    def from_hosted_vector_store(cls, vector_store_id: str, **more: Any) -> Content:
        """A vector store that the provider keeps."""
        return cls("hosted_vector_store", vector_store_id=vector_store_id, **more)

    @classmethod
    def from_function_approval_request(cls, id: str, function_call: Content, **more: Any) -> Content:  # noqa: A002 - the reference's name
        """The question whether a call may be made."""
        return cls("function_approval_request", id=id, function_call=function_call, user_input_request=True, **more)

    @classmethod
    def from_function_approval_response(cls, approved: bool, id: str, function_call: Content, **more: Any) -> Content:  # noqa: A002, FBT001 - the reference's signature
        """The answer whether a call may be made."""
        return cls("function_approval_response", approved=approved, id=id, function_call=function_call, **more)

    @classmethod
    def from_oauth_consent_request(cls, consent_link: str, **more: Any) -> Content:
        """The wish that somebody follows a link and consents."""
        return cls("oauth_consent_request", consent_link=consent_link, user_input_request=True, **more)

    def to_function_approval_response(self, approved: bool) -> Content:  # noqa: FBT001 - the reference's signature
        """The answer to this question. Raises ContentError if it is none about a call."""
        if self.type != "function_approval_request" or self.id is None or self.function_call is None:
            raise ContentError(f"only a function_approval_request can be approved, not a content of type {self.type!r}")
        return Content.from_function_approval_response(approved, self.id, self.function_call)

    def parse_arguments(self) -> dict[str, Any] | None:
        """The arguments of a call as a dict. A text that is no JSON object comes as `{"raw": text}`."""
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
        """The bytes of a data content. Raises ContentError if there are none."""
        _, marker, text = (self.uri or "").partition(";base64,")
        try:
            if marker:
                return base64.b64decode(text, validate=True)
        except binascii.Error as error:
            raise ContentError(f"the data of this content is no base64: {error}") from error
        raise ContentError(f"a content of type {self.type!r} with the URI {(self.uri or '')[:40]!r} has no bytes")

    def has_top_level_media_type(self, top_level_media_type: str) -> bool:
        """Whether it is an image, a sound and so on: `image` of `image/png`. Raises ContentError if nobody says."""
        if self.media_type is None:
            raise ContentError(f"a content of type {self.type!r} without media_type does not say what it is")
        return self.media_type.partition("/")[0].lower() == top_level_media_type.lower()

    def to_dict(self, *, exclude_none: bool = True, exclude: set[str] | None = None) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        stored = self.stored() if exclude_none else {name: getattr(self, name) for name in _FIELDS}
        return {name: _plain(value) for name, value in stored.items() if name not in (exclude or ())}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Content:
        """The content of what `to_dict` gave. Raises ContentError."""
        if "type" not in data:
            raise ContentError(f"a content has a type, one of {', '.join(sorted(_TYPES))}; this has only {list(data)}")
        unknown = sorted(set(data) - {*_FIELDS, "raw_representation"})
        if unknown:
            raise ContentError(f"a content has no {', '.join(unknown)}; it may have {', '.join(_FIELDS)}")
        known = {name: data[name] for name in _FIELDS if data.get(name) is not None}
        for name in ("items", "inputs", "outputs"):
            if isinstance(known.get(name), list | tuple):
                known[name] = [_revived(each) for each in known[name]]
        if "function_call" in known:
            known["function_call"] = _revived(known["function_call"])
        return cls(**known)

    def stored(self) -> dict[str, Any]:
        """What is to be kept: all that was set, but for `raw_representation`."""
        values = ((name, getattr(self, name)) for name in _FIELDS)
        # False and {} say something of a result or an answer, and nothing only where they stand for "not given".
        return {name: value for name, value in values if value is not None and (value or name not in _EMPTY_IS_NOTHING)}

    def __add__(self, other: Content) -> Content:
        """Two pieces of a stream as one. Raises AdditionItemMismatch if they are not pieces of one thing."""
        if self.type != other.type or self.type not in {"text", "text_reasoning", "function_call", "usage"}:
            raise AdditionItemMismatch(f"a {self.type!r} and a {other.type!r} can't be put together")
        more: dict[str, Any] = {"additional_properties": {**self.additional_properties, **other.additional_properties}}
        if self.annotations or other.annotations:
            more["annotations"] = [*(self.annotations or ()), *(other.annotations or ())]
        if self.type == "usage":
            return replace(self, usage_details=add_usage_details(self.usage_details, other.usage_details), **more)
        if self.type == "function_call":
            return self._with_arguments_of(other, more)
        if self.protected_data and (other.text or other.protected_data):
            # The provider's seal is about what came before it, and about nothing else.
            raise AdditionItemMismatch("a thought that is sealed is whole: what follows is another one")
        text = None if self.text is None and other.text is None else (self.text or "") + (other.text or "")
        return replace(self, text=text, protected_data=other.protected_data or self.protected_data, **more)

    def _with_arguments_of(self, other: Content, more: dict[str, Any]) -> Content:
        if other.call_id and self.call_id and other.call_id != self.call_id:
            raise AdditionItemMismatch(f"calls {self.call_id!r} and {other.call_id!r} are two")
        mine, its = self.arguments, other.arguments
        if not mine or not its:
            arguments = mine or its
        elif isinstance(mine, str) and isinstance(its, str):
            arguments = mine + its
        elif isinstance(mine, Mapping) and isinstance(its, Mapping):
            arguments = {**mine, **its}
        else:
            raise AdditionItemMismatch("the arguments of a call are a text or a mapping, not first one, then the other")
        return replace(
            self,
            call_id=self.call_id or other.call_id,
            name=self.name or other.name,
            arguments=arguments,
            # That it is for the user to answer is told when the call is complete.
            user_input_request=self.user_input_request or other.user_input_request,
            id=self.id or other.id,
            **more,
        )

    def __str__(self) -> str:
        if self.type == "error":
            return f"Error {self.error_code}: {self.message or ''}" if self.error_code else self.message or ""
        return self.text or ""

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={_short(value)}" for name, value in self.stored().items() if name != "type")
        return f"Content({self.type!r}, {shown})" if shown else f"Content({self.type!r})"


_FIELDS = tuple([each.name for each in fields(Content) if each.name != "raw_representation"])
_EMPTY_IS_NOTHING = frozenset({"informational_only", "additional_properties"})
_SHOWN_MAX = 80


def _plain(value: Any) -> Any:
    if isinstance(value, Content):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {key: _plain(each) for key, each in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in cast("Sequence[Any]", value)]
    return value


def _revived(value: Any) -> Any:
    if not isinstance(value, Mapping) or "type" not in value:
        return cast("Any", value)
    return Content.from_dict(cast("Mapping[str, Any]", value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_MAX else f"{text[:_SHOWN_MAX]}..."
