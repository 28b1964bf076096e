"""Models and agents for tests: they say what they are told to say, and count how often they were asked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from perdure.agents import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    AgentSession,
    BaseChatClient,
    ChatResponse,
    ChatResponseUpdate,
    Content,
    Message,
)
from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Mapping, Sequence


class Model(BaseChatClient[Any]):
    """Answers what `say` makes of the conversation; by default how many messages it was shown, and the last one."""

    def __init__(
        self, say: Callable[[Sequence[Message]], list[Content] | str] | None = None, *, tokens: int = 0
    ) -> None:
        super().__init__()
        self.say = say or _counted
        self.tokens = tokens
        self.shown: list[list[str]] = []
        """For each call: the texts of the conversation."""

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        del options, kwargs
        self.shown.append([message.text for message in messages])
        said = self.say(messages)
        contents = [Content.from_text(said)] if isinstance(said, str) else said
        usage: Any = {"total_token_count": self.tokens} if self.tokens else None
        return _streamed(contents, usage) if stream else _whole(contents, usage)


def _counted(messages: Sequence[Message]) -> str:
    return f"{len(messages)}:{messages[-1].text}"


async def _whole(contents: list[Content], usage: Any) -> ChatResponse[Any]:
    return ChatResponse(messages=[Message("assistant", contents)], usage_details=usage)


def _streamed(contents: list[Content], usage: Any) -> ResponseStream[ChatResponseUpdate, ChatResponse[Any]]:
    async def pieces() -> AsyncGenerator[ChatResponseUpdate]:
        for content in contents:
            texts = [content.text[:1], content.text[1:]] if content.text else []
            for piece in [Content.from_text(text) for text in texts] or [content]:
                yield ChatResponseUpdate(contents=[piece], role="assistant")
        if usage:
            yield ChatResponseUpdate(contents=[Content.from_usage(usage)])

    return ResponseStream(pieces(), finalizer=ChatResponse[Any].from_updates)


def agent(name: str = "agent", model: Model | None = None, **more: Any) -> Agent[Any]:
    """An agent of ours."""
    return Agent(model or Model(), name=name, **more)


class Stranger:
    """An agent that is none of ours, and records nothing."""

    def __init__(self, name: str = "stranger", *, tokens: int = 0) -> None:
        self.id = f"id of {name}"
        self.name: str | None = name
        self.description: str | None = None
        self.tokens = tokens
        self.runs: list[list[str]] = []
        self.given: list[dict[str, Any]] = []

    def create_session(self, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(session_id=session_id)

    def get_session(self, service_session_id: str, *, session_id: str | None = None) -> AgentSession:
        return AgentSession(session_id=session_id, service_session_id=service_session_id)

    def run(
        self, messages: Any = None, *, stream: bool = False, session: AgentSession | None = None, **kwargs: Any
    ) -> Any:
        assert session is not None, "an executor has a session"
        said = [message.text for message in messages]
        self.runs.append(said)
        self.given.append(kwargs)
        session.state["turns"] = session.state.get("turns", 0) + 1
        text = f"{self.name} hears {' '.join(said)} in turn {session.state['turns']}"
        return self._streamed(text) if stream else self._whole(text)

    async def _whole(self, text: str) -> AgentResponse[Any]:
        usage: Any = {"input_token_count": self.tokens} if self.tokens else None
        return AgentResponse(messages=[Message("assistant", [text])], usage_details=usage)

    async def _streamed(self, text: str) -> AsyncGenerator[AgentResponseUpdate]:
        for word in text.split():
            yield AgentResponseUpdate(contents=[f"{word} "], role="assistant")
