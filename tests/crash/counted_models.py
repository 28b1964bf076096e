"""Models for the resume suite. Each call is an effect, and is done when the caller of its record gets the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure import ChatContext, Message, chat_middleware
from perdure.testing import ScriptedChatClient
from perdure.testing.resume import effect, returned

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence


def counted(agent: str, reply: Callable[[list[Message]], Any]) -> ScriptedChatClient:
    """A model of one agent, which replies to what was said; instructions are not shown to it."""

    def say(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del options
        effect(_name(agent, messages))
        return reply([message for message in messages if message.role != "system"])

    @chat_middleware
    async def note(context: ChatContext, call_next: Callable[[], Awaitable[None]]) -> None:
        name = _name(agent, context.messages)
        context.stream_result_hooks.append(lambda _: returned(name))
        await call_next()
        if not context.stream:
            returned(name)

    return ScriptedChatClient(say, middleware=[note])


def _name(agent: str, messages: Sequence[Message]) -> str:
    """Return a name for a call, the same in every process: it depends on the messages."""
    said = [message.text for message in messages if message.role != "system"]
    return f"{agent} thinks after {len(said)}, last of {said[-1].strip() or 'a tool'}"
