"""An agent workflow as a tool inside another run: it is part of that run, also when the process is killed."""

from __future__ import annotations

import signal
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.agent_workflows.building import Cast, writers

from perdure import Agent, Content, InMemoryCheckpointStorage, Workflow, WorkflowBuilder, tool
from perdure.agent_workflows import AgentWorkflow, Approval, NodeApprovalRequest
from perdure.testing import ScriptedChatClient, ToolCall
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.agent_workflows import AgentWorkflowBuilder

LIFE = Path(__file__).with_name("tool_life.py")


def life(directory: Path, *given: str) -> tuple[int, str]:
    done = warm.run(str(LIFE), str(directory), *given)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return done.returncode, done.stdout.strip()


def asked(directory: Path) -> Counter[str]:
    return Counter((directory / "asked").read_text().split())


@pytest.mark.parametrize("kept", ["kept", "not kept"])
def test_a_workflow_that_is_a_tool_does_nothing_twice_after_a_kill(tmp_path: Path, kept: str) -> None:
    assert life(tmp_path, "run", "dies", kept)[0] == -signal.SIGKILL
    assert life(tmp_path, "resume", kept) == (0, "completed|done: two")
    assert asked(tmp_path) == {"boss": 2, "first": 1, "second": 2}


@pytest.mark.parametrize("kept", ["kept", "not kept"])
def test_what_a_workflow_that_is_a_tool_asks_outlives_every_process(tmp_path: Path, kept: str) -> None:
    assert life(tmp_path, "run", "asks", kept) == (0, "waiting|None")
    assert life(tmp_path, "approve", "asks", "dies", kept)[0] == -signal.SIGKILL
    assert life(tmp_path, "resume", "asks", kept) == (0, "completed|done: two")
    assert asked(tmp_path) == {"boss": 2, "first": 1, "second": 2}


def asking(cast: Cast) -> AgentWorkflowBuilder:
    return (
        AgentWorkflow.create()
        .with_name("Review")
        .add_agent("draft", cast["drafter"], output_key="draft", approval=True)
        .add_agent("review", cast["reviewer"], input_key="draft")
        .from_("draft")
        .to("review")
    )


def told(*calls: ToolCall) -> Callable[[], ScriptedChatClient]:
    """A model that calls tools, and then repeats their results."""

    def said(messages: Any, _: object) -> str:
        results = [content.result for content in messages[-1].contents if content.type == "function_result"]
        return " / ".join(map(str, results))

    return lambda: ScriptedChatClient([list(calls), said])


def around(model: Callable[[], ScriptedChatClient], inner: AgentWorkflow, storage: Any = None) -> Workflow:
    editor = Agent(model(), name="editor", tools=[inner.as_tool(approval_mode="never_require")])
    return WorkflowBuilder(name="outer", start_executor=editor, checkpoint_storage=storage).build()


async def test_what_it_asks_is_a_request_of_the_run_around_it_with_all_that_a_person_can_say() -> None:
    storage = InMemoryCheckpointStorage()
    model = told(ToolCall("Review", input="lamps"))
    await around(model, asking(writers()).build(), storage).run("go", run_id="one")
    [request] = await storage.requests("one")
    assert request.data == NodeApprovalRequest(
        "draft", "drafter", "May what 'draft' has put out be used?", {"draft": "A draft of lamps"}
    )
    answer = NodeApprovalRequest.approve(resume_data={"draft": "Mine"})
    result = await around(model, asking(writers()).build(), storage).run(
        run_id="one", responses={request.request_id: answer}
    )
    assert result.get_outputs()[-1].text == "Mine, reviewed"


async def test_a_denial_is_told_to_the_model_with_its_reason() -> None:
    storage = InMemoryCheckpointStorage()
    model = told(ToolCall("Review", input="lamps"))
    await around(model, asking(writers()).build(), storage).run("go", run_id="one")
    [request] = await storage.requests("one")
    answers = {request.request_id: NodeApprovalRequest.deny("no lamps")}
    result = await around(model, asking(writers()).build(), storage).run(run_id="one", responses=answers)
    assert "no lamps" in result.get_outputs()[-1].text


async def test_calls_side_by_side_are_executions_of_their_own_and_each_asks() -> None:
    storage = InMemoryCheckpointStorage()
    model = told(ToolCall("Review", input="lamps"), ToolCall("Review", input="tables"))
    cast = writers()
    await around(model, asking(cast).build(), storage).run("go", run_id="one")
    requests = await storage.requests("one")
    assert [request.data.outputs["draft"] for request in requests] == ["A draft of lamps", "A draft of tables"]
    answers = {request.request_id: NodeApprovalRequest.approve() for request in requests}
    result = await around(model, asking(cast).build(), storage).run(run_id="one", responses=answers)
    assert result.get_outputs()[-1].text == "A draft of lamps, reviewed / A draft of tables, reviewed"
    assert Counter(cast.asked) == {"drafter": 2, "reviewer": 2}


async def test_nodes_side_by_side_ask_at_once() -> None:
    storage = InMemoryCheckpointStorage()
    cast = Cast(one=["first"], two=["second"])
    inner = AgentWorkflow.create().with_name("Review")
    inner.add_agent("a", cast["one"], approval=True).add_agent("b", cast["two"], approval=True)
    model = told(ToolCall("Review", input="lamps"))
    workflow = around(model, inner.build(), storage)
    await workflow.run("go", run_id="one")
    requests = await storage.requests("one")
    assert [request.data.node_id for request in requests] == ["a", "b"]
    answers = {request.request_id: NodeApprovalRequest.approve() for request in requests}
    result = await workflow.run(run_id="one", responses=answers)
    assert result.get_outputs()[-1].text == "first\n\nsecond"


@pytest.mark.parametrize("is_permitted", [True, False])
async def test_what_a_tool_of_a_node_needs_is_asked_by_the_run_around(is_permitted: bool) -> None:  # noqa: FBT001
    paid: list[int] = []

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return f"paid {amount}"

    storage = InMemoryCheckpointStorage()
    cast = Cast(payer=[ToolCall("pay", amount=3), "I have done what I may."])
    inner = AgentWorkflow.create().with_name("Review").add_agent("pay", Agent(cast.client, name="payer", tools=[pay]))
    workflow = around(told(ToolCall("Review", input="lamps")), inner.build(), storage)
    await workflow.run("go", run_id="one")
    [request] = await storage.requests("one")
    assert isinstance(request.data, Content)
    result = await workflow.run(run_id="one", responses={request.request_id: is_permitted})
    assert result.get_outputs()[-1].text == "I have done what I may."
    assert paid == ([3] if is_permitted else [])


async def test_an_approval_that_is_waited_for_too_long_is_denied_there_as_well() -> None:
    clock, storage = ManualClock(), InMemoryCheckpointStorage()
    approval = Approval("May it?", timeout=timedelta(hours=1))
    inner = AgentWorkflow.create(clock=clock).with_name("Review")
    tools = [
        inner.add_agent("draft", writers()["drafter"], approval=approval).build().as_tool(approval_mode="never_require")
    ]
    editor = Agent(told(ToolCall("Review", input="lamps"))(), name="editor", tools=tools)
    workflow = WorkflowBuilder(name="outer", start_executor=editor, checkpoint_storage=storage, clock=clock).build()
    await workflow.run("go", run_id="one")
    clock.advance(timedelta(hours=2))
    result = await workflow.run(run_id="one")
    assert result.get_outputs()[-1].text == "'draft' was denied: nobody has approved it in time"


async def test_as_an_agent_that_is_made_a_tool_it_is_part_of_the_run_as_well() -> None:
    storage = InMemoryCheckpointStorage()
    cast = writers()
    inner = asking(cast).with_checkpointing().with_workflow_store(InMemoryCheckpointStorage()).build()
    tools = [inner.as_agent("helper").as_tool(name="ask_helper")]
    editor = Agent(told(ToolCall("ask_helper", task="lamps"))(), name="editor", tools=tools)
    workflow = WorkflowBuilder(name="outer", start_executor=editor, checkpoint_storage=storage).build()
    await workflow.run("go", run_id="one")
    [request] = await storage.requests("one")
    result = await workflow.run(run_id="one", responses={request.request_id: request.data.approve()})
    assert result.get_outputs()[-1].text == "A draft of lamps, reviewed"
    assert (cast.asked, await inner.executions()) == (["drafter", "reviewer"], [])


async def test_in_a_run_that_is_not_kept_it_waits_in_the_process() -> None:
    workflow = around(told(ToolCall("Review", input="lamps")), asking(writers()).build())
    [request] = (await workflow.run("go")).get_request_info_events()
    result = await workflow.run(responses={request.request_id: True})
    assert result.get_outputs()[-1].text == "A draft of lamps, reviewed"
