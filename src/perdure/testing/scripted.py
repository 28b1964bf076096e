"""A model that follows a script: test and demonstrate agents without a provider."""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, cast

from pydantic import BaseModel

from perdure.agents import (
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    ChatResponseUpdate,
    ChatTelemetryLayer,
    Content,
    FunctionInvocationLayer,
    Message,
    UsageDetails,
    current_turn,
    prepend_instructions_to_messages,
    use_turn,
)
from perdure.clock import Clock, SystemClock
from perdure.errors import ChatClientInvalidRequestException
from perdure.streams import ResponseStream

# Maximum number of updates for a text in a stream.
PIECES_MAX = 4


class ToolCall:
    """A tool call that the model requests: `ToolCall("weather", city="Oslo")`."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, /, **arguments: Any) -> None:
        self.name = name
        self.arguments = arguments

    def __repr__(self) -> str:
        arguments = [f", {name}={each!r}" for name, each in self.arguments.items()]
        return f"ToolCall({self.name!r}{''.join(arguments)})"


Part: TypeAlias = str | ToolCall | Content
Reply: TypeAlias = Part | Message | BaseModel | Mapping[str, Any] | Exception | Sequence[Part | Exception]
"""One reply of a model. A list is one reply of several parts; an exception in it breaks the reply off there."""
ReplyFunction: TypeAlias = Callable[[Sequence[Message], Mapping[str, Any]], Reply | Awaitable[Reply]]
"""Function that makes a reply from the conversation and the options."""
Script: TypeAlias = Sequence[Reply | ReplyFunction] | ReplyFunction


@dataclass(frozen=True, slots=True)
class Line:
    """A reply with its id. If it has an error, it breaks off after its contents."""

    id: str
    contents: tuple[Content, ...]
    error: Exception | None
    created_at: str

    @property
    def finish_reason(self) -> str:
        """The reason why the model stopped."""
        return "tool_calls" if any(each.type == "function_call" for each in self.contents) else "stop"

    def pieces(self) -> list[Content]:
        """Return the contents as updates of a stream."""
        return [piece for content in self.contents for piece in _pieces_of(content)]


def to_line(reply: Reply, *, line_id: str, created_at: str) -> Line:
    """Convert a reply to contents. Raises TypeError for other types."""
    parts = _parts_of(reply)
    broken = next((place for place, part in enumerate(parts) if isinstance(part, Exception)), len(parts))
    said = cast("Sequence[Part]", parts[:broken])
    contents = tuple([_content_of(part, f"{line_id}.{place}") for place, part in enumerate(said)])
    error = cast("Exception | None", parts[broken] if broken < len(parts) else None)
    return Line(line_id, contents, error, created_at)


def _parts_of(reply: Any) -> Sequence[Part | Exception]:
    match reply:
        case str() | ToolCall() | Content() | Exception():
            return [reply]
        case Message():
            return reply.contents
        case Mapping():
            return [json.dumps(reply)]
        case Sequence():
            return cast("Sequence[Part | Exception]", reply)
        case BaseModel():
            return [reply.model_dump_json()]
        case _:
            raise TypeError(
                "a reply is a str, a Message, a Content, a ToolCall, a list of these, a mapping or pydantic model for "
                f"an answer in JSON, or an exception to raise, not {reply!r}"
            )


def _content_of(part: Any, call_id: str) -> Content:
    match part:
        case str():
            return Content.from_text(part)
        case ToolCall():
            return Content.from_function_call(call_id, part.name, arguments=json.dumps(part.arguments))
        case Content():
            return replace(part)
        case _:
            raise TypeError(f"a reply has parts that are a str, a ToolCall, a Content or an exception, not {part!r}")


def make_line_id(script: str, place: int, messages: Sequence[Message]) -> str:
    """Return the id of a reply: its place in the script, and a digest of the messages before it."""
    told = "\n".join([f"{message.role}: {message.text}" for message in messages])
    return f"{script}#{place}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def next_place(script: str, messages: Sequence[Message]) -> int:
    """Return the place of the next reply: the one after the last reply of this script in the conversation."""
    given = re.compile(re.escape(script) + r"#(\d+)-[0-9a-f]{8}(?:\.\d+)?")
    found = [given.fullmatch(known) for message in messages for known in _ids_in(message)]
    return max([int(each[1]) for each in found if each is not None], default=-1) + 1


def _ids_in(message: Message) -> Iterator[str]:
    # Call ids count too: a rewritten conversation may have new messages, but it keeps its calls.
    yield message.message_id or ""
    for content in message.contents:
        yield content.call_id or ""
        yield content.id or ""
        if content.function_call is not None:
            yield content.function_call.call_id or ""


def count_words(messages: Sequence[Message], line: Line) -> UsageDetails:
    """Return the usage of a reply, with one token per word."""
    asked = sum([len(_words_of(content)) for message in messages for content in message.contents])
    said = sum([len(_words_of(content)) for content in line.contents])
    return UsageDetails(input_token_count=asked, output_token_count=said, total_token_count=asked + said)


def _words_of(content: Content) -> list[str]:
    told = (content.text, content.name, content.arguments, content.result)
    return " ".join([str(each) for each in told if each is not None]).split()


def _pieces_of(content: Content) -> Iterator[Content]:
    if content.type == "text" and content.text:
        words = re.findall(r"\s*\S+\s*|\s+", content.text)
        size = -(-len(words) // PIECES_MAX)
        for at in range(0, len(words), size):
            yield Content.from_text("".join(words[at : at + size]))
    elif content.type == "function_call" and isinstance(content.arguments, str) and content.call_id:
        half = len(content.arguments) // 2
        yield Content.from_function_call(content.call_id, content.name or "", arguments=content.arguments[:half])
        yield Content.from_function_call(content.call_id, "", arguments=content.arguments[half:])
    else:
        yield content


_SCRIPT = "scripted_for"


class ScriptEndedError(ChatClientInvalidRequestException):
    """The model was called more often than its script allows."""


@dataclass(frozen=True, slots=True)
class ScriptedCall:
    """One call of a scripted model: its messages and options, and the agent that called."""

    messages: tuple[Message, ...]
    options: Mapping[str, Any] = field(repr=False)
    client_kwargs: Mapping[str, Any] = field(repr=False)
    agent: str
    is_streamed: bool

    @property
    def text(self) -> str:
        """Text of the last message."""
        return self.messages[-1].text if self.messages else ""


def _require_script(scripts: object) -> None:
    if isinstance(scripts, str) or not (callable(scripts) or isinstance(scripts, Mapping | Sequence)):
        raise TypeError(
            f"a script is a list of replies, a function, or a mapping from agents to these, not {scripts!r}"
        )


class _ScriptedModel(BaseChatClient):
    """The model without the client's layers."""

    OTEL_PROVIDER_NAME = "perdure.scripted"

    def __init__(
        self,
        *,
        replies: Script | Mapping[str, Script],
        name: str,
        usage: UsageDetails | None,
        seconds: float,
        clock: Clock | None,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.name = self.model = name
        self.calls: list[ScriptedCall] = []
        _require_script(replies)
        self._scripts = replies
        self._failed: set[tuple[str, int]] = set()
        self._usage = usage
        self._seconds = seconds
        self._clock = clock or SystemClock()

    def get_response(
        self,
        messages: Any,
        *,
        stream: bool = False,
        options: Any = None,
        client_kwargs: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> Any:
        """Call the model for the current agent, which has its own place in the script."""
        turn = current_turn(self.name, messages)
        with use_turn(turn):
            known = {**(client_kwargs or {}), _SCRIPT: turn.name}
            return super().get_response(messages, stream=stream, options=options, client_kwargs=known, **more)

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        agent = kwargs.pop(_SCRIPT, self.name)
        said = prepend_instructions_to_messages(messages, options.get("instructions"))
        call = ScriptedCall(tuple(said), options, kwargs, agent, stream)
        if not stream:
            return self._scripted_whole(call)
        response_format = options.get("response_format")
        return ResponseStream(
            self._scripted_pieces(call),
            finalizer=lambda told: ChatResponse.from_updates(told, output_format_type=response_format),
        )

    async def _scripted_whole(self, call: ScriptedCall) -> ChatResponse[Any]:
        line = await self._prompted(call)
        await self._clock.sleep(self._seconds)
        if line.error is not None:
            raise line.error
        return ChatResponse(
            messages=Message("assistant", line.contents, message_id=line.id),
            response_id=line.id,
            created_at=line.created_at,
            model=self.name,
            finish_reason=line.finish_reason,
            usage_details=self._usage or count_words(call.messages, line),
            response_format=call.options.get("response_format"),
        )

    async def _scripted_pieces(self, call: ScriptedCall) -> AsyncGenerator[ChatResponseUpdate]:
        line = await self._prompted(call)
        pieces = line.pieces()
        for piece in pieces:
            await self._clock.sleep(self._seconds / len(pieces))
            yield self._scripted_update(line, piece)
        if line.error is not None:
            raise line.error
        usage = Content.from_usage(self._usage or count_words(call.messages, line))
        yield self._scripted_update(line, usage, line.finish_reason)

    async def _prompted(self, call: ScriptedCall) -> Line:
        """Return the reply to a call. An exception in a list is raised once; then the script continues after it."""
        self.calls.append(call)
        place, reply = self._next_reply(call)
        if callable(reply):
            found = reply(list(call.messages), call.options)
            reply = await found if inspect.isawaitable(found) else found
        line_id = make_line_id(call.agent, place, call.messages)
        line = to_line(reply, line_id=line_id, created_at=self._clock.now().isoformat())
        if line.error is not None:
            self._failed.add((call.agent, place))
        return line

    def _next_reply(self, call: ScriptedCall) -> tuple[int, Reply | ReplyFunction]:
        script, place = self._script_of(call.agent), next_place(call.agent, call.messages)
        if callable(script):
            return place, script
        while (call.agent, place) in self._failed:
            place += 1
        if place >= len(script):
            raise ScriptEndedError(
                f"the script of {call.agent!r} has {len(script)} replies, and this conversation has had them all; "
                "give it more of them, or a function that replies"
            )
        return place, script[place]

    def _script_of(self, agent: str) -> Script:
        if not isinstance(self._scripts, Mapping):
            return self._scripts
        scripts = cast("Mapping[str, Script]", self._scripts)
        if agent not in scripts:
            known = ", ".join(map(repr, scripts))
            raise ScriptEndedError(f"there is no script for {agent!r}; give one under its name, as for {known}")
        return scripts[agent]

    def _scripted_update(self, line: Line, content: Content, finish_reason: str | None = None) -> ChatResponseUpdate:
        return ChatResponseUpdate(
            contents=[content],
            role="assistant",
            message_id=line.id,
            response_id=line.id,
            created_at=line.created_at,
            model=self.name,
            finish_reason=finish_reason,
        )


class ScriptedChatClient(FunctionInvocationLayer, ChatMiddlewareLayer, ChatTelemetryLayer, _ScriptedModel):
    """A deterministic model with the layers of a real client: it streams, calls tools, and fails on demand.

    `replies` is a list, a function of the conversation and the options (sync or async), or a mapping from agent names
    to these. A reply is a text, a `ToolCall`, a list of both, a Message, a mapping or pydantic model (an answer in
    JSON), an exception to raise, or a function that makes one of these. A list that ends with an exception breaks off
    there, also in a stream.

    The conversation decides which reply of a list comes next: the one after the last reply that it contains. So a
    resumed run continues its script, a new conversation starts the script again, one client serves any number of runs,
    and each agent has its own place under its name. Failures are in no conversation: this object raises an exception of
    a list once and continues after it; a new object raises it again.

    `usage` is the usage of a reply; the default is one token per word. A reply takes `seconds` on the `clock`. `calls`
    has the calls that really happened; recorded answers are not requested again.
    """

    def __init__(
        self,
        replies: Script | Mapping[str, Script],
        *,
        name: str = "scripted",
        usage: UsageDetails | None = None,
        seconds: float = 0.0,
        clock: Clock | None = None,
        **more: Any,
    ) -> None:
        super().__init__(replies=replies, name=name, usage=usage, seconds=seconds, clock=clock, **more)
