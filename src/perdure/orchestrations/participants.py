"""Who takes part in an orchestration: agents or executors, each under a name of its own."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

from perdure import AgentExecutorRequest, Executor, SupportsAgentRun, WorkflowMessage, resolve_agent_id
from perdure.orchestrations.messages import GroupChatParticipantMessage, GroupChatRequestMessage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Participant: TypeAlias = Executor | SupportsAgentRun
"""Who may take part."""
Named: TypeAlias = str | Executor | SupportsAgentRun
"""A participant, or the name of one."""


def name_of(participant: Named) -> str:
    """What a participant is called: the id of an executor, the name of an agent, or its id if it has none."""
    given = cast("object", participant)
    match given:
        case str():
            return given
        case Executor():
            return given.id
        case SupportsAgentRun():
            return resolve_agent_id(given)
        case _:
            raise TypeError(f"a participant is an agent or an executor, not a {type(given).__name__}: {given!r}")


def checked_participants(participants: Sequence[Participant], *, needs_names: bool = False) -> list[Participant]:
    """The same participants as a list. With `needs_names`, an agent's id will not do: others call it by its name.

    Raises ValueError if there are none, or two of one name; TypeError for what is neither agent nor executor.
    """
    found = list(_several(participants))
    if not found:
        raise ValueError("participants is empty: give at least one agent or executor")
    names: dict[str, Participant] = {}
    for participant in found:
        name = _checked_name(participant, needs_names=needs_names)
        if name in names:
            raise ValueError(_twice(name, names[name], participant))
        names[name] = participant
    return found


def _several(participants: Any) -> Sequence[Participant]:
    if isinstance(participants, str | Executor) or not hasattr(participants, "__iter__"):
        raise TypeError(f"participants is a list of agents and executors, not {participants!r}")
    return participants


def _checked_name(participant: Participant, *, needs_names: bool) -> str:
    if isinstance(participant, str):
        raise TypeError(f"a participant is an agent or an executor, not the name of one: {participant!r}")
    name = name_of(participant)
    if not name or (needs_names and not _is_named(participant)):
        raise ValueError(f"a participant has no name: give the {type(participant).__name__} one with name=")
    return name


def _is_named(participant: Participant) -> bool:
    return isinstance(participant, Executor) or bool(participant.name)


def _twice(name: str, one: Participant, other: Participant) -> str:
    if not _is_named(one) and not _is_named(other):
        return f"two participants have no name, so that both are called {name!r}: give each one of its own with name="
    if one is other:
        return f"participant {name!r} is given twice: make a second agent or executor, with a name of its own"
    return f"two participants are called {name!r}: give one of them another name"


def by_name(participants: Sequence[Participant]) -> dict[str, Participant]:
    """The participants under their names, in their order."""
    return {name_of(participant): participant for participant in participants}


def one_of(named: Named, names: Sequence[str], *, what: str) -> str:
    """The name of a participant that something else speaks of. Raises ValueError if nobody is called that."""
    name = name_of(named)
    if name not in names:
        known = ", ".join(map(repr, names))
        raise ValueError(f"{what} names {name!r}, who is no participant; there are {known}")
    return name


class ParticipantRegistry:
    """The participants by name, in their order. An agent is asked in one way, an executor of yours in another."""

    EMPTY_DESCRIPTION_PLACEHOLDER: ClassVar[str] = "(no description: its name says what it is for)"

    def __init__(self, participants: Iterable[Participant]) -> None:
        self._participants: OrderedDict[str, str] = OrderedDict()
        self._agents: set[str] = set()
        for participant in participants:
            name = name_of(participant)
            if name in self._participants:
                raise ValueError(f"two participants are called {name!r}: give one of them another name")
            description: str | None = getattr(participant, "description", None)
            self._participants[name] = description or self.EMPTY_DESCRIPTION_PLACEHOLDER
            if not isinstance(participant, Executor) or _is_asked_as_agent(participant):
                self._agents.add(name)

    @property
    def participants(self) -> OrderedDict[str, str]:
        """The descriptions by name."""
        return self._participants

    def is_agent(self, name: str) -> bool:
        """Whether a participant takes what agents take. Raises ValueError for who is none."""
        self.require(name)
        return name in self._agents

    def require(self, name: object) -> str:
        """The same name. Raises ValueError if no participant is called that."""
        if not isinstance(name, str) or name not in self._participants:
            known = ", ".join(map(repr, self._participants))
            raise ValueError(f"no participant is called {name!r}; there are {known}")
        return name


def _is_asked_as_agent(executor: Executor) -> bool:
    """Raises ValueError for an executor that can't be asked at all."""
    if _takes(executor, GroupChatRequestMessage()) and _takes(executor, GroupChatParticipantMessage([])):
        return False
    if _takes(executor, AgentExecutorRequest([])):
        return True
    raise ValueError(
        f"executor {executor.id!r} can't take part in a chat: give it a handler for GroupChatParticipantMessage (what "
        "others have said) and one for GroupChatRequestMessage, which sends a GroupChatResponseMessage"
    )


def _takes(executor: Executor, message: Any) -> bool:
    return executor.can_handle(WorkflowMessage(message, source_id=""))
