"""What a handoff asks and tells: the question to the user, the event, and a conversation as other agents get it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from perdure import AgentResponse, Message, register_type
from perdure.orchestrations.conversation import messages_of

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAID: Final = frozenset({"text"})
_SAID_BY_USERS: Final = frozenset({"text", "data", "uri", "hosted_file", "hosted_vector_store"})
_RETOLD: Final = "_attribution"
"""What a message has among its properties if it comes from a history."""


@dataclass
class HandoffSentEvent:
    """The data of a `handoff_sent` event: who has handed over to whom."""

    source: str
    target: str


@dataclass
class HandoffAgentUserRequest:
    """Asks the user to answer an agent, who has spoken and hands over to nobody."""

    agent_response: AgentResponse[Any]

    @staticmethod
    def create_response(response: str | list[str] | Message | list[Message]) -> list[Message]:
        """What the user says, as an answer. Raises TypeError if it is neither texts nor messages."""
        if not isinstance(response, str | Message | list):  # pyright: ignore[reportUnnecessaryIsInstance] - users' code is not always checked
            raise TypeError(f"the user answers with a str, a Message or a list of these, not {response!r}")
        return messages_of(response)

    @staticmethod
    def terminate() -> list[Message]:
        """The answer that ends the conversation: the agent stays silent."""
        return []


register_type(HandoffSentEvent, name="perdure:HandoffSentEvent")
register_type(HandoffAgentUserRequest, name="perdure:HandoffAgentUserRequest")


def clean_conversation_for_handoff(conversation: Sequence[Message]) -> list[Message]:
    """What was said, without calls of tools, their results and approvals. The messages that were given don't change.

    Others have neither made nor approved those calls, and models refuse results of calls that they have not made. Texts
    are kept, of users also images and files. A message of which nothing is left is left out.
    """
    return [kept for message in conversation if (kept := _cleaned(message)) is not None]


def _cleaned(message: Message) -> Message | None:
    kinds = _SAID_BY_USERS if message.role == "user" else _SAID
    kept = [each for each in message.contents if each.type in kinds and (each.type != "text" or each.text)]
    if not kept:
        return None
    return Message(
        message.role, kept, author_name=message.author_name, additional_properties=message.additional_properties
    )


def news(told: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """What is new in messages from outside: whoever talks to a workflow as an agent tells the conversation again."""
    if not any(_RETOLD in message.additional_properties for message in told):
        return list(told)
    heard = [(message.role, message.contents) for message in known]
    found: list[Message] = []
    place = 0
    for message in told:
        said = (message.role, message.contents)
        if _RETOLD in message.additional_properties and said in heard[place:]:
            place = heard.index(said, place) + 1
        else:
            found.append(message)
    return found
