"""Calls of tools in a workflow are steps: another life makes none of them again, and sees what they have done."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure import FunctionExecutor, SqliteCheckpointStorage, Workflow, WorkflowBuilder, WorkflowContext
from perdure.agents import Agent, AgentExecutor, AgentSession, Content, FunctionInvocationContext, FunctionTool, tool
from perdure.errors import BudgetExceededError
from perdure.graph import Retry
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

RUN_ID = "run"


class Life:
    """One life of a program: its own client, agent and workflow on the storage that all lives have in common."""

    def __init__(
        self, directory: Path, *script: Any, stream: bool = False, budget: int | None = None, **more: Any
    ) -> None:
        self.budget = None if budget is None else {"total_tokens": budget}
        self.client = ScriptedChatClient(list(script))
        self.storage = SqliteCheckpointStorage(directory / "runs.db")
        self.agent = Agent(self.client, name="agent", **more)
        self.session = AgentSession(session_id="s")
        self.stream = stream

    def workflow(self) -> Workflow:
        async def process(text: str, ctx: WorkflowContext[Any, Any]) -> None:
            found: Any = self.agent.run(text, session=self.session, stream=self.stream)
            response = await (found.get_final_response() if self.stream else found)
            contents = [content for message in response.messages for content in message.contents]
            await ctx.yield_output([content.text or content.result for content in contents if not content.name])

        node = FunctionExecutor(process, "node", input=str, output=Any, workflow_output=Any)
        return WorkflowBuilder(name="w", start_executor=node).build()

    async def run(self) -> list[Any]:
        workflow = self.workflow()
        result = await workflow.run("go", run_id=RUN_ID, checkpoint_storage=self.storage, budget=self.budget)
        return result.get_outputs()


both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both_modes
async def test_a_tool_that_came_back_is_not_called_by_another_life(stream: bool, tmp_path: Path) -> None:  # noqa: FBT001
    made: list[str] = []

    @tool
    def work(name: str) -> str:
        made.append(name)
        if name == "bad":
            raise ValueError(name)
        return name.upper()

    calls = [ToolCall("work", name="one"), ToolCall("work", name="bad"), ToolCall("missing")]
    first = Life(tmp_path, calls, OSError("the network is down"), tools=[work], stream=stream)
    with pytest.raises(OSError, match="the network is down"):
        await first.run()
    assert sorted(made) == ["bad", "one"]
    second = Life(tmp_path, calls, "done", tools=[work], stream=stream)
    told = ["ONE", "Error: the tool failed", "there is no tool named 'missing'", "done"]
    assert await second.run() == [told]
    assert sorted(made) == ["bad", "one"]
    assert len(second.client.calls) == 1, "only what was not answered is asked"
    assert work.invocation_count == 4
    assert work.invocation_exception_count == 2


async def test_a_turn_that_is_out_of_time_stays_so_in_another_attempt(tmp_path: Path) -> None:
    clock = ManualClock()

    @tool
    async def work() -> str:
        clock.advance(timedelta(hours=2))
        return "worked"

    first = Life(tmp_path, ToolCall("work"), OSError("the network is down"), tools=[work])
    first.storage = SqliteCheckpointStorage(tmp_path / "runs.db", clock=clock)
    first.client.function_invocation_configuration["max_duration_seconds"] = 3600
    with pytest.raises(OSError, match="the network is down"):
        await first.run()
    second = Life(tmp_path, ToolCall("work"), "done", tools=[work])
    second.client.function_invocation_configuration["max_duration_seconds"] = 3600
    assert await second.run() == [["worked", "done"]]
    assert [call.options["tool_choice"] for call in second.client.calls] == ["none"]


async def test_what_a_tool_does_to_the_session_is_done_in_another_life_without_it(tmp_path: Path) -> None:
    calls: list[int] = []

    @tool
    def remember(number: int, ctx: FunctionInvocationContext) -> str:
        calls.append(number)
        ctx.session.state.setdefault("numbers", []).append(number)
        return "remembered"

    @tool
    def recall(ctx: FunctionInvocationContext, **kwargs: Any) -> str:
        assert not kwargs, "the session is in the context alone"
        return str(sorted(ctx.session.state["numbers"]))

    both = [ToolCall("remember", number=1), ToolCall("remember", number=2)]
    first = Life(tmp_path, both, OSError("down"), tools=[remember, recall])
    with pytest.raises(OSError, match="down"):
        await first.run()
    assert sorted(first.session.state["numbers"]) == [1, 2]
    second = Life(tmp_path, both, ToolCall("recall"), "done", tools=[remember, recall])
    assert await second.run() == [["remembered", "remembered", "[1, 2]", "done"]]
    assert second.session.state["numbers"] == [1, 2]
    assert sorted(calls) == [1, 2]


async def test_a_call_is_tried_again_inside_of_its_record(tmp_path: Path) -> None:
    keys: list[str] = []

    @tool(retry=Retry(attempts=3, backoff=0))
    def flaky(ctx: FunctionInvocationContext) -> str:
        keys.append(ctx.idempotency_key)
        if len(keys) < 3:
            raise ConnectionError
        return "at last"

    @tool(timeout=0.001)
    async def slow() -> None:
        await asyncio.Event().wait()

    calls = [ToolCall("flaky"), ToolCall("slow")]
    told = ["at last", "Error: the tool failed", "done"]
    assert await Life(tmp_path, calls, "done", tools=[flaky, slow]).run() == [told]
    assert len(keys) == 3
    assert len(set(keys)) == 1
    assert await Life(tmp_path, calls, "done", tools=[flaky, slow]).run() == [told]
    assert len(keys) == 3


async def test_a_plain_function_that_was_cut_off_is_waited_for_and_recorded(tmp_path: Path) -> None:
    begun, go_on = threading.Event(), threading.Event()
    made: list[str] = []

    @tool
    def work() -> str:
        begun.set()
        assert go_on.wait(10)
        made.append("work")
        return "worked"

    first = asyncio.ensure_future(Life(tmp_path, ToolCall("work"), "never", tools=[work]).run())
    await asyncio.to_thread(begun.wait, 10)
    first.cancel()
    await asyncio.wait([first], timeout=0)
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await first
    assert made == ["work"]
    assert await Life(tmp_path, ToolCall("work"), "done", tools=[work]).run() == [["worked", "done"]]
    assert made == ["work"]


async def test_an_agent_that_is_a_tool_goes_on_where_it_was(tmp_path: Path) -> None:
    made: list[str] = []

    @tool
    def dig() -> str:
        made.append("dig")
        return "gold"

    def life(budget: int) -> tuple[Life, ScriptedChatClient]:
        client = ScriptedChatClient([ToolCall("dig"), "found gold"], usage={"total_token_count": 10})
        helper = Agent(client, name="helper", tools=[dig]).as_tool()
        return Life(tmp_path, ToolCall("helper", task="dig"), "done", tools=[helper], budget=budget), client

    first, _ = life(budget=10)
    with pytest.raises(BudgetExceededError):
        await first.run()
    assert made == ["dig"]
    second, client = life(budget=1_000)
    assert await second.run() == [["found gold", "done"]]
    assert made == ["dig"]
    assert len(client.calls) == 1


@both_modes
async def test_calls_for_the_user_are_requests_with_their_arguments(stream: bool) -> None:  # noqa: FBT001
    schema = {"type": "object", "properties": {"question": {"type": "string"}}}
    ask = FunctionTool(name="ask", input_model=schema)
    client = ScriptedChatClient([["Well,", ToolCall("ask", question="why?")], "I see."])
    workflow = WorkflowBuilder(start_executor=AgentExecutor(Agent(client, name="agent", tools=[ask]))).build()

    async def told(**given: Any) -> list[Any]:
        found: Any = workflow.run(stream=stream, **given)
        return [event async for event in found] if stream else list(await found)

    (request,) = [event for event in await told(message="go") if event.type == "request_info"]
    assert request.data.parse_arguments() == {"question": "why?"}
    answer = Content.from_function_result(request.data.call_id, result="because")
    await told(responses={request.request_id: answer})
    assert client.calls[-1].messages[-1].contents[0].result == "because"
