"""Agents as tools of other agents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import pytest
from mcp import Client, MCPError
from tests.activation.solo import Context, MendableError, lone
from tests.agents.stub_model import Model

from perdure import InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, BaseAgent, Message, tool
from perdure.agents.agent_tool import function_name
from perdure.testing.scripted import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from mcp_types import TextContent
    from tests.conftest import Storage

    from perdure import Workflow
    from perdure.agents import AgentResponse, AgentResponseUpdate


def chief(inner: Any, *, replies: Any = None) -> Agent[Any]:
    replies = replies or [ToolCall("expert", task="think"), "done"]
    return Agent(ScriptedChatClient(replies), name="chief", tools=inner)


def result_of(response: AgentResponse[Any]) -> Any:
    contents = [content for message in response.messages for content in message.contents]
    return next(content.result for content in contents if content.type == "function_result")


async def test_an_agent_is_given_a_task_and_its_answer_is_the_result() -> None:
    expert = Agent(Model(), "be deep", name="expert", description="Thinks.")
    inner = expert.as_tool()
    assert (inner.name, inner.description) == ("expert", "Thinks.")
    assert inner.parameters()["properties"] == {"task": {"type": "string", "description": "Task for expert"}}
    response = await chief(inner).run("go")
    assert result_of(response) == "system: be deep | user: think"
    assert response.text == "done"


async def test_an_agent_that_may_be_called_only_with_permission_is_told_its_task_and_not_the_permission() -> None:
    agent = chief(Agent(Model(), name="expert").as_tool(approval_mode="always_require"))
    session = agent.create_session()
    asked = await agent.run("go", session=session)
    [request] = asked.user_input_requests
    response = await agent.run(Message("user", [request.to_function_approval_response(approved=True)]), session=session)
    assert result_of(response) == "user: think"
    assert response.text == "done"


async def test_the_pieces_of_an_inner_agent_are_told_to_who_wants_them() -> None:
    told: list[str] = []

    async def tell(update: AgentResponseUpdate) -> None:
        told.append(update.text)

    await chief(Agent(Model(), name="expert").as_tool(stream_callback=tell)).run("go")
    assert told == ["user: ", "think ", ""]


async def test_an_inner_agent_takes_part_in_the_session_if_it_is_to() -> None:
    for is_shared in (False, True):
        inner = Agent(Model(), name="expert").as_tool(propagate_session=is_shared)
        agent = chief(inner)
        session = agent.create_session()
        await agent.run("go", session=session)
        said = [message.text for message in session.state["in_memory"]["messages"]]
        assert ("think" in said) is is_shared


async def test_an_inner_agent_is_given_the_kwargs_of_the_run() -> None:
    seen: list[Any] = []

    def look(**kwargs: Any) -> str:
        seen.append(kwargs["user"])
        return "ok"

    looking = tool(look, schema={"type": "object", "properties": {}})
    expert = Agent(ScriptedChatClient([ToolCall("look"), "looked"]), name="expert", tools=looking)
    await chief(expert.as_tool()).run("go", function_invocation_kwargs={"user": "ann"})
    assert seen == ["ann"]


async def test_no_call_of_an_inner_agent_is_made_again_in_another_life() -> None:
    looks: list[str] = []
    is_mended: list[bool] = []

    def look() -> str:
        looks.append("looked")
        return "seen"

    async def finish() -> str:
        if not is_mended:
            # The process dies here, as far as the run can see: nothing of the tool's own call is recorded.
            raise BaseExceptionGroup("dead", [KeyboardInterrupt()])
        return "finished"

    inner = ScriptedChatClient([ToolCall("look"), ToolCall("finish"), "thought"])
    outer = ScriptedChatClient([ToolCall("expert", task="think"), "done"])
    expert = Agent(inner, name="expert", tools=[look, finish])

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output((await Agent(outer, name="chief", tools=expert.as_tool()).run("go")).text)

    workflow = lone(do, storage=InMemoryCheckpointStorage())
    with pytest.raises(BaseException):  # noqa: B017, PT011 - whatever a process dies of
        await workflow.run("go")
    is_mended.append(True)
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["done"]
    assert looks == ["looked"]
    assert (len(inner.calls), len(outer.calls)) == (3, 2)


@pytest.mark.parametrize("approved", [True, False])
@pytest.mark.parametrize("propagate_session", [False, True])
async def test_what_an_inner_agent_asks_is_asked_by_the_outer_one_and_it_goes_on_with_the_answer(
    approved: bool,  # noqa: FBT001
    propagate_session: bool,  # noqa: FBT001
) -> None:
    paid: list[int] = []

    @tool(approval_mode="always_require")
    def pay(usd: int) -> str:
        """Pay."""
        paid.append(usd)
        return "paid"

    expert = Agent(ScriptedChatClient([ToolCall("pay", usd=3), "it is settled"]), name="expert", tools=pay)
    agent = chief(expert.as_tool(propagate_session=propagate_session))
    session = agent.create_session()
    (question,) = (await agent.run("go", session=session)).user_input_requests
    assert paid == []
    answer = Message("user", [question.to_function_approval_response(approved)])
    response = await agent.run(answer, session=session)
    assert result_of(response) == "it is settled"
    assert response.text == "done"
    assert paid == ([3] if approved else [])


@pytest.mark.parametrize("propagate_session", [False, True])
async def test_an_inner_agent_that_waits_goes_on_in_another_life(propagate_session: bool, storage: Storage) -> None:  # noqa: FBT001
    paid: list[int] = []
    inner = ScriptedChatClient([ToolCall("pay", usd=3), "it is settled"])
    outer = ScriptedChatClient([ToolCall("expert", task="think"), "done"])

    @tool(approval_mode="always_require")
    def pay(usd: int) -> str:
        """Pay."""
        paid.append(usd)
        return "paid"

    def build() -> Workflow:
        expert = Agent(inner, name="expert", tools=pay).as_tool(propagate_session=propagate_session)
        node = Agent(outer, name="chief", tools=expert)
        return WorkflowBuilder(name="w", start_executor=node, checkpoint_storage=storage).build()

    (request,) = (await build().run("go", run_id="r")).get_request_info_events()
    answer = request.data.to_function_approval_response(approved=True)
    result = await build().run(run_id="r", responses={request.request_id: answer})
    assert [output.text for output in result.get_outputs()] == ["done"]
    assert paid == [3]
    assert (len(inner.calls), len(outer.calls)) == (2, 2)


def test_a_tool_needs_a_name_and_an_agent_that_runs() -> None:
    with pytest.raises(ValueError, match="needs a name"):
        Agent(Model()).as_tool()
    with pytest.raises(TypeError, match="'BaseAgent' has no run method"):
        BaseAgent(name="a").as_tool()


@pytest.mark.parametrize(
    ("name", "callable_as"), [("My Agent", "My_Agent"), ("a--b!", "a_b"), ("@@", "agent"), ("7up", "_7up")]
)
def test_the_name_of_an_agent_becomes_one_that_a_model_can_call(name: str, callable_as: str) -> None:
    assert function_name(name) == callable_as


async def test_a_failed_inner_agent_is_told_to_the_outer_model() -> None:
    expert = Agent(ScriptedChatClient([MendableError()]), name="expert")
    assert (await chief(expert.as_tool()).run("go")).text == "done"


async def test_an_agent_is_the_tool_of_an_mcp_server() -> None:
    @tool(approval_mode="always_require")
    def pay() -> str:
        return "paid"

    client = ScriptedChatClient(lambda messages, _: ToolCall("pay") if messages[-1].text == "pay" else "Snow in Oslo.")
    server = Agent(client, name="weather man", description="Knows the weather.", tools=[pay]).as_mcp_server()
    async with Client(server) as caller:
        (offered,) = (await caller.list_tools()).tools
        assert (offered.name, offered.description) == ("weather_man", "Knows the weather.")
        assert offered.input_schema["required"] == ["task"]
        answered = await caller.call_tool("weather_man", {"task": "Oslo?"})
        asking = await caller.call_tool("weather_man", {"task": "pay"})
        wrong = await caller.call_tool("weather_man", {"city": "Oslo"})
        with pytest.raises(MCPError, match="no tool named 'other'"):
            await caller.call_tool("other", {"task": "Oslo?"})
    assert [cast("TextContent", each).text for each in answered.content] == ["Snow in Oslo."]
    assert (answered.is_error, asking.is_error, wrong.is_error) == (False, True, True)
    assert "needs an answer from the user" in cast("TextContent", asking.content[0]).text
