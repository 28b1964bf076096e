"""Graphs of executors: all kinds of stored values, questions, waits, forks, kills, sub-workflows."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag, auto
from fractions import Fraction
from pathlib import PurePosixPath
from typing import Any, Generic, Literal, NamedTuple, TypeVar
from uuid import UUID
from zoneinfo import ZoneInfo

from pydantic import BaseModel

from perdure import (
    AgentExecutorRequest,
    AgentResponse,
    AgentSession,
    Case,
    Content,
    Default,
    Edit,
    Executor,
    FailedMessage,
    InterruptedStep,
    KeepLast,
    Log,
    Message,
    MessageType,
    Retry,
    StepDecision,
    SubWorkflowRequestMessage,
    SubWorkflowResponseMessage,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowMessage,
    WorkflowRunState,
    executor,
    handler,
    response_handler,
)

from .world import Place, Scenario, answer_all, outputs, world

T = TypeVar("T")


class Colour(Enum):
    """An enum."""

    RED = "red"
    BLUE = "blue"


class Access(Flag):
    """Flags."""

    READ = auto()
    WRITE = auto()


class Point(NamedTuple):
    """A named tuple."""

    x: int
    y: float = 0.5


class Label(BaseModel):
    """A model."""

    text: str
    colour: Colour = Colour.RED
    at: datetime = datetime(2024, 5, 1, tzinfo=UTC)


class Page(BaseModel, Generic[T]):
    """A generic model: its stored name has the names of its arguments in it."""

    items: list[T]


@dataclass
class Parcel:
    """A message."""

    name: str
    stops: list[str] = field(default_factory=list[str])
    point: Point = field(default=Point(1))
    label: Label | None = None


@dataclass
class Everything:
    """Values of all kinds that a program may keep."""

    plain: dict[str, Any]
    access: Access
    colours: dict[Colour, Point]
    parcels: tuple[Parcel, ...]
    log: Log[Parcel]
    page: Page[Label]
    retries: Page[Retry]
    states: set[WorkflowRunState]
    expressions: list[Any]
    ours: list[Message | Content | AgentResponse | AgentExecutorRequest | WorkflowMessage | KeepLast | MessageType]
    session: AgentSession


def everything() -> Everything:
    """Make one of each."""
    counted: defaultdict[str, list[int]] = defaultdict(list)
    counted["a"].append(1)
    plain: dict[str, Any] = {
        "numbers": [1, 2.5, float("inf"), -(10**30), 1 + 2j, True, None],
        "texts": ["ä", "line\nbreak", "x" * 3000],
        "bytes": [b"\x00\xff" * 9, bytearray(b"ab")],
        "sets": [{1, 2}, frozenset({"x"})],
        "exact": [Decimal("1.10"), Fraction(1, 3), UUID(int=7)],
        "times": [
            datetime(2024, 1, 2, 3, 4, 5, 6, tzinfo=UTC),
            datetime(2024, 7, 1, tzinfo=ZoneInfo("Europe/Oslo")),
            date(2024, 2, 3),
            time(4, 5, 6),
            timedelta(days=1, seconds=2, microseconds=3),
        ],
        "places": [PurePosixPath("a/b")],
        "containers": [deque([1, 2], maxlen=3), Counter("aab"), OrderedDict(b=1, a=2), counted, range(1, 9, 2)],
        "keys": {(1, "a"): "tuple", 2: "int", None: "none"},
    }
    return Everything(
        plain,
        Access.READ | Access.WRITE,
        {Colour.BLUE: Point(2, 1.5)},
        (Parcel("a", label=Label(text="l")), Parcel("b")),
        Log(Parcel(f"parcel {number}", ["x" * 40]) for number in range(60)),
        Page[Label](items=[Label(text="m", colour=Colour.BLUE)]),
        Page[Retry](items=[Retry(3)]),
        {WorkflowRunState.IDLE},
        [int, list[Parcel], dict[str, Point | None], Literal["a", 1], Message, list[Message], Parcel | None, Retry],
        [
            Message("user", ["hello", Content.from_function_call("c", "f", arguments={"a": 1})], author_name="ada"),
            Content.from_text("text"),
            AgentResponse(messages=[Message("assistant", ["hi"])], response_id="r"),
            AgentExecutorRequest([Message("user", ["go"])]),
            WorkflowMessage("data", "near"),
            KeepLast(3),
            MessageType.RESPONSE,
        ],
        AgentSession(session_id="s"),
    )


def same(found: Everything) -> str:
    """Say which fields came back as they were."""
    wanted = everything()
    values = {name: (getattr(found, name), getattr(wanted, name)) for name in vars(wanted)}
    return " ".join(f"{name}:{repr(a) == repr(b) or a == b}" for name, (a, b) in values.items() if name != "session")


@dataclass
class Question:
    """A question to the outside."""

    about: str
    points: list[Point] = field(default_factory=list[Point])


@dataclass
class Verdict:
    """An answer."""

    accepted: bool
    note: str = ""


class Office(Executor):
    """Begins, with a state of its own."""

    def __init__(self) -> None:
        super().__init__("office")
        self.kept: Everything | None = None

    @handler
    async def begin(self, name: str, ctx: WorkflowContext[Parcel, str]) -> None:
        world.did(f"begin {name}")
        self.kept = everything()
        ctx.set_state("everything", everything())
        ctx.set_state("name", name)
        ctx.scope().set("private", Point(3))
        ctx.scope("audit").set("entries", (name,))
        await ctx.yield_output(f"begun {name}")
        await ctx.send_message(Parcel(name, label=Label(text=name)))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"kept": self.kept}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.kept = state["kept"]


@executor(id="near")
async def near(parcel: Parcel, ctx: WorkflowContext[Parcel]) -> None:
    world.did(f"near {parcel.name}")
    parcel.stops.append("near")
    await ctx.send_message(parcel)


@executor(id="far")
async def far(parcel: Parcel, ctx: WorkflowContext[Parcel]) -> None:
    world.did(f"far {parcel.name}")
    parcel.stops.append("far")
    await ctx.send_message(parcel)


class Judge(Executor):
    """Gathers both ways and asks."""

    @handler
    async def judge(self, parcels: list[Parcel], ctx: WorkflowContext[Everything, str]) -> None:
        world.did(f"judge {parcels[0].name}")
        question = Question(" ".join("".join(parcel.stops) for parcel in parcels), [parcels[0].point])
        await ctx.request_info(
            question,
            Verdict,
            request_id=f"verdict on {parcels[0].name}",
            deadline=timedelta(days=9),
            default=Verdict(accepted=False, note="nobody answered"),
            approves=question,
        )

    @response_handler
    async def decide(self, question: Question, verdict: Verdict, ctx: WorkflowContext[Everything, str]) -> None:
        ctx.require_approved(question)
        name, entries = ctx.get_state("name"), ctx.scope("audit").get("entries")
        await ctx.yield_output(f"{question} of {name}: {verdict} {entries}")
        await ctx.send_message(ctx.get_state("everything"))


def is_writable(found: Everything) -> bool:
    """Judge for an edge."""
    return Access.WRITE in found.access


@executor(id="shelf")
async def shelf(found: Everything, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"kept {same(found)}")


@executor(id="bin")
async def waste(found: Everything, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"lost {found}")


def asking(place: Place) -> Workflow:
    """Build a graph with edges of every kind."""
    office, judge = Office(), Judge("judge")
    return (
        WorkflowBuilder(name="asking", start_executor=office, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(office, [near, far])
        .add_fan_in_edges([near, far], judge)
        .add_switch_case_edge_group(judge, [Case(condition=is_writable, target=shelf), Default(target=waste)])
        .build()
    )


async def begin_asking(place: Place) -> None:
    await asking(place).run("ask", run_id="asks", wait_for_timers=False)
    await asking(place).run("answered", run_id="answered", wait_for_timers=False)
    await place.storage.respond("answered", {"verdict on answered": {"accepted": True, "note": "posted"}}, by="ada")


async def finish_asking(place: Place) -> list[str]:
    (request,) = await place.storage.requests("asks")
    given = {request.request_id: Verdict(accepted=True, note="good")}
    await asking(place).run(run_id="asks", responses=given)
    await asking(place).run(run_id="answered")
    return [
        f"{request.request_id} {request.response_type} {request.deadline}",
        *await outputs(place, "asks", "answered"),
    ]


async def begin_forks(place: Place) -> None:
    run = asking(place).start("first", run_id="forked", wait_for_timers=False)
    await run.result()
    second = (await run.checkpoints())[1]
    for key, checkpoint in (("early", second.checkpoint_id), ("late", None)):
        known = await runs_of_asking(place)
        await run.fork(checkpoint, edit=Edit(state={"name": key}))
        (place.saved[key],) = await runs_of_asking(place) - known


async def runs_of_asking(place: Place) -> set[str]:
    """Return the ids of all runs of the graph."""
    found = await place.storage.list_checkpoints(workflow_name="asking")
    return {each.checkpoint_id.rpartition("@")[0] for each in found}


async def finish_forks(place: Place) -> list[str]:
    told: list[str] = []
    for key, run in (("forked", "forked"), *sorted(place.saved.items())):
        result = await asking(place).run(run_id=run, wait_for_timers=False)
        answers = {each.request_id: Verdict(accepted=True, note=key) for each in result.get_request_info_events()}
        await asking(place).run(run_id=run, responses=answers)
        told.extend(each.replace(run, key, 1) for each in await outputs(place, run))
    return told


async def make(what: str, count: int = 1) -> str:
    """Do something that must not be done twice."""
    world.did(f"make {what} {count}")
    await asyncio.sleep(0)
    return f"{what} x{count}"


async def refuse(what: str) -> str:
    """Fail, always."""
    world.did(f"refuse {what}")
    raise ConnectionError(f"no {what}")


class Waiter(Executor):
    """Waits in the middle of a handler, with steps before and after, one after the other and side by side."""

    @handler
    async def serve(self, name: str, ctx: WorkflowContext[Any, str]) -> None:
        told = [await ctx.step("one", make, "one"), await ctx.step("one", make, "two")]
        told.append(await ctx.step("lambda", lambda: self.count(name)))
        told.append(await ctx.step("method", self.count, "method"))
        told += await asyncio.gather(*(ctx.step("each", make, what) for what in ("a", "b", "c")))
        told += await asyncio.gather(ctx.step("left", make, "l"), ctx.step("right", make, "r", 2))
        told += await asyncio.gather(ctx.step("twin", make, "t"), ctx.step("twin", make, "t"))
        told.append(await ctx.step("keyed", make, "k", key="the key"))
        try:
            await ctx.step("shaky", refuse, name)
        except ConnectionError as error:
            told.append(str(error))
        if name == "sleep":
            await ctx.sleep(timedelta(days=1))
        else:
            verdict = await ctx.ask(Question(name, [Point(1)]), Verdict)
            told.append(f"{verdict}")
        told += await asyncio.gather(*(ctx.step("after", make, what) for what in ("x", "y")))
        await ctx.yield_output(" ".join(told) + f" with a key of {len(ctx.idempotency_key)}")

    def count(self, what: str) -> str:
        world.did(f"count {what}")
        return f"{what}: {len(what)}"


@executor(id="starter")
async def starter(name: str, ctx: WorkflowContext[str]) -> None:
    world.did(f"start {name}")
    await ctx.send_message(name)
    await ctx.send_message(f"{name} later", target_id="echo", delay=timedelta(days=2))


@executor(id="echo")
async def echo(text: str, ctx: WorkflowContext[Any, str]) -> None:
    world.did(f"echo {text}")
    await ctx.yield_output(f"heard {text}")


def waiting(place: Place) -> Workflow:
    """Build a graph whose handler is suspended."""
    return (
        WorkflowBuilder(name="waiting", start_executor=starter, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(starter, [Waiter("waiter"), echo])
        .build()
    )


async def begin_waiting(place: Place) -> None:
    for name in ("ask", "sleep"):
        await waiting(place).run(name, run_id=f"wait-{name}", wait_for_timers=False, budget={"supersteps": 50})


async def finish_waiting(place: Place) -> list[str]:
    await waiting(place).run(run_id="wait-sleep")
    (request,) = await place.storage.requests("wait-ask")
    await place.storage.respond("wait-ask", {request.request_id: {"accepted": True}}, by="ada")
    await waiting(place).run(run_id="wait-ask")
    return await outputs(place, "wait-sleep", "wait-ask")


class Worker(Executor):
    """Does some steps, and is killed before the last."""

    @handler
    async def work(self, name: str, ctx: WorkflowContext[str, str]) -> None:
        first = await ctx.step("first", make, name)
        rest = await asyncio.gather(*(ctx.step("rest", make, name, count) for count in (2, 3)))
        await world.reach("worker")
        last = await ctx.step("last", make, f"last of {name}")
        ctx.set_state("worker", [first, *rest, last])
        await ctx.yield_output(" ".join([first, *rest, last]))


class Asker(Executor):
    """Asks, and is done."""

    @handler
    async def ask(self, name: str, ctx: WorkflowContext[Any, str]) -> None:
        world.did(f"ask {name}")
        await ctx.request_info(Question(name), Verdict, request_id=f"about {name}")

    @response_handler
    async def told(self, question: Question, verdict: Verdict, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(f"{question.about}: {verdict.accepted} {ctx.get_state('worker')}")


@executor(id="teller")
async def teller(name: str, ctx: WorkflowContext[str]) -> None:
    world.did(f"tell {name}")
    await ctx.send_message(name)


def killed(place: Place) -> Workflow:
    """Build a graph in which one of three is killed."""
    return (
        WorkflowBuilder(name="killed", start_executor=teller, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(teller, [echo, Asker("asker"), Worker("worker")])
        .build()
    )


async def finish_killed(place: Place) -> list[str]:
    return await answer_all(place, killed, "killed", lambda _: Verdict(accepted=True))


class Inner(Executor):
    """Goes round inside of a sub-workflow, and asks in the end."""

    def __init__(self, id: str) -> None:  # noqa: A002
        super().__init__(id)
        self.rounds: list[str] = []

    @handler
    async def round(self, number: int, ctx: WorkflowContext[int, str]) -> None:
        self.rounds.append(await ctx.step("round", make, f"round {number} of {self.id}"))
        if number == 2:
            await world.reach("inner")
        if number < 3:
            await ctx.send_message(number + 1)
            return
        world.did(f"{self.id} asks")
        await ctx.request_info(Question(f"{self.id} {len(self.rounds)}"), Verdict, request_id=f"of {self.id}")

    @response_handler
    async def told(self, question: Question, verdict: Verdict, ctx: WorkflowContext[int, str]) -> None:
        await ctx.yield_output(f"{question.about}: {verdict.note} {self.rounds}")

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"rounds": self.rounds}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.rounds = state["rounds"]


class Parent(Executor):
    """Starts two sub-workflows, and answers one of them after asking outside itself."""

    @handler
    async def start(self, parcel: Parcel, ctx: WorkflowContext[int, str]) -> None:
        world.did(f"parent of {parcel.name}")
        await ctx.send_message(1)

    @handler
    async def intercept(
        self, request: SubWorkflowRequestMessage, ctx: WorkflowContext[SubWorkflowResponseMessage, str]
    ) -> None:
        world.did("intercepted")
        await ctx.request_info(request, Verdict, request_id="intercepted")

    @response_handler
    async def passed(
        self, request: SubWorkflowRequestMessage, verdict: Verdict, ctx: WorkflowContext[SubWorkflowResponseMessage]
    ) -> None:
        await ctx.send_message(request.create_response(verdict), target_id=request.executor_id)


@executor(id="ender")
async def ender(text: str, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(text)


def inner_workflow(name: str) -> Workflow:
    """Build a workflow that goes round."""
    inner = Inner(name)
    return WorkflowBuilder(name=f"inner {name}", start_executor=inner).add_edge(inner, inner).build()


def nested(place: Place) -> Workflow:
    """Build a graph with two sub-workflows, one of them with another inside."""
    parent = Parent("parent")
    direct = WorkflowExecutor(inner_workflow("direct"), id="direct", propagate_request=True)
    deep = WorkflowExecutor(inner_workflow("deep"), id="deep", allow_direct_output=True, propagate_request=True)
    outer = WorkflowExecutor(WorkflowBuilder(name="middle", start_executor=deep).build(), id="outer")
    return (
        WorkflowBuilder(name="nested", start_executor=parent, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(parent, [direct, outer])
        .add_edge(outer, parent)
        .add_edge(direct, ender)
        .add_edge(outer, ender)
        .build()
    )


async def finish_nested(place: Place, run: str) -> list[str]:
    return await answer_all(place, nested, run, lambda data: Verdict(accepted=True, note=type(data).__name__))


class Slow(Executor):
    """Asks before it sends on, so that a fan-in waits half full."""

    @handler
    async def ask(self, parcel: Parcel, ctx: WorkflowContext[Parcel]) -> None:
        world.did(f"slow {parcel.name}")
        await ctx.request_info(parcel, Point)

    @response_handler
    async def told(self, parcel: Parcel, point: Point, ctx: WorkflowContext[Parcel]) -> None:
        await ctx.send_message(Parcel(f"{parcel.name} slowly", parcel.stops, point))


@executor(id="source")
async def source(name: str, ctx: WorkflowContext[Parcel]) -> None:
    world.did(f"source {name}")
    await ctx.send_message(Parcel(name))


class Repair(Executor):
    """Gets what another could not handle, and waits with it."""

    @handler
    async def repair(self, failed: FailedMessage, ctx: WorkflowContext[Any, str]) -> None:
        world.did(f"repair {failed.executor_id}")
        await ctx.sleep(timedelta(days=3))
        await ctx.yield_output(f"{failed.message} {failed.executor_id} {failed.error.error_type} {failed.attempts}")


class Broken(Executor):
    """Fails for good."""

    @handler
    async def fail(self, parcel: Parcel, ctx: WorkflowContext[Any, str]) -> None:
        world.did(f"broken {parcel.name}")
        await ctx.yield_output("never seen")
        raise OSError(28, f"no room for {parcel.name}")


@executor(id="gatherer")
async def gatherer(parcels: list[Parcel], ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"{parcels}")


def half_full(place: Place) -> Workflow:
    """Build a graph with a fan-in that waits for one of two, and an executor for failures."""
    slow, broken = Slow("slow"), Broken("broken", on_error=Repair("repair"))
    return (
        WorkflowBuilder(name="half-full", start_executor=source, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(source, [near, slow, broken])
        .add_fan_in_edges([near, slow], gatherer)
        .build()
    )


async def begin_half_full(place: Place) -> None:
    given = {"user": "ada"}
    await half_full(place).run("h", run_id="half-full", wait_for_timers=False, function_invocation_kwargs=given)


async def finish_half_full(place: Place) -> list[str]:
    return await answer_all(place, half_full, "half-full", lambda _: Point(7, 8.5))


async def charge(euros: int) -> str:
    """Do what must not be done twice, and be cut off in the middle."""
    await world.reach("charge")
    world.did(f"charge {euros}")
    return f"charged {euros}"


@executor(id="till")
async def till(name: str, ctx: WorkflowContext[Any, str]) -> None:
    found = await ctx.step("charge", charge, len(name), if_interrupted="ask")
    await ctx.yield_output(f"{name} {found}")


def till_workflow(place: Place) -> Workflow:
    """Build a graph with a step that asks if it was cut off."""
    return WorkflowBuilder(
        name="till", start_executor=till, checkpoint_storage=place.storage, clock=place.clock
    ).build()


async def finish_till(place: Place) -> list[str]:
    def decide(data: Any) -> StepDecision:
        assert isinstance(data, InterruptedStep)
        return StepDecision("rerun")

    return await answer_all(place, till_workflow, "till", decide)


async def flaky(name: str) -> str:
    """Fail until an hour has passed."""
    world.did(f"flaky {name}")
    if world.clock().hour < 1:
        raise ConnectionError(f"{name} is down")
    return f"{name} is up"


RETRY = Retry(3, timedelta(hours=2), longest=timedelta(days=1))


@executor(id="retrier", retry=RETRY)
async def retrier(name: str, ctx: WorkflowContext[Any, str]) -> None:
    first = await ctx.step("first", make, name)
    await ctx.yield_output(f"{first} {await flaky('executor')}")


@executor(id="stepper")
async def stepper(name: str, ctx: WorkflowContext[Any, str]) -> None:
    first = await ctx.step("first", make, f"{name} again")
    await ctx.yield_output(f"{first} {await ctx.step('flaky', flaky, 'step', retry=RETRY)}")


def retrying(place: Place) -> Workflow:
    """Build a graph whose attempts are hours apart."""
    return (
        WorkflowBuilder(name="retrying", start_executor=teller, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(teller, [retrier, stepper])
        .build()
    )


async def begin_retrying(place: Place) -> None:
    await retrying(place).run("try", run_id="retrying", wait_for_timers=False)


async def finish_retrying(place: Place) -> list[str]:
    await retrying(place).run(run_id="retrying")
    return await outputs(place, "retrying")


async def begin_tenant(place: Place) -> None:
    for tenant in ("acme", "b/c d"):
        other = place.of_tenant(tenant)
        await asking(other).run(tenant, run_id="asks", wait_for_timers=False)


async def finish_tenant(place: Place) -> list[str]:
    told: list[str] = []
    for tenant in ("acme", "b/c d"):
        other = place.of_tenant(tenant)
        (request,) = await other.storage.requests()
        given = {request.request_id: Verdict(accepted=True, note=tenant)}
        await asking(other).run(run_id="asks", responses=given)
        told.extend(await outputs(other, "asks"))
    return told


class Ledger(Executor):
    """Fails until a day has passed, after a step."""

    @handler
    async def enter(self, name: str, ctx: WorkflowContext[Any, str]) -> None:
        page = await ctx.step("page", make, f"page for {name}")
        if world.clock().day < 2:
            raise OSError(28, "the ledger is full")
        await ctx.yield_output(page)


def failing(place: Place) -> Workflow:
    """Build a graph that fails on the first day."""
    return (
        WorkflowBuilder(name="failing", start_executor=teller, checkpoint_storage=place.storage, clock=place.clock)
        .add_fan_out_edges(teller, [Ledger("ledger"), echo])
        .build()
    )


async def begin_failed(place: Place) -> None:
    for run in ("failed", "parked"):
        with contextlib.suppress(OSError):
            await failing(place).run(run, run_id=run)
    assert place.park is not None
    await place.park("parked")
    await waiting(place).run("sleep", run_id="cancelled", wait_for_timers=False)
    await place.storage.cancel("cancelled", reason="second thoughts", by="ada")
    await waiting(place).run(run_id="cancelled")


async def finish_failed(place: Place) -> list[str]:
    place.clock.advance(timedelta(days=1))
    await failing(place).run(run_id="failed")
    await failing(place).run(run_id="parked")
    await waiting(place).run(run_id="cancelled")
    return await outputs(place, "failed", "parked", "cancelled")


SCENARIOS = [
    Scenario("graph that asks", begin_asking, finish_asking, ("asks", "answered")),
    Scenario("graph that was forked", begin_forks, finish_forks, ("forked",)),
    Scenario("graph that is suspended", begin_waiting, finish_waiting, ("wait-ask", "wait-sleep")),
    Scenario(
        "graph killed in a superstep",
        lambda place: killed(place).run("job", run_id="killed"),
        finish_killed,
        ("killed",),
        kill_at="worker",
    ),
    Scenario(
        "sub-workflows that ask",
        lambda place: nested(place).run(Parcel("a"), run_id="nested"),
        lambda place: finish_nested(place, "nested"),
        ("nested",),
    ),
    Scenario(
        "sub-workflow killed inside",
        lambda place: nested(place).run(Parcel("b"), run_id="nested-killed"),
        lambda place: finish_nested(place, "nested-killed"),
        ("nested-killed",),
        kill_at="inner",
    ),
    Scenario("fan-in that is half full, and a failed message", begin_half_full, finish_half_full, ("half-full",)),
    Scenario(
        "step that was cut off",
        lambda place: till_workflow(place).run("till", run_id="till"),
        finish_till,
        ("till",),
        kill_at="charge",
    ),
    Scenario("attempts that are hours apart", begin_retrying, finish_retrying, ("retrying",)),
    Scenario("tenants", begin_tenant, finish_tenant),
    Scenario(
        "runs that failed, were parked or cancelled", begin_failed, finish_failed, ("failed", "parked", "cancelled")
    ),
]
