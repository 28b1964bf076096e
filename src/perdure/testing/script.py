"""What a script is made of: replies, which of them is next in a conversation, and the pieces that a stream tells."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast, runtime_checkable

from perdure.agents import Content, Message, UsageDetails

if TYPE_CHECKING:
    from collections.abc import Iterator

PIECES_MAX = 4
"""In how many pieces a stream tells a text."""


class ToolCall:
    """A call of a tool that the model asks for: `ToolCall("weather", city="Oslo")`."""

    __slots__ = ("arguments", "name")

    def __init__(self, name: str, /, **arguments: Any) -> None:
        self.name = name
        self.arguments = arguments

    def __repr__(self) -> str:
        return (
            f"ToolCall({', '.join([repr(self.name), *(f'{name}={each!r}' for name, each in self.arguments.items())])})"
        )


@runtime_checkable
class Dumpable(Protocol):
    """A value that says itself as JSON, as an instance of a pydantic model does."""

    def model_dump_json(self) -> str:
        """The value as JSON."""
        ...


Part: TypeAlias = "str | ToolCall | Content"
Reply: TypeAlias = "Part | Message | Dumpable | Mapping[str, Any] | Exception | Sequence[Part | Exception]"
"""What a model says at once. A list is one reply of several parts; an exception in it breaks the reply off there."""
Improvised: TypeAlias = "Callable[[Sequence[Message], Mapping[str, Any]], Reply | Awaitable[Reply]]"
"""A reply that depends on the conversation and the options."""
Script: TypeAlias = "Sequence[Reply | Improvised] | Improvised"


@dataclass(frozen=True, slots=True)
class Line:
    """A reply under its id. One with an error breaks off behind its contents."""

    id: str
    contents: tuple[Content, ...]
    error: Exception | None
    created_at: str

    @property
    def finish_reason(self) -> str:
        """Why the model has stopped."""
        return "tool_calls" if any(each.type == "function_call" for each in self.contents) else "stop"

    def pieces(self) -> list[Content]:
        """The contents as a stream tells them."""
        return [piece for content in self.contents for piece in _pieces_of(content)]


def line_of(reply: Reply, *, line_id: str, created_at: str) -> Line:
    """A reply as the contents that it means. Raises TypeError if it means nothing."""
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
        case Dumpable():
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


def line_id_of(script: str, place: int, messages: Sequence[Message]) -> str:
    """The id of a reply: where it stands in its script, and a digest of what it replies to."""
    told = "\n".join([f"{message.role}: {message.text}" for message in messages])
    return f"{script}#{place}-{hashlib.sha256(told.encode()).hexdigest()[:8]}"


def next_place(script: str, messages: Sequence[Message]) -> int:
    """Which reply is next: the one behind the last of this script that the conversation shows."""
    given = re.compile(re.escape(script) + r"#(\d+)-[0-9a-f]{8}(?:\.\d+)?")
    found = [given.fullmatch(known) for message in messages for known in _ids_in(message)]
    return max([int(each[1]) for each in found if each is not None], default=-1) + 1


def _ids_in(message: Message) -> Iterator[str]:
    # The ids of calls count too: whoever mends a conversation may write its messages anew, but not its calls.
    yield message.message_id or ""
    for content in message.contents:
        yield content.call_id or ""
        yield content.id or ""
        if content.function_call is not None:
            yield content.function_call.call_id or ""


def words_counted(messages: Sequence[Message], line: Line) -> UsageDetails:
    """What a reply costs where a word is a token."""
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
