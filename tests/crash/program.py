"""The program that the crash tests kill: every kind of edge, state in every place, a sub-workflow, a request."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from perdure import (
    Case,
    Default,
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    WorkflowRunState,
    executor,
    handler,
    response_handler,
)

if TYPE_CHECKING:
    from perdure.storage import StoreStorage

RUN_ID = "crash-me"


@dataclass
class Job:
    """A number to work on, and how often it went round."""

    number: int
    rounds: int = 0
    trail: list[str] = field(default_factory=list[str])


@dataclass
class Approval:
    """The question whether to go on."""

    subject: str


class Dispatcher(Executor):
    """Sends the job to both branches."""

    @handler
    async def begin(self, number: int, ctx: WorkflowContext[Job]) -> None:
        ctx.set_state("number", number)
        await ctx.send_message(Job(number, trail=["begun"]))


class Counter(Executor):
    """Goes round three times before it hands on, and counts in an attribute."""

    def __init__(self, executor_id: str, pause: float) -> None:
        super().__init__(executor_id)
        self._pause = pause
        self._calls: list[int] = []

    @handler
    async def count(self, job: Job, ctx: WorkflowContext[Job, str]) -> None:
        await asyncio.sleep(self._pause)
        self._calls.append(job.rounds)
        job.rounds += 1
        job.trail.append(f"{self.id}{job.rounds}")
        ctx.scope().set("calls", len(self._calls))
        await ctx.yield_output(f"{self.id} round {job.rounds}")
        await ctx.send_message(job)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"calls": self._calls}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._calls = state["calls"]


class Judge(Executor):
    """Gathers both branches and asks somebody outside."""

    def __init__(self, executor_id: str) -> None:
        super().__init__(executor_id)
        self._gathered: list[Job] = []

    @handler
    async def gather(self, jobs: list[Job], ctx: WorkflowContext[int]) -> None:
        self._gathered = jobs
        await ctx.request_info(Approval(f"{len(jobs)} jobs"), bool)

    @response_handler
    async def decide(self, request: Approval, approved: bool, ctx: WorkflowContext[int, str]) -> None:  # noqa: FBT001 - an answer
        trails = sorted(" ".join(job.trail) for job in self._gathered)
        await ctx.yield_output(f"{request.subject} approved: {approved}; {'; '.join(trails)}")
        await ctx.send_message(sum(job.rounds for job in self._gathered))

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"gathered": self._gathered}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self._gathered = state["gathered"]


class Doubler(Executor):
    """Inside the sub-workflow: doubles until the number is large."""

    def __init__(self, executor_id: str) -> None:
        super().__init__(executor_id)
        self.doublings = 0

    @handler
    async def double(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.doublings += 1
        if number < 50:
            await ctx.send_message(number * 2)
        else:
            await ctx.yield_output(number)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"doublings": self.doublings}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.doublings = state["doublings"]


def going_round(job: Job) -> bool:
    """Return True if a job has taken fewer than three rounds."""
    return job.rounds < 3


@executor(id="last")
async def last(number: int, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(f"ended with {number} from {ctx.get_state('number')}")


def build(pause: float = 0.0) -> Workflow:
    """The whole graph, with new executors."""
    start, left, right, judge = Dispatcher("start"), Counter("left", pause), Counter("right", pause), Judge("judge")
    doubler = Doubler("doubler")
    inner = WorkflowBuilder(start_executor=doubler, name="inner").add_edge(doubler, doubler).build()
    sub = WorkflowExecutor(inner, "sub")
    out_left, out_right = Passer("out_left"), Passer("out_right")
    return (
        WorkflowBuilder(start_executor=start, name="crash")
        .add_fan_out_edges(start, [left, right])
        .add_switch_case_edge_group(left, [Case(going_round, left), Default(out_left)])
        .add_switch_case_edge_group(right, [Case(going_round, right), Default(out_right)])
        .add_fan_in_edges([out_left, out_right], judge)
        .add_edge(judge, sub)
        .add_edge(sub, last)
        .build()
    )


class Passer(Executor):
    """Hands a job on."""

    @handler
    async def hand_on(self, job: Job, ctx: WorkflowContext[Job]) -> None:
        await ctx.send_message(job)


async def live(storage: StoreStorage, pause: float = 0.0) -> dict[str, Any]:
    """One life of the program: start the run or go on with it, answer what it asks, and tell how it ended."""
    workflow = build(pause)
    result = await workflow.run(7, run_id=RUN_ID, checkpoint_storage=storage)
    while result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS:
        answers = {event.request_id: True for event in result.get_request_info_events()}
        result = await workflow.run(run_id=RUN_ID, responses=answers, checkpoint_storage=storage)
    return await ending(storage)


async def ending(storage: StoreStorage) -> dict[str, Any]:
    """Return the end of the run as a new process reads it: the committed outputs, and the state of its head."""
    workflow = build()
    outputs = (await workflow.run(run_id=RUN_ID, checkpoint_storage=storage)).get_outputs()
    head = (await storage.list_checkpoints(run_id=RUN_ID))[-1]
    assert head.messages == {}
    assert head.pending_request_info_events == {}
    return {"outputs": outputs, "state": head.state, "supersteps": head.iteration_count}
