"""Workflows that ask and that listen, for tests that answer and send."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime  # noqa: TC003 - fields are read at run time
from decimal import Decimal  # noqa: TC003
from enum import Enum
from typing import TYPE_CHECKING, Any, Never

from pydantic import BaseModel

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, handler, response_handler

if TYPE_CHECKING:
    from perdure import CheckpointStorage, WorkflowCheckpoint, WorkflowEvent
    from perdure.clock import Clock
    from perdure.storage import StoreStorage


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Offer:
    """A structured answer."""

    item: str
    price: Decimal
    colours: frozenset[Colour] = frozenset()
    until: datetime | None = None

    def __post_init__(self) -> None:
        if self.price < 0:
            raise KeyError("nobody pays to sell")


class Parcel(BaseModel):
    """An answer that checks itself."""

    name: str
    weight: int = 1


@dataclass
class Question:
    """What is asked."""

    text: str
    asked_at: datetime | None = None
    choices: tuple[str, ...] = ()
    notes: dict[str, Any] = field(default_factory=dict[str, Any])


Answer = str | int | Offer | Parcel | Colour | list[Offer] | None


class Official(Executor):
    """Asks what it is told to, each text as a request of that id, and tells each answer."""

    def __init__(self, expects: Any = str, **terms: Any) -> None:
        super().__init__("official")
        self.expects = expects
        self.terms = terms

    @handler
    async def ask(self, texts: list[str], ctx: WorkflowContext[Never, str]) -> None:
        for text in texts:
            await ctx.request_info(Question(text), self.expects, request_id=text, **self.terms)

    @response_handler
    async def told(self, question: Question, answer: Answer, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"{question.text}: {answer!r}")


def office(
    storage: CheckpointStorage | None, expects: Any = str, *, clock: Clock | None = None, **terms: Any
) -> Workflow:
    """A workflow that asks for each text in a list."""
    official = Official(expects, **terms)
    return WorkflowBuilder(
        name="office", start_executor=official, checkpoint_storage=storage, clock=clock, record_payloads=False
    ).build()


class Passer(Executor):
    """Passes on what its neighbour says."""

    @handler
    async def hear(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(f"heard {text}")


def branch(storage: CheckpointStorage | None, expects: Any = str, **terms: Any) -> Workflow:
    """The same office inside of a workflow, which passes its requests on to the outside."""
    inside = WorkflowExecutor(office(None, expects, **terms), id="branch", propagate_request=True)
    passer = Passer("passer")
    builder = WorkflowBuilder(name="head office", start_executor=inside, checkpoint_storage=storage)
    return builder.add_edge(inside, passer).build()


class SixMethods:
    """A storage of somebody's own: the six methods, on top of another."""

    def __init__(self, inner: StoreStorage) -> None:
        self.save, self.load, self.delete = inner.save, inner.load, inner.delete
        self._inner = inner

    async def list_checkpoints(self, *, workflow_name: str) -> list[WorkflowCheckpoint]:
        return await self._inner.list_checkpoints(workflow_name=workflow_name)

    async def get_latest(self, *, workflow_name: str) -> WorkflowCheckpoint | None:
        return await self._inner.get_latest(workflow_name=workflow_name)

    async def list_checkpoint_ids(self, *, workflow_name: str) -> list[str]:
        return await self._inner.list_checkpoint_ids(workflow_name=workflow_name)


def warnings(events: Any) -> list[str]:
    """What was warned of."""
    found: list[WorkflowEvent[Any]] = [event for event in events if event.type == "warning"]
    return [str(event.data) for event in found]
