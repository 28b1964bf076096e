"""Agents: sessions, tool calls, approvals, half-finished turns, agents in handlers, workflows as agents."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from perdure import (
    Agent,
    AgentExecutor,
    AgentExecutorResponse,
    AgentSession,
    Content,
    Executor,
    FunctionTool,
    Message,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    executor,
    handler,
    tool,
)
from perdure.testing import ScriptedChatClient, ToolCall

from .world import Place, Scenario, answer_all, heard, noted, outputs, text_of, world

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


@tool
def look(where: str) -> str:
    """Look somewhere."""
    world.did(f"look {where}")
    return f"nothing in {where}"


@tool(approval_mode="always_require")
def pay(to: str, euros: int) -> str:
    """Pay somebody."""
    world.did(f"pay {to} {euros}")
    return f"{euros} euros are with {to}"


@tool(if_interrupted="rerun")
async def search(what: str) -> str:
    """Search."""
    if what == "needle":
        await world.reach("search")
    world.did(f"search {what}")
    return f"found {what}"


position = FunctionTool(name="position", description="Where the user is.", func=None)


def cashier(place: Place) -> Workflow:
    """Build two agents with one session; the first has a call to be approved and one that others have."""
    session = AgentSession(session_id="till")
    scripts = {
        "cashier": noted(
            "cashier",
            ToolCall("look", where="till"),
            [ToolCall("pay", to="ada", euros=7), ToolCall("look", where="safe")],
            ToolCall("position"),
            "It is paid.",
        ),
        "auditor": noted("auditor", heard, heard),
    }
    client = ScriptedChatClient(scripts)
    agent = Agent(client, "You pay bills.", name="cashier", tools=[look, pay, position])
    auditor = AgentExecutor(Agent(client, "You audit.", name="auditor"), session=session, context_mode="last_agent")
    first = AgentExecutor(agent, session=session)
    return (
        WorkflowBuilder(name="cashier", start_executor=first, checkpoint_storage=place.storage, clock=place.clock)
        .add_edge(first, auditor)
        .build()
    )


def approve(data: Any) -> Any:
    """Answer an approval or a call of a tool that we have."""
    if isinstance(data, Content) and data.type == "function_call":
        return Content.from_function_result(data.call_id or "", result="Oslo")
    return data.to_function_approval_response(approved=True)


async def begin_position(place: Place) -> None:
    result = await cashier(place).run("Pay Ada.", run_id="position")
    (request,) = result.get_request_info_events()
    await cashier(place).run(run_id="position", responses={request.request_id: approve(request.data)})


def searcher(place: Place) -> Workflow:
    """Build an agent whose second round of calls is killed."""
    scripts = {
        "searcher": noted(
            "searcher",
            ToolCall("search", what="hay"),
            [ToolCall("search", what="straw"), ToolCall("search", what="needle")],
            heard,
        )
    }
    agent = Agent(ScriptedChatClient(scripts), "You search.", name="searcher", tools=[search])
    return WorkflowBuilder(
        name="searcher", start_executor=agent, checkpoint_storage=place.storage, clock=place.clock
    ).build()


async def begin_streamed(place: Place) -> None:
    async for _ in searcher(place).run("Search.", run_id="streamed", stream=True):
        pass


def delegating(place: Place) -> Workflow:
    """Build an agent that has another one as a tool, which is killed in a tool of its own."""
    scripts = {
        "boss": noted("boss", [ToolCall("clerk", task="hay"), ToolCall("look", where="sky")], heard),
        "clerk": noted("clerk", ToolCall("search", what="straw"), ToolCall("search", what="needle"), heard),
    }
    client = ScriptedChatClient(scripts)
    clerk = Agent(client, "You work.", name="clerk", tools=[search])
    boss = Agent(client, "You lead.", name="boss", tools=[clerk.as_tool(), look])
    return WorkflowBuilder(
        name="delegating", start_executor=boss, checkpoint_storage=place.storage, clock=place.clock
    ).build()


def outer_desk(place: Place) -> Workflow:
    """Build a workflow with another one in it, as an agent."""
    inside = cashier(Place(None, None, clock=place.clock)).as_agent(name="inside")
    after = Agent(ScriptedChatClient({"after": noted("after", heard)}), name="after")
    return (
        WorkflowBuilder(name="outer-desk", start_executor=inside, checkpoint_storage=place.storage, clock=place.clock)
        .add_edge(inside, after)
        .build()
    )


class Opinion(BaseModel):
    """An answer that is data."""

    good: bool
    why: str


def is_good(message: AgentExecutorResponse) -> bool:
    """Judge for an edge."""
    return Opinion.model_validate_json(message.agent_response.text).good


@executor(id="printer")
async def printer(message: AgentExecutorResponse, ctx: WorkflowContext[Any, str]) -> None:
    opinion = message.agent_response.value
    conversation = [each.text for each in message.full_conversation]
    answer = await ctx.ask(f"print {opinion}?", str)
    await ctx.yield_output(f"{opinion} {conversation} {answer}")


def critics(place: Place) -> Workflow:
    """Build an agent that answers with data, which waits on its way."""
    scripts = {"critic": noted("critic", Opinion(good=True, why="short"))}
    critic = Agent(
        ScriptedChatClient(scripts), "You judge.", name="critic", default_options={"response_format": Opinion}
    )
    return (
        WorkflowBuilder(name="critics", start_executor=critic, checkpoint_storage=place.storage, clock=place.clock)
        .add_edge(critic, printer, condition=is_good)
        .build()
    )


def talk(place: Place) -> Workflow:
    """Build an agent that knows its former turns."""
    agent = Agent(ScriptedChatClient({"talker": noted("talker", heard, heard, heard)}), "You talk.", name="talker")
    return WorkflowBuilder(
        name="talk", start_executor=agent, checkpoint_storage=place.storage, clock=place.clock
    ).build()


async def begin_turns(place: Place) -> None:
    await talk(place).run("one", run_id="turns")
    await place.storage.send("turns", "two")
    await talk(place).run(run_id="turns")
    await place.storage.send("turns", "three")


async def finish_turns(place: Place) -> list[str]:
    await talk(place).run(run_id="turns")
    return await outputs(place, "turns")


class Committee(Executor):
    """Has agents of its own, and a session in the state."""

    def __init__(self) -> None:
        super().__init__("committee")
        scripts = {
            "left": noted("left", heard),
            "right": noted("right", ToolCall("look", where="law"), heard),
            "chair": noted("chair", heard, heard),
        }
        client = ScriptedChatClient(scripts)
        self.left = Agent(client, name="left")
        self.right = Agent(client, name="right", tools=[look])
        self.chair = Agent(client, name="chair")

    @handler
    async def decide(self, question: str, ctx: WorkflowContext[Any, str]) -> None:
        session = ctx.get_state("session") or AgentSession(session_id="chair")
        opening = await self.chair.run(question, session=session)
        said = await asyncio.gather(self.left.run(f"{question} left"), self.right.run(f"{question} right"))
        await world.reach("committee")
        person = await ctx.ask(" / ".join(each.text for each in said), str)
        closing = await self.chair.run(person, session=session)
        ctx.set_state("session", session)
        await ctx.yield_output(f"{opening.text} {[each.text for each in said]} {closing.text}")


def committee(place: Place) -> Workflow:
    """Build an executor with agents inside."""
    return WorkflowBuilder(
        name="committee", start_executor=Committee(), checkpoint_storage=place.storage, clock=place.clock
    ).build()


def answering(
    build: Callable[[Place], Any], run: str, answer: Callable[[Any], Any] = approve
) -> Callable[[Place], Awaitable[list[str]]]:
    """Make the end of a scenario that answers what is asked."""
    return lambda place: answer_all(place, build, run, answer)


def so(data: Any) -> str:
    """Answer a question of the committee."""
    return f"so {data}"


def desk(place: Place) -> Any:
    """Make an agent of a workflow with a question in it."""
    return cashier(place).as_agent(name="desk")


def requests_in(response: Any) -> list[Content]:
    """Return what is asked in a response."""
    kinds = {"function_approval_request", "function_call"}
    return [each for message in response.messages for each in message.contents if each.type in kinds]


async def begin_desk(place: Place) -> None:
    agent = desk(place)
    session = agent.create_session(session_id="desk-session")
    await agent.run("Pay Bob.", session=session)
    place.saved["desk"] = session.to_dict()


async def finish_desk(place: Place) -> list[str]:
    agent, session = desk(place), AgentSession.from_dict(place.saved["desk"])
    told: list[str] = []
    message: Any = None
    for _ in range(3):
        if message is None:
            requests = [each.data for each in await place.storage.requests(workflow_name="cashier") if _is_of(each)]
        else:
            response = await agent.run(message, session=session)
            told.append(text_of(response))
            requests = requests_in(response)
        answers = [approve(each) for each in requests if each.type != "function_call" or each.name == "position"]
        if not answers:
            break
        message = Message("user", answers)
    return told


def _is_of(request: Any) -> bool:
    return request.run_id not in {"approval", "position"}


SCENARIOS = [
    Scenario(
        "agent that waits for an approval",
        lambda place: cashier(place).run("Pay Ada.", run_id="approval"),
        answering(cashier, "approval"),
        ("approval",),
    ),
    Scenario("agent that waits for a tool", begin_position, answering(cashier, "position"), ("position",)),
    Scenario(
        "agent killed in a turn",
        lambda place: searcher(place).run("Search.", run_id="searcher"),
        answering(searcher, "searcher"),
        ("searcher",),
        kill_at="search",
    ),
    Scenario(
        "agent killed in a streamed turn",
        begin_streamed,
        answering(searcher, "streamed"),
        ("streamed",),
        kill_at="search",
    ),
    Scenario(
        "agent killed as a tool of another",
        lambda place: delegating(place).run("Go.", run_id="delegating"),
        answering(delegating, "delegating"),
        ("delegating",),
        kill_at="search",
    ),
    Scenario(
        "workflow as an agent in another",
        lambda place: outer_desk(place).run("Pay Cy.", run_id="outer-desk"),
        answering(outer_desk, "outer-desk"),
        ("outer-desk",),
    ),
    Scenario(
        "agent whose answer is data",
        lambda place: critics(place).run("Well?", run_id="critics"),
        answering(critics, "critics", lambda _: "yes"),
        ("critics",),
    ),
    Scenario("agent with several turns", begin_turns, finish_turns, ("turns",)),
    Scenario(
        "agents in a handler that asks",
        lambda place: committee(place).run("tax", run_id="committee"),
        answering(committee, "committee", so),
        ("committee",),
    ),
    Scenario(
        "agents in a handler that is killed",
        lambda place: committee(place).run("war", run_id="committee-killed"),
        answering(committee, "committee-killed", so),
        ("committee-killed",),
        kill_at="committee",
    ),
    Scenario("workflow as an agent", begin_desk, finish_desk),
]
