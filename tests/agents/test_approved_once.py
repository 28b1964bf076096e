"""What is made is what was approved, once: answers that contradict, answers to something else, turns that fail."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import pytest

from perdure import WorkflowBuilder, WorkflowRunState
from perdure.agents import Agent, AgentSession, Content, FunctionTool, Message, tool
from perdure.agents.executor.requests import find_mismatch
from perdure.agents.messages.conversation import INTERRUPTED
from perdure.agents.turn.approvals import APPROVED_CALLS_KEY, REJECTED
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from tests.conftest import Storage

    from perdure import Workflow

POSITION = FunctionTool(name="position", description="Where the user is.")
CALLS = [Content.from_function_call("p", "pay", arguments={"amount": 3}), Content.from_function_call("w", "position")]


class Till:
    """Counts payments, each of which has to be approved."""

    def __init__(self) -> None:
        self.paid: list[int] = []
        self.is_stuck = False
        self.reached = asyncio.Event()

    @tool(approval_mode="always_require")
    async def pay(self, amount: int) -> str:
        """Pay."""
        self.paid.append(amount)
        self.reached.set()
        if self.is_stuck:
            await asyncio.Event().wait()
        return f"paid {amount}"

    @tool(approval_mode="always_require", if_interrupted="rerun")
    async def look(self, amount: int) -> str:
        """Look."""
        return await self.pay(amount)

    def agent(self, *replies: Any) -> Agent[Any]:
        return Agent(ScriptedChatClient(list(replies)), name="clerk", tools=[self.pay, self.look, POSITION])


def results_shown(agent: Agent[Any]) -> list[Any]:
    client: Any = agent.client
    contents = [content for message in client.calls[-1].messages for content in message.contents]
    return [content.result for content in contents if content.type == "function_result"]


@pytest.mark.parametrize("approvals", [(True, False), (False, True), (False, False)])
async def test_of_answers_that_contradict_each_other_no_counts(approvals: tuple[bool, bool]) -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(ToolCall("pay", amount=3), "Done.")
    (asked,) = (await agent.run("pay", session=session)).user_input_requests
    given = [asked.to_function_approval_response(approved) for approved in approvals]
    await agent.run(Message("user", given), session=session)
    assert till.paid == []


async def test_what_was_approved_and_made_is_not_made_again_when_the_turn_failed() -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(ToolCall("pay", amount=3), ConnectionError("down"), "Done.", "You are welcome.")
    (asked,) = (await agent.run("pay", session=session)).user_input_requests
    answer = Message("user", [asked.to_function_approval_response(approved=True)])
    with pytest.raises(ConnectionError):
        await agent.run(answer, session=session)
    kept = AgentSession.from_dict(json.loads(json.dumps(session.to_dict())))
    assert (await agent.run(answer, session=kept)).text == "Done."
    assert (till.paid, results_shown(agent)) == ([3], ["paid 3"])
    await agent.run("thanks", session=kept)
    assert (results_shown(agent), APPROVED_CALLS_KEY in kept.state) == (["paid 3"], False)


async def test_a_model_is_told_what_was_made_in_a_turn_that_failed_whatever_comes_next() -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(ToolCall("pay", amount=3), ConnectionError("down"), "It is paid.")
    (asked,) = (await agent.run("pay", session=session)).user_input_requests
    with pytest.raises(ConnectionError):
        await agent.run(Message("user", [asked.to_function_approval_response(approved=True)]), session=session)
    assert (await agent.run("what is it now?", session=session)).text == "It is paid."
    assert (till.paid, results_shown(agent)) == ([3], ["paid 3"])


@pytest.mark.parametrize(("name", "payments", "told"), [("pay", [3], INTERRUPTED), ("look", [3, 3], "paid 3")])
async def test_an_approved_call_that_was_cut_off_is_not_made_again_unless_it_may_be(
    name: str, payments: list[int], told: str
) -> None:
    till, session = Till(), AgentSession()
    agent = till.agent(ToolCall(name, amount=3), "Done.")
    (asked,) = (await agent.run("pay", session=session)).user_input_requests
    answer = Message("user", [asked.to_function_approval_response(approved=True)])
    till.is_stuck = True
    running = asyncio.ensure_future(agent.run(answer, session=session))
    await till.reached.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    till.is_stuck = False
    await agent.run(answer, session=session)
    assert (till.paid, results_shown(agent)) == (payments, [told])


def office(till: Till, storage: Any, agent: Agent[Any] | None = None) -> Workflow:
    node = agent or till.agent(CALLS, "Done.")
    return WorkflowBuilder(name="w", start_executor=node, checkpoint_storage=storage).build()


@pytest.mark.parametrize(
    "answer",
    [
        Content.from_function_approval_response(True, "p", Content.from_function_call("p", "pay")),  # noqa: FBT003
        Content.from_text("Oslo"),
        Content.from_function_call("p", "pay"),
    ],
    ids=["an approval of another call", "a text", "a call"],
)
async def test_a_call_that_others_make_is_answered_by_its_result_alone(answer: Content, storage: Storage) -> None:
    till = Till()
    await office(till, storage).run("pay", run_id="r")
    again = await office(till, storage).run(run_id="r", responses={"w": answer})
    assert ["is not a function_result" in event.data for event in again if event.type == "warning"] == [True]
    refused = await office(till, storage).run(run_id="r", responses={"p": False})
    assert refused.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    result = Content.from_function_result("w", result="Oslo")
    assert [o.text for o in (await office(till, storage).run(run_id="r", responses={"w": result})).get_outputs()] == [
        "Done."
    ]
    assert till.paid == []


async def test_a_result_is_one_of_the_call_that_was_asked_about(storage: Storage) -> None:
    till = Till()
    await office(till, storage).run("pay", run_id="r")
    forged = Content.from_function_result("p", result="Oslo")
    agent = till.agent(CALLS, "Done.")
    await office(till, storage, agent).run(run_id="r", responses={"w": forged, "p": False})
    assert (till.paid, results_shown(agent)) == ([], [REJECTED, "Oslo"])


def test_what_is_no_question_about_a_call_is_not_answered_by_an_approval() -> None:
    consent = Content.from_oauth_consent_request("https://example.com/consent")
    approval = Content.from_function_approval_response(True, "p", Content.from_function_call("p", "pay"))  # noqa: FBT003
    assert "no call was asked about" in (find_mismatch(consent, approval) or "")
    assert find_mismatch(consent, Content.from_text("done")) is None
