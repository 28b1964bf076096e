"""A workflow as an agent inside of another workflow: its run is part of the run around it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.desks import Asker, desk, talking
from tests.agents.talkers import Model, agent
from tests.workflow.nodes import node

from perdure import InMemoryCheckpointStorage, WorkflowBuilder
from perdure.agents import Agent, AgentExecutor, Message, tool
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.workflow.nodes import Context

    from perdure import Workflow
    from perdure.workflows import WorkflowAgent


class Wobbly(Model):
    """Fails in the calls that are said to."""

    def __init__(self, *failing: int) -> None:
        super().__init__(self._say)
        self.failing = failing

    def _say(self, messages: Any) -> str:
        if len(self.shown) in self.failing:
            raise ConnectionError("no line")
        return f"{len(messages)}:{messages[-1].text}"


class House:
    """Two agents in a workflow, which is an agent in another one."""

    def __init__(self, *failing: int) -> None:
        self.first, self.second = Model(), Wobbly(*failing)

    def inner(self, storage: Any = None) -> WorkflowAgent:
        return desk(agent("first", self.first), agent("second", self.second), name="inner", storage=storage)

    def build(self, storage: Any = None) -> Workflow:
        return WorkflowBuilder(name="outer", start_executor=self.inner(), checkpoint_storage=storage).build()

    @property
    def asked(self) -> tuple[int, int]:
        """How often each was asked."""
        return len(self.first.shown), len(self.second.shown)


@pytest.mark.parametrize("streams", [True, False])
async def test_a_workflow_as_agent_answers_as_a_node(streams: bool) -> None:  # noqa: FBT001 - a parameter of the test
    workflow = House().build()
    if streams:
        told = [event.data.text async for event in workflow.run("hi", stream=True) if event.type == "output"]
        assert told == ["1", ":hi", "2", ":1:hi"]
    else:
        (output,) = (await workflow.run("hi")).get_outputs()
        assert [message.text for message in output.messages] == ["1:hi", "2:1:hi"]


@pytest.mark.parametrize("streams", [True, False])
async def test_what_an_agent_inside_was_asked_is_not_asked_again(
    open_on_disk: Callable[..., Any],
    streams: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    house = House(1)
    async with open_on_disk() as storage:
        with pytest.raises(ConnectionError):
            await house.build(storage).run("hi", run_id="r")
    async with open_on_disk() as storage:
        workflow = house.build(storage)
        if streams:
            told = [event.data.text async for event in workflow.run(run_id="r", stream=True) if event.type == "output"]
            assert "".join(told) == "1:hi2:1:hi"
        else:
            (output,) = (await workflow.run(run_id="r")).get_outputs()
            assert output.text == "1:hi2:1:hi"
    assert house.asked == (1, 2)


async def test_what_agents_inside_remember_survives_with_the_run_around() -> None:
    storage, house = InMemoryCheckpointStorage(), House()
    await house.build(storage).run("a", run_id="r")
    workflow = house.build(storage)
    await workflow.run(run_id="r")
    await workflow.run("b")
    assert house.asked == (2, 2)
    assert house.first.shown[-1] == ["a", "1:a", "2:1:a", "b"]
    assert house.second.shown[-1] == ["a", "1:a", "2:1:a", "b", "4:b"]


async def test_an_approval_inside_is_a_request_of_the_run_around_and_survives() -> None:
    storage, paid = InMemoryCheckpointStorage(), list[int]()
    client = ScriptedChatClient([ToolCall("pay", amount=3), "Paid."])

    def build() -> Workflow:
        @tool(approval_mode="always_require")
        def pay(amount: int) -> str:
            """Pay."""
            paid.append(amount)
            return "done"

        inner = desk(Agent(client, "You pay.", name="clerk", tools=[pay]), name="inner")
        return WorkflowBuilder(name="outer", start_executor=inner, checkpoint_storage=storage).build()

    (request,) = (await build().run("pay", run_id="r")).get_request_info_events()
    answer = request.data.to_function_approval_response(approved=True)
    result = await build().run(run_id="r", responses={request.request_id: answer})
    assert [output.text for output in result.get_outputs()] == ["Paid."]
    assert (paid, len(client.calls)) == ([3], 2)


async def test_a_request_inside_is_a_request_of_the_run_around_and_survives() -> None:
    storage = InMemoryCheckpointStorage()

    def build() -> Workflow:
        inner = desk(Asker("asker"), name="inner")
        return WorkflowBuilder(name="outer", start_executor=inner, checkpoint_storage=storage).build()

    first = await build().run("buy sell", run_id="r")
    assert first.get_outputs() == []
    buy, sell = first.get_request_info_events()
    assert [request.data.text for request in (buy, sell)] == ["buy", "sell"]
    assert (await build().run(run_id="r", responses={sell.request_id: False})).get_outputs() == []
    (output,) = (await build().run(run_id="r", responses={buy.request_id: True})).get_outputs()
    assert sorted(message.text for message in output.messages) == ["buy: True", "sell: False"]


async def test_what_agents_inside_spend_is_spent_by_the_run_around() -> None:
    house = House()
    house.first.tokens = 3
    storage = InMemoryCheckpointStorage()
    result = await house.build(storage).run("hi")
    assert result.get_spent()["total_tokens"] == 3


async def test_a_storage_of_the_workflow_inside_is_said_not_to_be_used(caplog: pytest.LogCaptureFixture) -> None:
    inner = House().inner(InMemoryCheckpointStorage())
    workflow = WorkflowBuilder(name="outer", start_executor=inner).build()
    for _ in range(2):
        await workflow.run("hi")
    assert caplog.text.count("the storage of workflow 'inner' is not used") == 1


async def test_an_executor_that_talks_to_a_workflow_asks_it_once(open_on_disk: Callable[..., Any]) -> None:
    house, troubles = House(), [True]

    def build(storage: Any) -> Workflow:
        inner = house.inner()

        async def talk(messages: list[Message], ctx: Context) -> None:
            session = inner.create_session()
            said = await inner.run(messages, session=session)
            if troubles:
                raise ConnectionError(troubles.pop())
            more = await inner.run("more", session=session)
            await ctx.yield_output(f"{said.text} {more.text}")

        return WorkflowBuilder(start_executor=talking("talk", talk), name="outer", checkpoint_storage=storage).build()

    async with open_on_disk() as storage:
        with pytest.raises(ConnectionError):
            await build(storage).run([Message("user", ["hi"])], run_id="r")
    async with open_on_disk() as storage:
        result = await build(storage).run(run_id="r")
        assert result.get_outputs() == ["1:hi2:1:hi 4:more5:4:more"]
    assert house.asked == (2, 2)


async def test_an_executor_that_reads_a_stream_of_a_workflow_has_it_again_after_a_failure() -> None:
    storage, house, troubles = InMemoryCheckpointStorage(), House(), [True]

    def build() -> Workflow:
        inner = house.inner()

        async def talk(messages: list[Message], ctx: Context) -> None:
            told = [update.text async for update in inner.run(messages, stream=True)]
            if troubles:
                raise ConnectionError(troubles.pop())
            await ctx.yield_output("".join(told))

        return WorkflowBuilder(start_executor=talking("talk", talk), name="outer", checkpoint_storage=storage).build()

    with pytest.raises(ConnectionError):
        await build().run([Message("user", ["hi"])], run_id="r")
    assert (await build().run(run_id="r")).get_outputs() == ["1:hi2:1:hi"]
    assert house.asked == (1, 1)


async def test_a_workflow_with_a_storage_of_its_own_goes_on_in_it_inside_of_a_step() -> None:
    outer, inner_storage, house = InMemoryCheckpointStorage(), InMemoryCheckpointStorage(), House(1)

    def build() -> Workflow:
        inner = house.inner(inner_storage)

        async def talk(messages: list[Message], ctx: Context) -> None:
            await ctx.yield_output((await inner.run(messages, session=inner.create_session())).text)

        return WorkflowBuilder(start_executor=talking("talk", talk), name="outer", checkpoint_storage=outer).build()

    with pytest.raises(ConnectionError):
        await build().run([Message("user", ["hi"])], run_id="r")
    assert (await build().run(run_id="r")).get_outputs() == ["1:hi2:1:hi"]
    assert house.asked == (1, 2)


async def test_a_workflow_as_agent_in_an_executor_that_fails_keeps_nothing_of_the_turn() -> None:
    storage, house = InMemoryCheckpointStorage(), House()
    troubles = [True]

    async def end(_: Any, ctx: Context) -> None:
        if troubles:
            raise ConnectionError(troubles.pop())
        await ctx.yield_output("end")

    def build() -> Workflow:
        inner, last = AgentExecutor(house.inner(), id="inside"), node("end", end)
        builder = WorkflowBuilder(name="outer", start_executor=inner, checkpoint_storage=storage, output_from=[last])
        return builder.add_edge(inner, last).build()

    with pytest.raises(ConnectionError):
        await build().run("hi", run_id="r")
    assert (await build().run(run_id="r")).get_outputs() == ["end"]
    assert house.asked == (1, 1)
