"""What an orchestrator knows belongs to the run: its methods see the state of the run whose message they handle."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from contextvars import ContextVar
from copy import deepcopy
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from perdure import Executor, Log, Message
from perdure.orchestrations.orchestrator_state import OrchestrationState, is_with_state, with_state

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from perdure import WorkflowContext

_KEPT = "orchestration"
_AT_WORK: ContextVar[Mapping[int, OrchestrationState]] = ContextVar("_AT_WORK")
"""The states of the runs that are at work here, by orchestrator: one may lead a chat inside of another's."""


class KeepingOrchestrator(Executor):
    """An executor with an `OrchestrationState` in each run, read when a handler begins and kept when it ends.

    A call that fails leaves nothing, and one run knows nothing of another.
    """

    def __init__(
        self,
        id: str,  # noqa: A002 - the documented name
        *,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        if kwargs.get("max_concurrency", 1) != 1:
            raise ValueError(f"orchestrator {id!r} has one conversation: it handles one message at a time")
        super().__init__(id, **kwargs)
        self._name = name or id
        self.__made_with = OrchestrationState(orchestrator_name=self._name)
        """What a run begins with. The metadata is added when the first one does: then the subclass is made, too."""
        self.__is_made = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Let each method that is given a context see the state of that run; handlers are such methods."""
        super().__init_subclass__(**kwargs)
        for name, method in inspect.getmembers_static(cls, inspect.iscoroutinefunction):
            if not is_with_state(method) and getattr(Executor, name, None) is not method:
                setattr(cls, name, with_state(method))

    @contextmanager
    def keeping(self, ctx: WorkflowContext[Any, Any]) -> Generator[None]:
        """In it, the orchestrator has the state of the run, which is kept when it ends without an error."""
        at_work = _AT_WORK.get({})
        if id(self) in at_work:
            yield
            return
        state = self.__state_in(ctx)
        now_at_work = {**at_work, id(self): state}
        entered = _AT_WORK.set(now_at_work)
        try:
            yield
            state.metadata = self._snapshot_pattern_metadata()
            ctx.scope().set(_KEPT, state.to_dict())
        finally:
            # A task that was begun in the handler and goes on without it has this, too: its runs are others.
            del now_at_work[id(self)]
            _AT_WORK.reset(entered)

    def __state_in(self, ctx: WorkflowContext[Any, Any]) -> OrchestrationState:
        if not self.__is_made:
            self.__made_with.metadata = deepcopy(self._snapshot_pattern_metadata())
            self.__is_made = True
        kept: Mapping[str, Any] | None = ctx.scope().get(_KEPT)
        state = deepcopy(self.__made_with) if kept is None else OrchestrationState.from_dict(kept)
        self._restore_pattern_metadata(state.metadata)
        return state

    @property
    def _state_at_work(self) -> OrchestrationState:
        """The state of the run whose message is being handled; outside of a handler, what a run begins with."""
        return _AT_WORK.get({}).get(id(self), self.__made_with)

    @property
    def _full_conversation(self) -> Log[Message]:
        said = self._state_at_work.conversation
        if not isinstance(said, Log):
            said = self._state_at_work.conversation = Log(said)
        return said

    @_full_conversation.setter
    def _full_conversation(self, conversation: Sequence[Message]) -> None:
        self._state_at_work.conversation = conversation

    @property
    def _round_index(self) -> int:
        return self._state_at_work.round_index

    @_round_index.setter
    def _round_index(self, round_index: int) -> None:
        self._state_at_work.round_index = round_index

    @property
    def _awaited(self) -> list[str]:
        """Who was asked and has not answered yet."""
        return self._state_at_work.awaited

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        """What a subclass adds that keeps something beside the state of the run; nothing by itself."""
        return {}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """Take over what the subclass has added."""

    def _snapshot_pattern_metadata(self) -> dict[str, Any]:
        """What a subclass adds to the checkpoint."""
        return {}

    def _restore_pattern_metadata(self, metadata: dict[str, Any]) -> None:
        """Take over what the subclass has added."""
