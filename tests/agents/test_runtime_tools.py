"""Tools that are given to one run: which agents get them, and for how long."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Stranger
from tests.workflow.nodes import Context, node

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowExecutor
from perdure.agents import Agent, AgentResponse, tool
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Mapping, Sequence

    from perdure import Workflow
    from perdure.agents import Message


def rate(currency: str) -> str:
    """Return the rate of a currency."""
    return f"{currency}: 7"


@tool(approval_mode="always_require")
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


def names(options: Mapping[str, Any]) -> list[str]:
    return [each.name for each in options.get("tools") or ()]


def reporter(name: str = "reporter") -> Agent[Any]:
    """An agent that says which tools it has."""
    return Agent(ScriptedChatClient(lambda _, options: f"tools: {', '.join(names(options))}"), name=name)


def payer() -> Agent[Any]:
    """An agent that pays with a tool that it does not have by itself, and reports the result."""

    def say(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        results = [content for content in messages[-1].contents if content.type == "function_result"]
        return f"result: {results[0].result or results[0].exception}" if results else ToolCall("pay", amount=3)

    return Agent(ScriptedChatClient(say), name="payer")


def alone(start: Any, storage: Any = None) -> Workflow:
    return WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage).build()


def texts(outputs: Sequence[Any]) -> list[str]:
    return [output.text for output in outputs]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_an_agent_has_the_tools_of_a_run_in_that_run_alone(storage: Any) -> None:
    workflow = alone(reporter(), storage)
    assert texts((await workflow.run("go", tools=[rate, pay])).get_outputs()) == ["tools: rate, pay"]
    assert texts((await workflow.run("again")).get_outputs()) == ["tools: "]
    assert texts((await workflow.run("once more", tools=rate)).get_outputs()) == ["tools: rate"]


async def test_handlers_see_the_tools_of_the_run() -> None:
    async def look(_: Any, ctx: Context) -> None:
        tools = ctx.get_runtime_tools()
        await ctx.yield_output(None if tools is None else [each.name for each in tools])

    workflow = alone(node("look", look))
    assert (await workflow.run("go", tools=rate)).get_outputs() == [["rate"]]
    assert (await workflow.run("go", tools=[])).get_outputs() == [[]]
    assert (await workflow.run("go")).get_outputs() == [None]


async def test_agents_in_sub_workflows_and_in_workflows_used_as_agents_have_the_tools_of_the_run() -> None:
    inner = WorkflowExecutor(alone(reporter()), "sub", allow_direct_output=True)
    assert texts((await alone(inner).run("go", tools=rate)).get_outputs()) == ["tools: rate"]
    as_agent = alone(reporter()).as_agent("desk")
    assert (await as_agent.run("go", tools=rate)).text == "tools: rate"
    assert (await as_agent.run("go")).text == "tools: "
    assert texts((await alone(as_agent).run("go", tools=rate)).get_outputs()) == ["tools: rate"]


async def test_an_agent_of_another_kind_gets_tools_only_if_it_can_take_them() -> None:
    class Plain(Stranger):
        def run(  # pyright: ignore[reportIncompatibleMethodOverride] - that is what it is about
            self,
            messages: Any = None,
            *,
            stream: bool = False,
            session: Any = None,
            function_invocation_kwargs: Any = None,
            client_kwargs: Any = None,
        ) -> Awaitable[AgentResponse[Any]]:
            return super().run(
                messages, stream=stream, session=session, kwargs=[function_invocation_kwargs, client_kwargs]
            )

    open_to_all, plain = Stranger("open"), Plain("plain")
    workflow = WorkflowBuilder(start_executor=open_to_all).add_edge(open_to_all, plain).build()
    await workflow.run("hi", tools=rate)
    assert [each.name for each in open_to_all.given[0]["tools"]] == ["rate"]
    assert plain.given == [{"kwargs": [None, None]}]


@pytest.mark.parametrize(("tools", "said"), [(pay, "paid 3"), (None, "there is no tool named 'pay'")])
async def test_a_resumed_run_uses_the_tools_that_it_is_given_and_works_without(tools: Any, said: str) -> None:
    storage = InMemoryCheckpointStorage()
    result = await alone(payer(), storage).run("go", run_id="r", tools=pay)
    (request,) = result.get_request_info_events()
    resumed = await alone(payer(), storage).run(run_id="r", responses={request.request_id: True}, tools=tools)
    assert texts(resumed.get_outputs()) == [f"result: {said}"]


async def test_a_recorded_call_of_such_a_tool_is_not_repeated_when_the_run_goes_on_without_it() -> None:
    calls: list[str] = []
    storage = InMemoryCheckpointStorage()

    def note(text: str) -> str:
        """Note a text."""
        calls.append(text)
        return f"noted {text}"

    def clerk(*last: Any) -> Agent[Any]:
        return Agent(ScriptedChatClient([ToolCall("note", text="it"), *last]), name="clerk", tools=rate)

    with pytest.raises(ConnectionError):
        await alone(clerk(ConnectionError("lost")), storage).run("go", run_id="r", tools=note)
    resumed = await alone(clerk("done"), storage).run(run_id="r")
    assert (texts(resumed.get_outputs()), calls) == (["done"], ["it"])
