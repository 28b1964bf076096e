"""What an orchestrator keeps of a run, and the wrapping of its methods that lets them see it."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

from perdure import Log, Message, WorkflowContext

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager


@dataclass
class OrchestrationState:
    """The conversation, how many rounds it has had, and in `metadata` what a subclass adds.

    `awaited` are the participants that were asked and have not answered yet; `notes` is what the kinds of orchestrators
    that come with the library add.
    """

    conversation: Sequence[Message] = field(default_factory=Log[Message])
    round_index: int = 0
    orchestrator_name: str = ""
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])
    task: Message | None = None
    awaited: list[str] = field(default_factory=list[str])
    notes: dict[str, Any] = field(default_factory=dict[str, Any])

    def to_dict(self) -> dict[str, Any]:
        """The fields by name; without a task, if there is none."""
        found: dict[str, Any] = {
            "conversation": self.conversation,
            "round_index": self.round_index,
            "orchestrator_name": self.orchestrator_name,
            "metadata": dict(self.metadata),
            "awaited": list(self.awaited),
            "notes": dict(self.notes),
        }
        return found if self.task is None else {**found, "task": self.task}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> OrchestrationState:
        """The state of what `to_dict` gave. What is not there is as in the beginning."""
        return cls(
            conversation=data.get("conversation", Log()),
            round_index=data.get("round_index", 0),
            orchestrator_name=data.get("orchestrator_name", ""),
            metadata=dict(data.get("metadata", {})),
            task=data.get("task"),
            awaited=list(data.get("awaited", ())),
            notes=dict(data.get("notes", {})),
        )


class Keeper(Protocol):
    """Who has a state in each run."""

    def keeping(self, ctx: WorkflowContext[Any, Any], /) -> AbstractContextManager[None]:
        """In it, the state is that of the run."""
        ...


def with_state(method: Callable[..., Any]) -> Callable[..., Any]:
    """The same method. When it is called with a context, it sees the state of that run, and what it changes is kept."""

    @functools.wraps(method)
    async def kept(self: Keeper, *args: Any, **kwargs: Any) -> Any:
        given = (*args, *kwargs.values())
        contexts = [cast("WorkflowContext[Any, Any]", each) for each in given if isinstance(each, WorkflowContext)]
        with self.keeping(contexts[0]) if contexts else nullcontext():
            return await method(self, *args, **kwargs)

    kept.__keeps_state__ = True  # pyright: ignore[reportFunctionMemberAccess, reportAttributeAccessIssue]
    return kept


def is_with_state(method: object) -> bool:
    """Whether a method was made by `with_state`."""
    return getattr(method, "__keeps_state__", False)
