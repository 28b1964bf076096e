"""Corrections by people: an invalid one is refused with the reason, and asked for again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, Field, computed_field
from tests.agent_workflows.building import Cast
from tests.agent_workflows.nodes import DESKS, EITHER, TICKET, around, clerk, outcome

from perdure.agent_workflows import (
    AgentWorkflow,
    Approval,
    ConversationPolicies,
    NodeApprovalRequest,
    Output,
    StructuredOutput,
    TextOutput,
)
from perdure.agent_workflows.outputs import InvalidValueError, correct_outputs
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from perdure import InMemoryCheckpointStorage, Workflow, WorkflowRunResult

TEXT = TextOutput("offer")
NOTE = StructuredOutput(
    {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}, "why": {"type": "string"}}}
)
ANY = StructuredOutput({"type": "object"})


class Square(BaseModel):
    """Has a field under another name, one that is left out, and one that is computed."""

    side: float = Field(alias="length", gt=0)
    secret: str = Field(default="", exclude=True)

    @computed_field
    @property
    def area(self) -> float:
        """Return the area of the square."""
        return self.side**2


SQUARE = StructuredOutput(Square)


def outputs_of(output: Output) -> dict[str, Any]:
    """Return the outputs of a node before the correction."""
    if output is TEXT:
        return {"offer": "dear"}
    if output is DESKS:
        return {"handoff_target": "billing", "answer": ""}
    values: list[tuple[Output, dict[str, Any]]] = [
        (TICKET, {"title": "Lamp", "urgency": 1}),
        (EITHER, {"title": "Lamp", "urgency": 1}),
        (NOTE, {"n": 3}),
        (ANY, {"n": 3}),
        (SQUARE, {"side": 2.0, "area": 4.0}),
    ]
    [value] = [value for each, value in values if each is output]
    return {**value, "result": value, **({"matched_type": "Ticket"} if output is EITHER else {})}


@pytest.mark.parametrize(
    ("output", "changes", "why"),
    [
        (TEXT, {"ofer": "cheap"}, "there is no output 'ofer'; there are 'offer'"),
        (TEXT, {"offer": 5}, "'offer' is a text, not 5"),
        (TICKET, {"urgency": "much"}, "urgency: "),
        (TICKET, {"urgencyy": 2}, "there is no output 'urgencyy'; there are 'title', 'urgency'"),
        (TICKET, {"result": {}}, "title: Field required"),
        (TICKET, {"result": "hello"}, "'result' is the whole value, an object, not 'hello'"),
        (TICKET, {"result": {"title": "x", "urgency": 2}, "urgency": 3}, "'urgency' is 3 but in 'result' it is 2"),
        (NOTE, {"n": 0}, "n must satisfy minimum: 1"),
        (NOTE, {"m": 1}, "there is no output 'm'; there are 'n', 'why'"),
        (SQUARE, {"side": -1}, "side: Input should be greater than 0"),
        (SQUARE, {"area": 9}, "'area' is computed from other fields"),
        (DESKS, {"handoff_target": "nobody"}, "'handoff_target' is one of 'billing', 'tech', not 'nobody'"),
        (DESKS, {"handoff_target": None}, "'handoff_target' is a text, not None"),
        (DESKS, {"target": "tech"}, "there is no output 'target'"),
        (EITHER, {"matched_type": "Zzz"}, "'matched_type' is one of 'Ticket', 'Refusal', not 'Zzz'"),
        (EITHER, {"matched_type": "Refusal"}, "reason: Field required"),
        (EITHER, {"matched_type": "Refusal", "urgency": 3}, "there is no output 'urgency'; there are 'reason'"),
        (EITHER, {"reason": "no"}, "there is no output 'reason'; there are 'title', 'urgency'"),
    ],
)
def test_a_correction_that_can_not_be_used_says_why(output: Output, changes: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidValueError) as refused:
        correct_outputs(output, outputs_of(output), changes)
    assert why in str(refused.value)


@pytest.mark.parametrize(
    ("output", "changes", "corrected"),
    [
        (TEXT, {"offer": "cheap"}, {"offer": "cheap"}),
        (TICKET, {"urgency": 3}, {"title": "Lamp", "urgency": 3, "result": {"title": "Lamp", "urgency": 3}}),
        (TICKET, {"result": {"title": "x"}}, {"title": "x", "urgency": 1, "result": {"title": "x", "urgency": 1}}),
        (NOTE, {"why": "so"}, {"n": 3, "why": "so", "result": {"n": 3, "why": "so"}}),
        (ANY, {"more": [1]}, {"n": 3, "more": [1], "result": {"n": 3, "more": [1]}}),
        (SQUARE, {"side": 3}, {"side": 3, "area": 9.0, "result": {"side": 3, "area": 9.0}}),
        (DESKS, {"handoff_target": "tech"}, {"handoff_target": "tech", "answer": ""}),
        (
            EITHER,
            {"matched_type": "Refusal", "reason": "no"},
            {"reason": "no", "result": {"reason": "no"}, "matched_type": "Refusal"},
        ),
    ],
)
def test_a_correction_changes_a_value_by_field_and_as_a_whole(
    output: Output, changes: dict[str, Any], corrected: dict[str, Any]
) -> None:
    assert correct_outputs(output, outputs_of(output), changes) == corrected


def request_of(result: WorkflowRunResult) -> Any:
    [request] = result.get_request_info_events()
    return request


async def test_a_refused_correction_is_asked_again_and_the_question_says_why(
    storage: InMemoryCheckpointStorage,
) -> None:
    def life() -> Workflow:
        return around(clerk(["Dear."])[1], output=TEXT, approval=Approval("Send it?"), storage=storage)

    first = request_of(await life().run("x", run_id="r"))
    typo = NodeApprovalRequest.approve(resume_data={"ofer": "cheap"})
    refused = await life().run(run_id="r", responses={first.request_id: typo})
    assert refused.get_outputs() == []
    again = request_of(refused)
    why = "there is no output 'ofer'; there are 'offer'"
    assert (again.request_id != first.request_id, again.data.outputs) == (True, {"offer": "Dear."})
    assert again.data.message == f"Send it?\nThe correction before can't be used: {why}"
    right = NodeApprovalRequest.approve(resume_data={"offer": "cheap"})
    result = outcome(await life().run(run_id="r", responses={again.request_id: right}))
    assert result.outputs == {"offer": "cheap"}
    warnings = [event.data async for event in storage.events("r") if event.type == "warning"]
    assert warnings == [f"the approval of node 'n' is asked again: {why}"]


async def test_an_asynchronous_function_says_whether_to_ask_and_is_asked_once() -> None:
    asked: list[dict[str, Any]] = []

    async def first_only(outputs: Any) -> bool:
        asked.append(dict(outputs))
        outputs.clear()
        return len(asked) == 1

    workflow = around(clerk(["Dear."])[1], output=TEXT, approval=Approval(when=first_only))
    waiting = await workflow.run("x")
    denied = {request_of(waiting).request_id: NodeApprovalRequest.deny("no")}
    # The handler is entered again, and the function would say now that nobody has to be asked.
    assert outcome(await workflow.run(responses=denied)).denied == "no"
    assert asked == [{"offer": "Dear."}]


@pytest.mark.parametrize(
    ("changes", "said"), [({}, "billing"), ({"handoff_target": "tech"}, "tech"), ({"answer": "Later."}, "Later.")]
)
async def test_a_router_that_says_nothing_says_whom_it_has_chosen(changes: dict[str, str], said: str) -> None:
    _, agent = clerk([ToolCall("handoff_to_billing")])
    workflow = around(agent, output=DESKS, approval=Approval())
    answer = NodeApprovalRequest.approve(resume_data=changes)
    result = outcome(await workflow.run(responses={request_of(await workflow.run("x")).request_id: answer}))
    assert [(each.role, each.text, each.author_name) for each in result.said] == [("assistant", said, "clerk")]
    assert result.text == changes.get("answer", "")


async def test_in_a_shared_thread_each_task_is_answered() -> None:
    cast = Cast(desk=[ToolCall("handoff_to_tech")], tech=["It is off."])
    workflow = (
        AgentWorkflow.create()
        .with_in_memory_session_store()
        .with_conversation(ConversationPolicies.shared_thread(session_id="s"))
        .add_router_agent("desk", cast["desk"], handoffs={"tech": "About machines."})
        .add_agent("tech", cast["tech"], template="Look at it: {{input}}")
        .build()
    )
    await workflow.run("No light.")
    assert workflow.session_store is not None
    said = [(each.role, each.text) for each in await workflow.session_store.messages("s", "main")]
    assert said == [
        ("user", "No light."),
        ("assistant", "tech"),
        ("user", "Look at it: No light."),
        ("assistant", "It is off."),
    ]
