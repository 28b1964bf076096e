"""Agents: what the model is given, and what comes back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pytest
from pydantic import BaseModel
from tests.agents.stub_model import USAGE, BareModel, Foreign, Model

from perdure.agents import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    BaseAgent,
    ChatResponse,
    FunctionTool,
    Message,
    SupportsAgentRun,
    tool,
)
from perdure.errors import ResponseValueError
from perdure.testing.scripted import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agents import Content


class Verdict(BaseModel):
    is_spam: bool


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def names(options: Mapping[str, Any]) -> list[str]:
    return [each.name for each in options.get("tools", ())]


async def test_an_agent_answers_with_its_name_and_what_was_counted() -> None:
    response = await Agent(Model(), "be brief", name="a").run("hi")
    assert response.text == "system: be brief | user: hi"
    assert [message.author_name for message in response.messages] == ["a"]
    assert response.usage_details == USAGE
    assert response.response_id == "r"


async def test_an_agent_answers_in_pieces_that_make_the_same_whole() -> None:
    stream = Agent(Model(), name="a").run("hi there", stream=True)
    updates = [update async for update in stream]
    assert [update.text for update in updates] == ["user: ", "hi ", "there ", ""]
    assert {update.author_name for update in updates} == {"a"}
    whole = await stream.get_final_response()
    assert (whole.text, whole.usage_details) == ("user: hi there ", USAGE)
    assert whole == AgentResponse[Any].from_updates(updates)


async def test_messages_that_a_client_gives_are_not_changed() -> None:
    message = Message("assistant", ["same"])

    class Constant(BareModel):
        async def whole(self, contents: list[Content]) -> ChatResponse[Any]:
            del contents
            return ChatResponse(messages=message)

    client = Constant()
    first, second = [await Agent(client, name=name).run("hi") for name in ("a", "b")]
    assert (first.messages[0].author_name, second.messages[0].author_name) == ("a", "b")
    assert message.author_name is None


async def test_options_of_a_run_stand_above_those_of_the_agent() -> None:
    model = Model()
    agent = Agent(model, "one", default_options={"temperature": 0.1, "seed": 1, "own": True})
    await agent.run("hi", options={"temperature": 0.2, "instructions": "two", "seed": None})
    _, options, _ = model.calls[0]
    told = {"model": "stub-1", "tool_choice": "auto", "temperature": 0.2, "seed": 1, "own": True}
    assert {name: options[name] for name in told} == told
    assert options["instructions"] == "one\ntwo"


async def test_tools_of_a_run_are_added_to_those_of_the_agent() -> None:
    model = Model()
    agent = Agent(model, tools=[add])
    await agent.run("hi", tools=tool(lambda: None, name="other", description="d"))
    await agent.run("hi")
    assert [names(options) for _, options, _ in model.calls] == [["add", "other"], ["add"]]
    assert [each.name for each in agent.default_options["tools"]] == ["add"]


async def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'add'"):
        await Agent(Model(), tools=[add]).run("hi", tools=FunctionTool(name="add", description="another"))


@pytest.mark.parametrize("stream", [False, True])
async def test_the_calls_that_the_model_asks_for_are_made(stream: bool) -> None:  # noqa: FBT001
    agent = Agent(ScriptedChatClient([ToolCall("add", a=1, b=2), "three"]), name="a", tools=add)
    session = agent.create_session()
    answer: Any = agent.run("1 + 2?", stream=stream, session=session)
    response = await (answer.get_final_response() if stream else answer)
    assert response.text == "three"
    kinds = [[content.type for content in message.contents] for message in session.state["in_memory"]["messages"]]
    assert kinds == [["text"], ["function_call"], ["function_result"], ["text"]]


async def test_tools_are_given_the_kwargs_of_the_run() -> None:
    seen: list[Any] = []

    def look(**kwargs: Any) -> str:
        seen.append(kwargs["user"])
        return "ok"

    client = ScriptedChatClient([ToolCall("look"), "done"])
    await Agent(client, tools=tool(look, schema={"type": "object", "properties": {}})).run(
        "hi", function_invocation_kwargs={"user": "ann"}
    )
    assert seen == ["ann"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wanted", [Verdict, {"type": "object"}])
async def test_an_answer_is_a_value_if_it_is_to_be_one(wanted: Any, stream: bool) -> None:  # noqa: FBT001
    client = ScriptedChatClient([Verdict(is_spam=True)])
    answer: Any = Agent(client).run("spam?", stream=stream, options={"response_format": wanted})
    response = await (answer.get_final_response() if stream else answer)
    assert response.value == (Verdict(is_spam=True) if wanted is Verdict else {"is_spam": True})


async def test_an_answer_that_never_fits_its_format_fails_the_turn() -> None:
    with pytest.raises(ResponseValueError, match="Invalid JSON"):
        await Agent(Model(), default_options={"response_format": Verdict}).run("spam?")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_is_none_of_ours_can_be_asked(stream: bool) -> None:  # noqa: FBT001
    answer: Any = Agent(Foreign(), name="a").run("hi", stream=stream)
    response = await (answer.get_final_response() if stream else answer)
    assert response.text.replace(" ", "") == "1:hi"


class Server:
    """A server of tools, as MCP clients are."""

    def __init__(self) -> None:
        self.is_connected = False
        self.connections = 0
        self.functions: list[Any] = []

    async def connect(self) -> None:
        self.is_connected = True
        self.connections += 1
        self.functions = [FunctionTool(name="remote", description="d", func=add)]

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_connected = False


async def test_a_server_of_tools_is_connected_when_first_needed_and_closed_with_the_agent() -> None:
    server, model = Server(), Model()
    agent = Agent(model, tools=[server, add])
    assert server.connections == 0
    assert agent.mcp_tools == [server]
    for _ in range(2):
        await agent.run("hi")
    assert [names(options) for _, options, _ in model.calls] == [["add", "remote"]] * 2
    async with agent:
        assert server.connections == 1
    assert not server.is_connected


async def test_a_server_that_is_given_for_a_run_is_used_in_it() -> None:
    server, model = Server(), Model()
    async with Agent(model) as agent:
        await agent.run("hi", tools=[server])
        await agent.run("hi")
    assert [names(options) for _, options, _ in model.calls] == [["remote"], []]
    assert not server.is_connected


async def test_an_agent_opens_and_closes_its_client() -> None:
    class Opened(Model):
        is_open = False

        async def __aenter__(self) -> Self:
            self.is_open = True
            return self

        async def __aexit__(self, *_: object) -> None:
            self.is_open = False

    client = Opened()
    async with Agent(client):
        assert client.is_open
    assert not client.is_open


async def test_an_agent_is_opened_and_closed_without_a_block_and_again() -> None:
    server = Server()
    agent = Agent(Model(), tools=[server])
    for _ in range(2):
        assert await agent.open() is agent
        assert server.is_connected
        await agent.close()
        assert not server.is_connected


async def test_an_agent_that_fails_to_open_closes_what_was_opened() -> None:
    class Unreachable(Server):
        async def connect(self) -> None:
            raise OSError("no route")

    first = Server()
    with pytest.raises(OSError, match="no route"):
        await Agent(Model(), tools=[first, Unreachable()]).open()
    assert first.connections == 1
    assert not first.is_connected


def test_agents_of_ours_and_of_others_are_agents() -> None:
    class Silent(BaseAgent):
        async def run(self, messages: Any = None, **_: Any) -> AgentResponse[Any]:
            return AgentResponse(messages=Message("assistant", [str(messages)]))

    assert isinstance(Agent(Model()), SupportsAgentRun)
    assert isinstance(Silent(name="s"), SupportsAgentRun)
    assert not isinstance(BaseAgent(), SupportsAgentRun)


async def test_what_can_not_be_said_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match="an agent takes"):
        Agent(Model()).run(3)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType, reportCallIssue, reportUnusedCoroutine]


async def test_hooks_on_the_stream_of_an_agent_change_its_whole() -> None:
    def shout(update: AgentResponseUpdate) -> AgentResponseUpdate:
        return AgentResponseUpdate(contents=[update.text.upper()], role="assistant")

    assert (
        await Agent(Model()).run("hi", stream=True).with_transform_hook(shout).get_final_response()
    ).text == "USER: HI "


async def test_an_abandoned_stream_writes_no_history() -> None:
    agent = Agent(Model())
    session = agent.create_session()
    stream = agent.run("hi", stream=True, session=session)
    await anext(stream)
    await stream.aclose()
    assert "messages" not in session.state["in_memory"]


async def test_tools_that_nobody_would_call_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    Agent(BareModel(), name="a", tools=[add])
    assert "no FunctionInvocationLayer to call them" in caplog.text
