"""Participants of an orchestration, each with a unique name, and the messages that they exchange."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias, TypedDict, cast

from perdure import (
    INTERNAL_SOURCE_ID,
    AgentExecutorRequest,
    AgentResponse,
    AgentResponseUpdate,
    Executor,
    Message,
    SupportsAgentRun,
    WorkflowContext,
    WorkflowMessage,
    register_type,
    resolve_agent_id,
)

# Property of messages that come from a history.
_HISTORY_PROPERTY: Final = "_attribution"

Participant: TypeAlias = Executor | SupportsAgentRun
ParticipantRef: TypeAlias = str | Executor | SupportsAgentRun
"""A participant or its name."""


@dataclass
class GroupChatRequestMessage:
    """Asks an executor in a chat to speak. The executor answers with a `GroupChatResponseMessage`."""

    additional_instruction: str | None = None
    metadata: dict[str, Any] | None = None


@dataclass
class GroupChatParticipantMessage:
    """Gives an executor in a chat the messages of others. It needs no answer."""

    messages: list[Message]


@dataclass
class GroupChatResponseMessage:
    """Answer of an executor in a chat to a `GroupChatRequestMessage`."""

    message: Message


@dataclass
class GroupChatRequestSentEvent:
    """Data of a `group_chat` event: a participant was asked to speak."""

    round_index: int
    participant_name: str


@dataclass
class GroupChatResponseReceivedEvent:
    """Data of a `group_chat` event: a participant has answered."""

    round_index: int
    participant_name: str


GroupChatWorkflowContextOutT: TypeAlias = AgentExecutorRequest | GroupChatRequestMessage | GroupChatParticipantMessage
"""Messages that an orchestrator sends."""
GroupChatContext: TypeAlias = WorkflowContext[GroupChatWorkflowContextOutT, AgentResponse | AgentResponseUpdate]
"""Context of an orchestrator's handlers."""
ChatInput: TypeAlias = str | Message | Sequence[str | Message]
"""Input of an orchestration."""

for _type in (
    GroupChatRequestMessage,
    GroupChatParticipantMessage,
    GroupChatResponseMessage,
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
):
    register_type(_type, name=f"perdure:{_type.__name__}")


def to_messages(given: ChatInput) -> list[Message]:
    """Convert input to messages. A text becomes a user message. Raises TypeError for other types."""
    messages: list[Message] = []
    for each in cast("Sequence[object]", [given] if isinstance(given, str | Message) else given):
        if not isinstance(each, str | Message):
            raise TypeError(f"the input of an orchestration must be str and Message objects, not {each!r}")
        messages.append(Message("user", [each]) if isinstance(each, str) else each)
    return messages


def require_messages(given: ChatInput) -> list[Message]:
    """Convert input to messages. Raises ValueError for an empty list."""
    if isinstance(given, Sequence) and not isinstance(given, str) and not given:
        raise ValueError("the list of messages is empty: start an orchestration with at least one message")
    return to_messages(given)


def shared_messages(messages: Iterable[Message], speaker: str) -> list[Message]:
    """Return the text messages of an answer. Tool calls and results mean nothing to other models."""
    return [
        Message(message.role, [message.text], author_name=message.author_name or speaker, message_id=message.message_id)
        for message in messages
        if message.role != "tool" and message.text.strip()
    ]


class RunKwargs(TypedDict):
    """Kwargs of a run for one agent."""

    function_invocation_kwargs: Mapping[str, Any] | None
    client_kwargs: Mapping[str, Any] | None


def run_kwargs(executor_id: str, ctx: WorkflowContext[Any, Any]) -> RunKwargs:
    """Return the kwargs of the run that an executor's agent gets: those for all, overlaid by its own."""
    given: Mapping[str, Mapping[str, Any]] = ctx.get_state("_workflow_run_kwargs", {})

    def find(kind: str) -> Mapping[str, Any] | None:
        kwargs = given.get(kind, {})
        return {**kwargs.get("__global__", {}), **kwargs.get(executor_id, {})} or None

    return {"function_invocation_kwargs": find("function_invocation_kwargs"), "client_kwargs": find("client_kwargs")}


def is_from_outside(executor: Executor, ctx: WorkflowContext[Any, Any]) -> bool:
    """Return True if the executor's message is an input of the workflow."""
    return ctx.source_executor_ids == [INTERNAL_SOURCE_ID(executor.id)]


def is_from_history(message: Message) -> bool:
    """Return True if a workflow used as an agent repeats this message from a history."""
    return _HISTORY_PROPERTY in message.additional_properties


def new_messages(received: Sequence[Message], known: Sequence[Message]) -> list[Message]:
    """Return the messages that are new. A caller that uses the workflow as an agent may send its history again."""
    if not any(map(is_from_history, received)):
        return list(received)
    known_contents = [(message.role, message.contents) for message in known]
    found: list[Message] = []
    position = 0
    for message in received:
        said = (message.role, message.contents)
        if is_from_history(message) and said in known_contents[position:]:
            position = known_contents.index(said, position) + 1
        else:
            found.append(message)
    return found


def create_completion_message(*, text: str | None = None, author_name: str, reason: str = "completed") -> Message:
    """Return the final message of an orchestration: the text, or a sentence with the reason."""
    return Message("assistant", [text or f"Conversation {reason}."], author_name=author_name)


def participant_name(participant: ParticipantRef) -> str:
    """Return a participant's name: an executor's id, an agent's name, or its id if it has no name."""
    given = cast("object", participant)
    match given:
        case str():
            return given
        case Executor():
            return given.id
        case SupportsAgentRun():
            return resolve_agent_id(given)
        case _:
            raise TypeError(f"a participant must be an agent or an executor, not a {type(given).__name__}: {given!r}")


def check_participants(participants: Sequence[Participant], *, needs_names: bool = False) -> list[Participant]:
    """Return the participants as a list. With `needs_names`, every agent needs a name, because models use it.

    Raises ValueError for an empty list or a duplicate name, TypeError for another type of participant.
    """
    given: Any = participants
    if isinstance(given, str | Executor) or not hasattr(given, "__iter__"):
        raise TypeError(f"participants must be a list of agents and executors, not {given!r}")
    found = list(participants)
    if not found:
        raise ValueError("participants is empty: give at least one agent or executor")
    names: dict[str, Participant] = {}
    for participant in found:
        if isinstance(participant, str):
            raise TypeError(f"a participant must be an agent or an executor, not a name: {participant!r}")
        name = participant_name(participant)
        if not name or (needs_names and not _is_named(participant)):
            raise ValueError(f"a participant has no name: give the {type(participant).__name__} one with name=")
        if names.setdefault(name, participant) is not participant or found.count(participant) > 1:
            raise ValueError(_duplicate_error(name, names[name], participant))
    return found


def _is_named(participant: Participant) -> bool:
    return isinstance(participant, Executor) or bool(participant.name)


def _duplicate_error(name: str, one: Participant, other: Participant) -> str:
    if not _is_named(one) and not _is_named(other):
        return f"two participants have no name, so both are called {name!r}: give each its own name with name="
    if one is other:
        return f"participant {name!r} is given twice: make a second agent or executor with its own name"
    return f"two participants are called {name!r}: rename one of them"


def resolve_name(participant: ParticipantRef, names: Sequence[str], *, option: str) -> str:
    """Return the name of a participant that an option refers to. Raises ValueError if it takes no part."""
    name = participant_name(participant)
    if name not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"{option} names {name!r}, which is not a participant; the participants are {known}")
    return name


class ParticipantRegistry:
    """Ordered participants by name. Knows which ones take the messages of agents."""

    EMPTY_DESCRIPTION_PLACEHOLDER: ClassVar[str] = "(no description: its name says what it is for)"

    def __init__(self, participants: Iterable[Participant]) -> None:
        # Descriptions by name.
        self.participants: OrderedDict[str, str] = OrderedDict()
        self._agents: set[str] = set()
        self._listeners: set[str] = set()
        for participant in participants:
            name = participant_name(participant)
            if name in self.participants:
                raise ValueError(f"two participants are called {name!r}: rename one of them")
            description: str | None = getattr(participant, "description", None)
            self.participants[name] = description or self.EMPTY_DESCRIPTION_PLACEHOLDER
            if not isinstance(participant, Executor) or _takes_agent_messages(participant):
                self._agents.add(name)
            elif can_handle(participant, GroupChatParticipantMessage([])):
                self._listeners.add(name)

    def is_listener(self, name: str) -> bool:
        """Return True if the participant takes the messages of others. An executor need not."""
        return self.is_agent(name) or name in self._listeners

    def is_agent(self, name: str) -> bool:
        """Return True if the participant takes the messages of agents. Raises ValueError for an unknown name."""
        if name not in self.participants:
            known = ", ".join(map(repr, self.participants))
            raise ValueError(f"no participant is called {name!r}; the participants are {known}")
        return name in self._agents


def _takes_agent_messages(executor: Executor) -> bool:
    """Return False if the executor takes chat requests. Raises ValueError if it takes neither."""
    takes_requests = can_handle(executor, GroupChatRequestMessage())
    if takes_requests and can_handle(executor, GroupChatParticipantMessage([])):
        return False
    if can_handle(executor, AgentExecutorRequest([])):
        return True
    if takes_requests:
        return False
    raise ValueError(
        f"executor {executor.id!r} can't take part in a chat: give it a handler for GroupChatRequestMessage that sends "
        "a GroupChatResponseMessage, and one for GroupChatParticipantMessage if it needs the messages of others"
    )


def can_handle(executor: Executor, message: Any) -> bool:
    """Return True if an executor has a handler for a message."""
    return executor.can_handle(WorkflowMessage(message, source_id=""))
