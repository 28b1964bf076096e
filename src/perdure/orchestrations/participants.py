"""Participants of an orchestration: agents and executors, each with a unique name."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from perdure import AgentExecutorRequest, Executor, SupportsAgentRun, WorkflowMessage, resolve_agent_id
from perdure.orchestrations.messages import GroupChatParticipantMessage, GroupChatRequestMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Participant: TypeAlias = Executor | SupportsAgentRun
ParticipantRef: TypeAlias = str | Executor | SupportsAgentRun
"""A participant or its name."""


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
        name = _check_name(participant, needs_names=needs_names)
        if name in names:
            raise ValueError(_duplicate_error(name, names[name], participant))
        names[name] = participant
    return found


def _check_name(participant: Participant, *, needs_names: bool) -> str:
    if isinstance(participant, str):
        raise TypeError(f"a participant must be an agent or an executor, not a name: {participant!r}")
    name = participant_name(participant)
    if not name or (needs_names and not _is_named(participant)):
        raise ValueError(f"a participant has no name: give the {type(participant).__name__} one with name=")
    return name


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
        self._participants: OrderedDict[str, str] = OrderedDict()
        self._agents: set[str] = set()
        for participant in participants:
            name = participant_name(participant)
            if name in self._participants:
                raise ValueError(f"two participants are called {name!r}: rename one of them")
            description: str | None = getattr(participant, "description", None)
            self._participants[name] = description or self.EMPTY_DESCRIPTION_PLACEHOLDER
            if not isinstance(participant, Executor) or _takes_agent_messages(participant):
                self._agents.add(name)

    @property
    def participants(self) -> OrderedDict[str, str]:
        """Descriptions by name."""
        return self._participants

    def is_agent(self, name: str) -> bool:
        """Return True if the participant takes the messages of agents. Raises ValueError for an unknown name."""
        self.require(name)
        return name in self._agents

    def require(self, name: object) -> str:
        """Return the name. Raises ValueError if it is unknown."""
        if not isinstance(name, str) or name not in self._participants:
            known = ", ".join(map(repr, self._participants))
            raise ValueError(f"no participant is called {name!r}; the participants are {known}")
        return name


def _takes_agent_messages(executor: Executor) -> bool:
    """Return False if the executor takes chat messages. Raises ValueError if it takes neither."""
    if _can_handle(executor, GroupChatRequestMessage()) and _can_handle(executor, GroupChatParticipantMessage([])):
        return False
    if _can_handle(executor, AgentExecutorRequest([])):
        return True
    raise ValueError(
        f"executor {executor.id!r} can't take part in a chat: give it a handler for GroupChatParticipantMessage "
        "(messages of others) and one for GroupChatRequestMessage that sends a GroupChatResponseMessage"
    )


def _can_handle(executor: Executor, message: Any) -> bool:
    return executor.can_handle(WorkflowMessage(message, source_id=""))
