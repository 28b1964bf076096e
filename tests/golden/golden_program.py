"""The program whose checkpoints are kept as golden files. What they were written with stays as it is."""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Never
from uuid import UUID

from typing_extensions import override

from perdure import Executor, Workflow, WorkflowBuilder, WorkflowContext, WorkflowExecutor, handler, response_handler

if TYPE_CHECKING:
    from perdure import CheckpointStorage, Clock


class Grade(Enum):
    """How good a parcel is."""

    FINE = "fine"
    POOR = "poor"


@dataclass
class Parcel:
    """A message with a field of every kind."""

    label: str
    grade: Grade = Grade.FINE
    stops: list[str] = field(default_factory=list[str])
    price: Decimal = Decimal("1.10")
    sent_at: datetime = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    due: date = date(2030, 2, 3)
    patience: timedelta = timedelta(days=1, seconds=2)
    number: UUID = field(default_factory=lambda: UUID(int=7))
    place: PurePosixPath = field(default_factory=lambda: PurePosixPath("a/b"))
    corners: tuple[int, ...] = (1, 2)
    tags: frozenset[str] = frozenset({"x", "y"})
    seal: bytes = b"\x00\xff"
    weights: dict[int, float] = field(default_factory=dict[int, float])


@dataclass
class Question:
    """What is asked outside."""

    about: str


@dataclass
class Verdict:
    """What is answered."""

    accepted: bool
    note: str = ""


class Office(Executor):
    """Begins with a text, and keeps everything that a program may keep in itself and in the state."""

    def __init__(self) -> None:
        super().__init__("office")
        self.memory: dict[Any, Any] = {}

    @handler
    async def begin(self, label: str, ctx: WorkflowContext[Parcel, str]) -> None:
        self.memory = {
            "labels": [*self.memory.get("labels", []), label],
            "recent": deque([label], maxlen=3),
            "counted": Counter(label),
            "ordered": OrderedDict(b=1, a=2),
            ("odd", 1): {2, 3},
            "large": [f"entry {number}" for number in range(600)],
            "raw": bytes(range(256)) * 16,
        }
        ctx.set_state("label", label)
        ctx.set_state("parcels", {label: Parcel(label, weights={1: 1.5})})
        ctx.scope().set("private", [label])
        ctx.scope("audit/log").set("entries", (label,))
        await ctx.yield_output(f"begun {label}")
        await ctx.send_message(Parcel(label, weights={1: 1.5, 2: float("inf")}))

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"memory": self.memory}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.memory = state["memory"]


class Stop(Executor):
    """A stop on a parcel's way."""

    @handler
    async def stamp(self, parcel: Parcel, ctx: WorkflowContext[Parcel]) -> None:
        parcel.stops.append(self.id)
        await ctx.send_message(parcel)


class Judge(Executor):
    """Waits for both ways, asks for a verdict, and lets the desk ask for words."""

    @handler
    async def judge(self, parcels: list[Parcel], ctx: WorkflowContext[list[str], str]) -> None:
        ways = " ".join("".join(parcel.stops) for parcel in parcels)
        await ctx.yield_output(f"ways {ways}")
        await ctx.request_info(Question(ways), Verdict, request_id="verdict")
        await ctx.send_message([f"{parcels[0].label}-1", f"{parcels[0].label}-2"])

    @response_handler
    async def decide(self, question: Question, verdict: Verdict, ctx: WorkflowContext[list[str], str]) -> None:
        audit = ctx.scope("audit/log").get("entries")
        await ctx.yield_output(f"{question.about}: {verdict.accepted} {verdict.note} {audit}")

    @handler
    async def heard(self, word: str, ctx: WorkflowContext[list[str], str]) -> None:
        parcels: dict[str, Parcel] = ctx.get_state("parcels")
        known = parcels[ctx.get_state("label")]
        await ctx.yield_output(f"{word} for {known.label} {known.grade.value} {known.price} {known.due}")


class Clerk(Executor):
    """Inside the desk: asks about each word and remembers."""

    def __init__(self) -> None:
        super().__init__("clerk")
        self.log: list[str] = []

    @handler
    async def ask(self, words: list[str], ctx: WorkflowContext[Never, str]) -> None:
        for word in words:
            await ctx.request_info(Question(word), str, request_id=f"about {word}")

    @response_handler
    async def told(self, question: Question, answer: str, ctx: WorkflowContext[Never, str]) -> None:
        self.log.append(answer)
        await ctx.yield_output(f"{question.about} is {' then '.join(self.log)}")

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"log": self.log}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.log = state["log"]


def build(storage: CheckpointStorage, clock: Clock | None = None) -> Workflow:
    """The workflow."""
    office, near, far, farther, judge = Office(), Stop("near"), Stop("far"), Stop("farther"), Judge("judge")
    inner = WorkflowBuilder(start_executor=Clerk(), name="inner").build()
    desk = WorkflowExecutor(inner, id="desk", propagate_request=True)
    return (
        WorkflowBuilder(start_executor=office, name="golden", checkpoint_storage=storage, clock=clock)
        .add_fan_out_edges(office, [near, far])
        .add_edge(far, farther)
        .add_fan_in_edges([near, farther], judge)
        .add_edge(judge, desk)
        .add_edge(desk, judge)
        .build()
    )
