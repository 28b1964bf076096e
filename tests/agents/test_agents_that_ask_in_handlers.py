"""Agents that user code runs inside a run: what they ask becomes a request of that run."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import Context, lone

from perdure import FunctionTool, InMemoryCheckpointStorage, WorkflowRunState, return_requests, step, workflow
from perdure.agents import Agent, AgentSession, Content, FunctionInvocationContext, tool
from perdure.errors import UserInputRequiredException
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from tests.conftest import Storage

both_modes = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
WAITING = WorkflowRunState.IDLE_WITH_PENDING_REQUESTS


class Bank:
    """A tool that needs approval, an agent that calls it, and a handler that runs the agent."""

    def __init__(self, *replies: Any, stream: bool = False, has_session: bool = False, tools: Any = ()) -> None:
        self.paid: list[int] = []
        self.replies = replies or (ToolCall("pay", amount=3), "It is paid.")
        self.stream = stream
        self.has_session = has_session
        self.tools = [self.pay, *tools]
        self.histories: list[list[str]] = []

    @tool(approval_mode="always_require")
    def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        return f"paid {amount}"

    async def answer(self, task: str) -> Any:
        agent = Agent(ScriptedChatClient(list(self.replies)), name="bank", tools=self.tools)
        session = AgentSession() if self.has_session else None
        running: Any = agent.run(task, stream=self.stream, session=session)
        response = await (running.get_final_response() if self.stream else running)
        if session is not None:
            stored = session.state["in_memory"]["messages"]
            self.histories.append([f"{each.role}: {[content.type for content in each.contents]}" for each in stored])
        return response

    async def handle(self, task: str, ctx: Context) -> None:
        response = await self.answer(task)
        assert response.user_input_requests == []
        await ctx.yield_output(response.text)


@both_modes
@pytest.mark.parametrize("has_session", [False, True], ids=["no session", "session"])
async def test_an_approval_is_a_request_of_the_handler(storage: Storage, *, stream: bool, has_session: bool) -> None:
    bank = Bank(stream=stream, has_session=has_session)
    first = await lone(bank.handle, storage=storage).run("pay", run_id="r")
    (event,) = first.get_request_info_events()
    assert (first.get_final_state(), bank.paid) == (WAITING, [])
    assert event.data.function_call.parse_arguments() == {"amount": 3}
    second = await lone(bank.handle, storage=storage).run(run_id="r", responses={event.request_id: True})
    assert (second.get_outputs(), bank.paid) == (["It is paid."], [3])
    if has_session:
        assert bank.histories[-1] == [
            "user: ['text']",
            "assistant: ['function_call']",
            "tool: ['function_result']",
            "assistant: ['text']",
        ]


async def test_a_rejection_goes_to_the_model() -> None:
    bank, storage = Bank(ToolCall("pay", amount=3), "Then not."), InMemoryCheckpointStorage()
    (event,) = (await lone(bank.handle, storage=storage).run("pay", run_id="r")).get_request_info_events()
    answer = event.data.to_function_approval_response(approved=False)
    second = await lone(bank.handle, storage=storage).run(run_id="r", responses={event.request_id: answer})
    assert (second.get_outputs(), bank.paid) == (["Then not."], [])


async def test_all_questions_of_a_response_are_asked_at_once() -> None:
    bank, storage = Bank([ToolCall("pay", amount=1), ToolCall("pay", amount=2)], "Done."), InMemoryCheckpointStorage()
    first = await lone(bank.handle, storage=storage).run("pay", run_id="r")
    answers = {
        event.request_id: event.data.function_call.parse_arguments() == {"amount": 2}
        for event in first.get_request_info_events()
    }
    assert len(answers) == 2
    second = await lone(bank.handle, storage=storage).run(run_id="r", responses=answers)
    assert (second.get_outputs(), bank.paid) == (["Done."], [2])


async def test_agents_side_by_side_ask_for_equal_calls() -> None:
    bank, storage = Bank(), InMemoryCheckpointStorage()

    async def handle(_: str, ctx: Context) -> None:
        responses = await asyncio.gather(*[bank.answer(task) for task in ("one", "two")])
        await ctx.yield_output([response.text for response in responses])

    events = (await lone(handle, storage=storage).run("pay", run_id="r")).get_request_info_events()
    assert len(events) == 2
    answers = {event.request_id: True for event in events}
    second = await lone(handle, storage=storage).run(run_id="r", responses=answers)
    assert (second.get_outputs(), bank.paid) == ([["It is paid.", "It is paid."]], [3, 3])


async def test_a_call_that_the_user_answers_is_a_request_of_the_handler() -> None:
    where = FunctionTool(name="where", description="Ask the user where they are.")
    bank, storage = Bank(ToolCall("where"), "So Rome.", tools=[where]), InMemoryCheckpointStorage()
    (event,) = (await lone(bank.handle, storage=storage).run("go", run_id="r")).get_request_info_events()
    answer = Content.from_function_result(event.data.call_id, result="Rome")
    second = await lone(bank.handle, storage=storage).run(run_id="r", responses={event.request_id: answer})
    assert second.get_outputs() == ["So Rome."]


async def test_a_question_of_a_tool_is_a_request_of_the_handler() -> None:
    @tool
    def book(ctx: FunctionInvocationContext) -> str:
        """Book a table."""
        if not ctx.answers:
            call = Content.from_function_call("inner", "confirm", arguments={"table": 4})
            raise UserInputRequiredException([Content.from_function_approval_request("inner", call)])
        return f"confirmed: {ctx.answers[0].approved}"

    bank, storage = Bank(ToolCall("book"), "Booked.", tools=[book]), InMemoryCheckpointStorage()
    (event,) = (await lone(bank.handle, storage=storage).run("go", run_id="r")).get_request_info_events()
    second = await lone(bank.handle, storage=storage).run(run_id="r", responses={event.request_id: True})
    assert second.get_outputs() == ["Booked."]


@pytest.mark.parametrize("in_step", [False, True], ids=["function", "step"])
async def test_an_approval_is_a_request_of_the_function(storage: Storage, *, in_step: bool) -> None:
    bank = Bank()

    @step
    async def ask(task: str) -> str:
        return (await bank.answer(task)).text

    @workflow(name="f", checkpoint_storage=storage)
    async def pays(task: str) -> str:
        return await ask(task) if in_step else (await bank.answer(task)).text

    first = await pays.run("pay", run_id="r")
    (event,) = first.get_request_info_events()
    assert (first.get_final_state(), bank.paid) == (WAITING, [])
    second = await pays.run(run_id="r", responses={event.request_id: True})
    assert (second.get_outputs(), bank.paid) == (["It is paid."], [3])


async def test_a_handler_that_asks_itself_gets_the_requests() -> None:
    bank = Bank()
    agent = Agent(ScriptedChatClient([ToolCall("pay", amount=3), "Paid."]), name="bank", tools=[bank.pay])

    async def handle(task: str, ctx: Context) -> None:
        session = AgentSession()
        with return_requests(agent):
            response = await agent.run(task, session=session)
        answers = [await ctx.ask(each, Content) for each in response.user_input_requests]
        await ctx.yield_output((await agent.run(answers, session=session)).text)

    storage = InMemoryCheckpointStorage()
    (event,) = (await lone(handle, storage=storage).run("pay", run_id="r")).get_request_info_events()
    answer = event.data.to_function_approval_response(approved=True)
    second = await lone(handle, storage=storage).run(run_id="r", responses={event.request_id: answer})
    assert (second.get_outputs(), bank.paid) == (["Paid."], [3])
