"""Workflows as functions: steps in every shape of `asyncio.gather` and tasks, questions, waits, nested functions."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from perdure import (
    Agent,
    AgentExecutor,
    Content,
    FunctionalWorkflow,
    Message,
    Retry,
    RunContext,
    StepTimeoutError,
    Workflow,
    WorkflowBuilder,
    get_run_context,
    step,
    tool,
    workflow,
)
from perdure.testing import ScriptedChatClient, ToolCall

from .graphs import Colour, Parcel, Point, Verdict
from .world import Place, Scenario, answer_all, heard, noted, outputs, world

if TYPE_CHECKING:
    from collections.abc import Callable


@step
async def fetch(what: str, count: int = 1) -> str:
    world.did(f"fetch {what} {count}")
    await asyncio.sleep(0)
    return f"{what} x{count}"


@step
def pack(parcel: Parcel) -> Parcel:
    world.did(f"pack {parcel.name}")
    return Parcel(f"packed {parcel.name}", ["packed"], Point(len(parcel.name)))


@step
async def weigh(parcel: Parcel, colour: Colour = Colour.RED) -> dict[Colour, int]:
    world.did(f"weigh {parcel.name}")
    return {colour: len(parcel.name)}


def key_of(what: str) -> str:
    """Make the key of a step."""
    return f"key of {what}"


@step(key=key_of)
async def keyed(what: str) -> str:
    world.did(f"keyed {what}")
    return f"keyed {what}"


@step(name="shaky step", retry=Retry(attempts=2, backoff=0))
async def shaky(what: str) -> str:
    world.did(f"shaky {what}")
    raise ConnectionError(f"no {what}")


@step(timeout=0.05)
async def endless(what: str) -> str:
    world.did(f"endless {what}")
    await asyncio.Event().wait()
    return what


@step
async def add(what: str) -> int:
    """Change the state of the run in a step."""
    world.did(f"add {what}")
    ctx = get_run_context()
    assert ctx is not None
    before: list[str] = ctx.get_state("added") or []
    known = [*before, what]
    ctx.set_state("added", known)
    return len(known)


async def gathering(topic: str, ctx: RunContext) -> list[Any]:
    """Gather over one step with different arguments, and over different steps, before and after a question."""
    first = await fetch(topic)
    one = await asyncio.gather(*(fetch(f"{topic} {number}", number) for number in range(4)))
    parcel = Parcel(topic)
    several = await asyncio.gather(
        fetch(what="beside", count=3), pack(parcel), weigh(parcel, Colour.BLUE), keyed(topic)
    )
    await world.reach("gathering")
    answer = await ctx.request_info({"topic": topic, "parcel": parcel}, Verdict)
    rest = await asyncio.gather(*(keyed(f"{topic} {number}") for number in range(2)), fetch(topic))
    return [first, one, several, answer, rest]


@step
async def compound(name: str) -> list[str]:
    """Call steps in a step, side by side and one after the other."""
    found = list(await asyncio.gather(fetch(f"{name} left"), fetch(f"{name} right")))
    found.append(await fetch(name))
    if name == "second":
        await world.reach("compound")
    world.did(f"compound {name}")
    return found


async def compounding(topic: str, ctx: RunContext) -> list[Any]:
    """Call steps that call steps, and be killed in one of them."""
    first = await compound("first")
    beside = await asyncio.gather(compound("second"), compound("third"))
    return [first, beside, await ctx.request_info(topic, str), await compound("fourth")]


async def first_come(topic: str, ctx: RunContext) -> list[Any]:
    """Take results as they come, and tasks that end at different times."""
    found = sorted([await each for each in asyncio.as_completed([branch("x"), branch("y"), fetch("z")])])
    pending = {asyncio.create_task(branch("m")), asyncio.create_task(tree("n"))}
    texts: list[str] = []
    while pending:
        done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        texts.extend(str(task.result()) for task in done)
    return [found, sorted(texts), await ctx.request_info(topic, str), await branch("last")]


@step
async def stop(what: str) -> str:
    await world.reach("stop")
    world.did(f"stop {what}")
    return f"stopped {what}"


async def stopping(topic: str, ctx: RunContext) -> list[Any]:
    """Be killed while branches of every kind are under way, some of them done."""
    beside = await asyncio.gather(
        fetch(topic), fetch("b", 2), stop("c"), tree("d"), stop_later("e"), pack(Parcel("f")), return_exceptions=True
    )
    return [beside, await ctx.request_info(topic, str), await stop("g")]


async def stop_later(name: str) -> str:
    """Do a step, and be killed in the next."""
    return f"{await fetch(name)} {await stop(name)}"


async def equal_calls(topic: str, ctx: RunContext) -> list[Any]:
    """Call a step with the same arguments several times: one after the other, side by side, and in tasks."""
    row = [await fetch(topic), await fetch(topic)]
    beside = sorted(await asyncio.gather(fetch(topic), fetch(topic), fetch("other")))
    tasks = [asyncio.create_task(branch(topic)) for _ in range(2)]
    found = sorted(await asyncio.gather(*tasks))
    answer = await ctx.request_info("twice?", str)
    return [row, beside, found, answer, await fetch(topic)]


async def branch(name: str) -> str:
    """Do two steps in a task, with an ordinary wait between them."""
    first = await fetch(f"branch {name}", 1)
    await asyncio.sleep(0)
    return f"{first} and {await fetch(f'branch {name}', 2)}"


async def tree(name: str) -> list[str]:
    """Begin tasks in a task."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(branch(f"{name}{number}")) for number in range(2)]
    return [*(task.result() for task in tasks), await fetch(f"tree {name}")]


async def tasks(topic: str, ctx: RunContext) -> list[Any]:
    """Begin tasks of every kind, nested, and ask beside them."""
    alone = asyncio.create_task(branch("alone"))
    trees = await asyncio.gather(tree("a"), tree("b"))
    timed = await asyncio.wait_for(branch("timed"), 60)
    shielded = await asyncio.shield(asyncio.ensure_future(branch("shielded")))
    done = await alone
    await world.reach("tasks")
    answer, beside = await asyncio.gather(ctx.request_info(topic, str), tree("c"))
    return [trees, timed, shielded, done, answer, beside, await branch("end")]


async def catching(topic: str, ctx: RunContext) -> list[Any]:
    """Catch errors of steps: one after the other, in a gather, in a task group."""
    told: list[Any] = []
    try:
        await shaky("first")
    except ConnectionError as error:
        told.append(str(error))
    mixed = await asyncio.gather(shaky("beside"), fetch("beside"), shaky("other"), return_exceptions=True)
    told.append([str(each) for each in mixed])
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(shaky("grouped"))
    except* ConnectionError as errors:
        told.append([str(each) for each in errors.exceptions])
    try:
        await endless("row")
    except StepTimeoutError:
        told.append("too slow")
    mixed = await asyncio.gather(endless("beside"), fetch("beside", 2), return_exceptions=True)
    told.append([type(each).__name__ for each in mixed])
    told.append(await ctx.request_info(topic, str))
    return [*told, await fetch("after")]


async def sleeping(topic: str, ctx: RunContext) -> list[Any]:
    """Sleep alone, and beside steps and other sleeps."""
    first = await fetch(topic)
    await ctx.sleep(timedelta(hours=1))
    second = await fetch(topic, 2)
    _, third, _ = await asyncio.gather(
        ctx.sleep(timedelta(hours=2)), fetch("beside a sleep"), ctx.sleep(timedelta(hours=3))
    )
    found = await asyncio.gather(nap("short", 1), nap("long", 2))
    return [first, second, third, found, await fetch("awake")]


async def nap(name: str, hours: int) -> str:
    """Sleep in a branch, between two steps."""
    ctx = get_run_context()
    assert ctx is not None
    before = await fetch(f"before {name}")
    await ctx.sleep(timedelta(hours=hours))
    return f"{before}, {await fetch(f'after {name}')}"


async def questions(topic: str, ctx: RunContext) -> list[Any]:
    """Ask several things side by side, in branches and in a step's place."""
    told = await asyncio.gather(
        ctx.request_info(f"{topic} one", str),
        fetch(topic),
        ctx.request_info(f"{topic} two", Verdict),
        asking_branch(ctx, "left"),
        asking_branch(ctx, "right"),
    )
    named = await ctx.request_info(f"{topic} three", str, request_id=f"{topic} three")
    return [*told, named]


async def asking_branch(ctx: RunContext, name: str) -> str:
    """Ask between two steps of a branch."""
    before = await fetch(name)
    answer = await ctx.request_info({"branch": name}, str)
    return f"{before} {answer} {await fetch(name, 2)}"


@workflow(name="inner function")
async def inner(parcel: Parcel, ctx: RunContext) -> str:
    """Be a function inside of another one."""
    ctx.set_state("mine", parcel.name)
    packed = await pack(parcel)
    total = await add(parcel.name)
    if parcel.name == "asks":
        return f"{packed.name} {total} {await ctx.request_info(parcel, str)} {ctx.get_state('mine')}"
    return f"{packed.name} {total} {ctx.get_state('mine')}"


async def nesting(topic: str, ctx: RunContext) -> list[Any]:
    """Run functions inside, one after the other and side by side, with state."""
    ctx.set_state("topic", topic)
    counts = [await add("a"), await add("b")]
    one = (await inner.run(Parcel("one"))).get_outputs()
    two = [found.get_outputs() for found in await asyncio.gather(inner.run(Parcel("two")), inner.run(Parcel("three")))]
    await world.reach("nesting")
    asked = (await inner.run(Parcel("asks"))).get_outputs()
    return [counts, one, two, asked, ctx.get_state("topic"), ctx.get_state("added"), await add("c")]


@tool(if_interrupted="rerun")
async def collect(what: str) -> str:
    """Collect something, in steps."""
    found = await asyncio.gather(fetch(what), add(what))
    if what == "berries":
        await world.reach("collect")
    world.did(f"collect {what}")
    return str(found)


async def agency(topic: str, ctx: RunContext) -> list[Any]:
    """Use agents whose tools call steps."""
    scripts = {
        "gatherer": noted("gatherer", ToolCall("collect", what="nuts"), ToolCall("collect", what="berries"), heard),
        "cook": noted("cook", heard),
    }
    client = ScriptedChatClient(scripts)
    gatherer, cook = Agent(client, name="gatherer", tools=[collect]), Agent(client, name="cook")
    found = await asyncio.gather(gatherer.run(topic), cook.run(f"{topic} now"))
    answer = await ctx.request_info([each.text for each in found], str)
    return [[each.text for each in found], answer, ctx.get_state("added")]


def built(function: Callable[..., Any], run: str) -> Callable[[Place], FunctionalWorkflow]:
    """Make the builder of a function's workflow."""
    return lambda place: workflow(name=run, checkpoint_storage=place.storage, clock=place.clock)(function)


def answer(data: Any) -> Any:
    """Answer by what was asked."""
    is_verdict = (isinstance(data, dict) and "parcel" in data) or (isinstance(data, str) and data.endswith("two"))
    return Verdict(accepted=True, note="well") if is_verdict else f"answer to {data}"


def clerk_answer(data: Any) -> Any:
    """Answer what an agent in a graph asks, whatever form the question has."""
    if isinstance(data, Content) and data.type == "function_call":
        return Content.from_function_result(data.call_id or "", result="well")
    return data.to_function_approval_response(approved=True) if isinstance(data, Content) else "well"


def scenario(name: str, function: Callable[..., Any], run: str, kill_at: str | None = None) -> Scenario:
    """Make a scenario of a function that is answered to its end."""
    build = built(function, run)
    return Scenario(
        name,
        lambda place: build(place).run("owls", run_id=run, wait_for_timers=False),
        lambda place: answer_all(place, build, run, answer),
        (run,),
        kill_at,
    )


async def begin_sleeping_on(place: Place) -> None:
    """Stop in the second sleep, which is beside a step and another sleep."""
    build = built(sleeping, "sleeping-on")
    await build(place).run("owls", run_id="sleeping-on", wait_for_timers=False)
    place.clock.advance(timedelta(minutes=90))
    await build(place).run(run_id="sleeping-on", wait_for_timers=False)


async def begin_half_answered(place: Place) -> None:
    """Answer one of several questions."""
    build = built(questions, "half-answered")
    result = await build(place).run("owls", run_id="half-answered")
    asked = {request.request_id: request.data for request in result.get_request_info_events()}
    chosen = {key: answer(data) for key, data in asked.items() if data == {"branch": "left"}}
    await build(place).run(run_id="half-answered", responses=chosen)


async def clerk(messages: list[Message], ctx: RunContext) -> str:
    """Be an agent in a graph."""
    found = await asyncio.gather(fetch(messages[-1].text), fetch("file"))
    return f"{found} {await ctx.request_info(found, str)} {await fetch('end')}"


def clerk_graph(place: Place) -> Workflow:
    """Build a graph around a function that is an agent."""
    node = AgentExecutor(workflow(name="clerk", clock=place.clock)(clerk).as_agent(), id="clerk")
    return WorkflowBuilder(
        name="clerks", start_executor=node, checkpoint_storage=place.storage, clock=place.clock
    ).build()


async def begin_agent(place: Place) -> None:
    """Talk to a function as an agent."""
    agent = built(gathering, "function-agent")(place).as_agent()
    response = await agent.run("owls")
    place.saved["asked"] = [each.to_dict() for message in response.messages for each in message.contents]


async def finish_agent(place: Place) -> list[str]:
    (request,) = await place.storage.requests(workflow_name="function-agent")
    given = {request.request_id: Verdict(accepted=True, note="agent")}
    await built(gathering, "function-agent")(place).run(run_id=request.run_id, responses=given)
    return [each.replace(request.run_id, "run", 1) for each in await outputs(place, request.run_id)]


SCENARIOS = [
    scenario("function that gathers and asks", gathering, "gathering"),
    scenario("function killed after a gather", gathering, "gathering-killed", "gathering"),
    scenario("function killed in a gather", stopping, "stopping", "stop"),
    scenario("function killed in a step that calls steps", compounding, "compounding", "compound"),
    scenario("function that takes results as they come", first_come, "first-come"),
    scenario("function with equal calls", equal_calls, "equal-calls"),
    scenario("function with tasks that asks", tasks, "tasks"),
    scenario("function with tasks killed", tasks, "tasks-killed", "tasks"),
    scenario("function that catches", catching, "catching"),
    scenario("function that sleeps", sleeping, "sleeping"),
    Scenario(
        "function that sleeps beside steps",
        begin_sleeping_on,
        lambda place: answer_all(place, built(sleeping, "sleeping-on"), "sleeping-on", answer),
        ("sleeping-on",),
    ),
    scenario("function with questions side by side", questions, "questions"),
    Scenario(
        "function half answered",
        begin_half_answered,
        lambda place: answer_all(place, built(questions, "half-answered"), "half-answered", answer),
        ("half-answered",),
    ),
    scenario("functions inside that ask", nesting, "nesting"),
    scenario("functions inside killed", nesting, "nesting-killed", "nesting"),
    scenario("agents in a function that asks", agency, "agency"),
    scenario("agents in a function killed in a tool", agency, "agency-killed", "collect"),
    Scenario("function as an agent", begin_agent, finish_agent),
    Scenario(
        "function as an agent in a graph",
        lambda place: clerk_graph(place).run("owls", run_id="clerks"),
        lambda place: answer_all(place, clerk_graph, "clerks", clerk_answer),
        ("clerks",),
    ),
]
