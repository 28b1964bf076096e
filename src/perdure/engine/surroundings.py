"""What the activations of a superstep share: the run as it is, and where they record and tell what they do."""

from __future__ import annotations

import hashlib
from dataclasses import field
from typing import TYPE_CHECKING, Any

from perdure.data import mutable
from perdure.engine.journal import NoJournal
from perdure.engine.parking import finished
from perdure.engine.purse import Purse
from perdure.errors import ClaimLostError, StaleHeadError, WorkflowCheckpointException
from perdure.events import WorkflowEvent, WorkflowEventSource
from perdure.kernel import activation_id_of
from perdure.tracing import NO_SPAN

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.clock import Clock
    from perdure.codec import Encoded, Held, Values
    from perdure.engine.journal import Journal
    from perdure.graph import Graph
    from perdure.kernel import Activation, ActivationResult, Snapshot, StateKey, Write
    from perdure.tracing import Span


@mutable
class Surroundings:
    """What all activations of a superstep share."""

    graph: Graph
    snapshot: Snapshot
    values: Values
    tell: Callable[[WorkflowEvent[Any]], None]
    root_id: str
    """Names run and branch and the sub-workflow, so that ids derived from it are the same in every life."""
    run_kwargs: dict[str, Any]
    """The kwargs of the run as they were given, those that are not stored included."""
    journal: Journal
    """Of this superstep."""
    clock: Clock
    run_id: str = ""
    """Of the run; of a sub-workflow with the names of the executors that it is inside of."""
    span: Span = NO_SPAN
    """The superstep, as it is traced."""
    streaming: bool = False
    is_checkpointed: bool = False
    purse: Purse = field(default_factory=Purse)
    """What the activations have spent so far, and those around this superstep."""
    overlays: dict[str, dict[StateKey, Write]] = field(init=False)
    """By executor: the writes of its earlier activations in this superstep."""
    children: dict[str, Snapshot] = field(init=False)
    """By executor: the sub-workflow as its earlier activations in this superstep left it."""
    opened: set[str] = field(init=False)
    """The ids of the requests that this superstep has opened so far."""
    keeps_records: bool = field(init=False)
    """Whether what is recorded inside an activation will be found again."""
    goes_on: bool = field(init=False)
    """Whether an earlier life, or an earlier entry into an activation, has recorded anything."""

    def __post_init__(self) -> None:
        self.overlays, self.children, self.opened = {}, {}, set()
        self.keeps_records = self.is_checkpointed and not isinstance(self.journal, NoJournal)
        self.goes_on = self.keeps_records and not self.journal.is_empty

    def home_of(self, activation: Activation) -> str:
        """Where an activation was entered first."""
        return activation_id_of(self.snapshot, activation)

    def derived_id(self, name: str) -> str:
        """An id that is the same in every life of this run, and another one in a fork of it."""
        return hashlib.blake2b(f"{self.root_id}/{name}".encode(), digest_size=16).hexdigest()

    def held(self, home: str) -> dict[str, Held]:
        """By place: the results of an activation's steps that could not be recorded."""
        return self.values.held.setdefault(f"{self.root_id}/{home}", {})

    def memo(self, home: str) -> dict[str, object]:
        """What attempts at an activation leave for those after them, in this life. It is never recorded."""
        return self.values.memos.setdefault(f"{self.root_id}/{home}", {})

    def let_go(self, activation: Activation) -> None:
        """The activation is over, and is not entered again in this life."""
        if self.values.held or self.values.memos:
            name = f"{self.root_id}/{self.home_of(activation)}"
            self.values.held.pop(name, None)
            self.values.memos.pop(name, None)

    async def put(self, key: str, encoded: Encoded, *, is_progress: bool = True) -> bool:
        """Record something, synced, even if whoever waits for it is cancelled; whether it is on record now.

        Raises CheckpointWriteError.
        """
        if not self.keeps_records:
            return False
        try:
            await finished(self.journal.put(key, encoded, is_progress=is_progress))
        except (ClaimLostError, StaleHeadError):
            raise
        except WorkflowCheckpointException as error:
            if self.graph.rules.on_checkpoint_error == "stop":
                raise
            self.tell(
                WorkflowEvent(
                    "warning", f"what was done is not recorded: {error}", origin=WorkflowEventSource.FRAMEWORK
                )
            )
            return False
        return True

    def take_in(self, done: ActivationResult) -> None:
        """Let later activations of the same executor see what one has done."""
        effects = done.effects
        executor_id = effects.activation.executor_id
        if effects.writes:
            self.overlays.setdefault(executor_id, {}).update((write.key, write) for write in effects.writes)
        if effects.requests:
            self.opened.update(request.id for request in effects.requests)
        if effects.child is not None:
            self.children[executor_id] = effects.child
        if self.snapshot.limits.budget:
            self.purse.of(self.home_of(effects.activation)).spend(effects.spent)
