"""`ParticipantRegistry`: who takes part in a chat, what for, and in which words each is asked."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, ClassVar

from perdure import AgentExecutorRequest, Executor, WorkflowMessage
from perdure.orchestrations.orchestrator_messages import GroupChatParticipantMessage, GroupChatRequestMessage
from perdure.orchestrations.participants import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.orchestrations.participants import Participant


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
