"""Approvals in nodes: of outputs, of tool calls, and of both."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.nodes import DESKS, EITHER, TICKET, TICKET_BY_TOOL, around, clerk, outcome, shown

from perdure import FailedMessage, FunctionTool, tool
from perdure.agent_workflows import Approval, Condition, NodeApprovalRequest, NodeApprovalResponse, OnError, TextOutput
from perdure.testing import ToolCall
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from perdure import InMemoryCheckpointStorage, Workflow, WorkflowRunResult

APPROVED = NodeApprovalRequest.approve()
PAY = ToolCall("pay", amount=3)


class Has(Condition):
    """Holds for outputs with a key."""

    def __init__(self, key: str) -> None:
        self._key = key

    def holds(self, outputs: Mapping[str, Any]) -> bool:
        return self._key in outputs

    def describe(self) -> str:
        return f"has {self._key}"

    def to_dict(self) -> dict[str, Any]:
        return {"has": self._key}

    def fields(self) -> frozenset[str]:
        return frozenset({self._key})


def is_urgent(outputs: Mapping[str, Any]) -> bool:
    return outputs["urgency"] > 3


def is_calm(outputs: Mapping[str, Any]) -> bool:
    return not is_urgent(outputs)


def paying() -> tuple[list[int], FunctionTool]:
    """A tool that needs approval, and what it has paid."""
    paid: list[int] = []

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    return paid, pay


def asked(result: WorkflowRunResult) -> Any:
    """The one question of a run."""
    [request] = result.get_request_info_events()
    return request


async def answered(workflow: Workflow, result: WorkflowRunResult, *, answer: Any) -> WorkflowRunResult:
    return await workflow.run(responses={asked(result).request_id: answer})


async def test_what_a_node_has_put_out_is_used_when_somebody_has_approved_it() -> None:
    client, agent = clerk(["Dear all."])
    workflow = around(agent, output=TextOutput("draft"), approval=Approval("Send it?"))
    waiting = await workflow.run("Write.")
    assert asked(waiting).data == NodeApprovalRequest("n", "clerk", "Send it?", {"draft": "Dear all."})
    assert waiting.get_outputs() == []
    result = outcome(await answered(workflow, waiting, answer=APPROVED))
    assert (result.outputs, result.denied) == ({"draft": "Dear all."}, None)
    assert len(client.calls) == 1


async def test_a_person_may_correct_what_was_said() -> None:
    _, agent = clerk(["Dear all."])
    workflow = around(agent, approval=Approval())
    changed = NodeApprovalRequest.approve(resume_data={"answer": "Dear Ann."})
    result = outcome(await answered(workflow, await workflow.run("Write."), answer=changed))
    assert result.outputs == {"answer": "Dear Ann."}
    assert result.text == "Dear Ann."
    assert [each.text for each in result.said] == ["Dear Ann."]


@pytest.mark.parametrize(
    ("changes", "whole"),
    [
        ({"urgency": 9}, {"title": "Lamp", "urgency": 9}),
        ({"result": {"title": "Bulb", "urgency": 2}}, {"title": "Bulb", "urgency": 2}),
        ({"result": {"title": "Bulb", "urgency": 3}, "urgency": 3}, {"title": "Bulb", "urgency": 3}),
    ],
)
async def test_a_corrected_value_is_the_same_by_field_and_as_a_whole(changes: Any, whole: Any) -> None:
    _, agent = clerk(['{"title": "Lamp"}'])
    workflow = around(agent, output=TICKET, approval=Approval())
    result = outcome(
        await answered(workflow, await workflow.run("x"), answer=NodeApprovalRequest.approve(resume_data=changes))
    )
    assert result.outputs == {**whole, "result": whole}
    assert f'"urgency": {whole["urgency"]}' in result.text


async def test_what_was_denied_is_told_without_the_output() -> None:
    _, agent = clerk(["Dear all."])
    workflow = around(agent, approval=Approval())
    result = outcome(
        await answered(workflow, await workflow.run("Write."), answer=NodeApprovalRequest.deny("too short"))
    )
    assert (result.denied, result.is_timed_out) == ("too short", False)
    assert (result.outputs, result.text, result.said) == ({}, "", ())


async def test_a_denial_without_a_reason_is_one() -> None:
    _, agent = clerk(["Dear all."])
    workflow = around(agent, approval=Approval(), on_error=OnError("isolate"))
    result = outcome(
        await answered(workflow, await workflow.run("Write."), answer=NodeApprovalResponse(approved=False))
    )
    assert result.denied


async def test_what_nobody_approves_in_time_is_denied(open_storage: Callable[..., Any]) -> None:
    clock = ManualClock()
    storage = open_storage(clock=clock)
    limited = Approval(timeout=timedelta(hours=1))
    first = around(clerk(["Dear all."])[1], approval=limited, storage=storage, clock=clock)
    assert (await first.run("Write.", run_id="r")).get_outputs() == []
    clock.advance(timedelta(hours=2))
    client, agent = clerk(["never asked"])
    result = outcome(await around(agent, approval=limited, storage=storage, clock=clock).run(run_id="r"))
    assert client.calls == []
    assert result.is_timed_out
    assert result.denied == "nobody has approved it in time"


@pytest.mark.parametrize(
    ("when", "is_asked"), [(Has("title"), True), (Has("other"), False), (is_urgent, False), (is_calm, True)]
)
async def test_only_outputs_of_which_it_holds_are_asked_about(when: Any, is_asked: bool) -> None:  # noqa: FBT001
    _, agent = clerk(['{"title": "Lamp"}'])
    result = await around(agent, output=TICKET, approval=Approval(when=when)).run("x")
    assert bool(result.get_request_info_events()) is is_asked


async def test_an_approval_survives_the_program(storage: InMemoryCheckpointStorage) -> None:
    client, agent = clerk(["Dear all."])
    waiting = await around(agent, approval=Approval(), storage=storage).run("Write.", run_id="r")
    later_client, later_agent = clerk(["never asked"])
    later = around(later_agent, approval=Approval(), storage=storage)
    result = outcome(await later.run(run_id="r", responses={asked(waiting).request_id: APPROVED}))
    assert result.outputs == {"answer": "Dear all."}
    assert (len(client.calls), len(later_client.calls)) == (1, 0)


async def test_a_tool_that_needs_approval_is_asked_about_by_the_engine() -> None:
    paid, pay = paying()
    client, agent = clerk([PAY, "Paid."], tools=[pay])
    workflow = around(agent)
    waiting = await workflow.run("Pay.")
    assert paid == []
    result = outcome(await answered(workflow, waiting, answer=True))
    assert (paid, result.outputs) == ([3], {"answer": "Paid."})
    assert len(client.calls) == 2


@pytest.mark.parametrize(
    ("output", "last"),
    [
        (TICKET, '{"title": "Paid"}'),
        (TICKET_BY_TOOL, ToolCall("answer_with_Ticket", title="Paid")),
        (EITHER, ToolCall("answer_with_Ticket", title="Paid")),
    ],
)
async def test_approval_of_a_tool_and_of_the_output_and_a_value_go_together(
    output: Any, last: Any, storage: InMemoryCheckpointStorage
) -> None:
    paid, pay = paying()
    script = [PAY, "nonsense", last]

    def life() -> Workflow:
        return around(clerk(script, tools=[pay])[1], output=output, approval=Approval("Well?"), storage=storage)

    first = await life().run("Pay.", run_id="r")
    second = await life().run(run_id="r", responses={asked(first).request_id: True})
    assert isinstance(asked(second).data, NodeApprovalRequest)
    third = await life().run(run_id="r", responses={asked(second).request_id: APPROVED})
    assert paid == [3]
    assert outcome(third).outputs["title"] == "Paid"


async def test_a_router_with_a_tool_that_needs_approval_chooses_when_it_was_answered() -> None:
    paid, pay = paying()
    client, agent = clerk([PAY, ToolCall("handoff_to_billing")], tools=[pay])
    workflow = around(agent, output=DESKS)
    result = outcome(await answered(workflow, await workflow.run("Pay."), answer=False))
    assert (paid, result.outputs["handoff_target"]) == ([], "billing")
    assert [call.options["tool_choice"] for call in client.calls] == ["required", "required"]


async def test_a_choice_beside_a_call_that_needs_approval_is_not_lost() -> None:
    paid, pay = paying()
    client, agent = clerk([[PAY, ToolCall("handoff_to_billing")]], tools=[pay])
    workflow = around(agent, output=DESKS)
    result = outcome(await answered(workflow, await workflow.run("Pay."), answer=True))
    assert (paid, result.outputs["handoff_target"]) == ([3], "billing")
    assert len(client.calls) == 1


async def test_a_failure_after_an_approval_of_a_tool_is_told_to_the_conductor() -> None:
    paid, pay = paying()
    client, agent = clerk([PAY, OSError("no line")], tools=[pay])
    workflow = around(agent, on_error=OnError("isolate"))
    failed = outcome(await answered(workflow, await workflow.run("Pay."), answer=True))
    assert isinstance(failed, FailedMessage)
    assert (paid, failed.executor_id, len(client.calls)) == ([3], "n", 2)


async def test_a_correction_after_an_approved_call_knows_of_the_call() -> None:
    _, pay = paying()
    client, agent = clerk([PAY, "no value", '{"title": "Paid"}'], tools=[pay])
    workflow = around(agent, output=TICKET)
    result = outcome(await answered(workflow, await workflow.run("Pay."), answer=True))
    assert result.outputs["title"] == "Paid"
    assert shown(client.calls[2])[:3] == ["user: Pay.", "assistant: pay", "tool: paid 3"]
