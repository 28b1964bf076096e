"""Nodes: the agent's messages, and outputs made from its answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.nodes import (
    DESKS,
    EITHER,
    TICKET,
    TICKET_BY_TOOL,
    Refusal,
    Ticket,
    around,
    clerk,
    outcome,
    shown,
)

from perdure import (
    Agent,
    AgentInvalidResponseException,
    AgentResponse,
    BaseAgent,
    Content,
    FailedMessage,
    Message,
    Retry,
    function_middleware,
    tool,
)
from perdure.agent_workflows import Handoffs, OnError, StructuredOutput, TextOutput, UnionOutput
from perdure.agent_workflows.messages import NodeResult, NodeTask
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure import FunctionInvocationContext

BILLING, TECH = ToolCall("handoff_to_billing"), ToolCall("handoff_to_tech")
SCHEMA = {
    "title": "Bill",
    "type": "object",
    "properties": {"sum": {"type": "number"}, "lines": {"type": "array", "items": {"type": "string"}}},
    "required": ["sum"],
}


@tool
def look_up(item: str) -> str:
    """Look something up."""
    return f"{item} is known"


class Stranger(BaseAgent):
    """An agent that is none of ours."""

    async def run(self, messages: Any = None, *, stream: bool = False, session: Any = None, **_: Any) -> Any:
        del stream, session
        return AgentResponse(messages=[Message("assistant", [f"heard {[each.text for each in messages]}"])])


async def test_a_text_node_puts_out_what_its_agent_says_under_its_key() -> None:
    client, agent = clerk(["Dear all."])
    result = outcome(await around(agent, output=TextOutput("draft")).run("Write."))
    assert (result.node_id, result.visit, result.outputs, result.text) == ("n", 0, {"draft": "Dear all."}, "Dear all.")
    assert [(each.author_name, each.text) for each in result.said] == [("clerk", "Dear all.")]
    assert shown(client.calls[0]) == ["user: Write."]


async def test_a_node_is_told_its_history_its_task_and_the_error_of_whom_it_stands_in_for() -> None:
    client, agent = clerk(["Here."])
    history = (Message("user", ["Before."]), Message("assistant", ["Said."]))
    await around(agent).run([NodeTask("n", 1, "Now.", history, "no line")])
    assert shown(client.calls[0])[:3] == ["user: Before.", "assistant: Said.", "user: Now."]
    assert shown(client.calls[0])[3].endswith("has failed: no line")


async def test_each_task_is_done_in_a_session_of_its_own() -> None:
    client, agent = clerk(["first", "second"])
    tasks = [NodeTask("n", 0, "one"), NodeTask("n", 1, "two")]
    results = (await around(agent).run(tasks)).get_outputs()
    assert [each.visit for each in results] == [0, 1]
    assert [shown(call) for call in client.calls] == [["user: one"], ["user: two"]]


async def test_an_agent_that_is_none_of_ours_can_be_a_text_node() -> None:
    result = outcome(await around(Stranger(name="stranger")).run("Hello."))
    assert result.outputs == {"answer": "heard ['Hello.']"}


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"output": TICKET}, "structured output"),
        ({"output": TICKET_BY_TOOL}, "structured output"),
        ({"output": EITHER}, "several types"),
        ({"output": DESKS}, "router"),
        ({"instructions": "Be brief."}, "instructions"),
    ],
)
def test_what_only_an_agent_can_do_is_refused_when_the_node_is_made(more: dict[str, Any], why: str) -> None:
    with pytest.raises(TypeError, match=f"node 'n' .*{why}.*not a Stranger"):
        around(Stranger(name="stranger"), **more)


async def test_the_agent_that_was_given_is_not_changed() -> None:
    client, agent = clerk([BILLING], tools=[look_up])
    before = dict(agent.default_options)
    await around(agent, output=DESKS, instructions="Choose well.").run("Pay.")
    assert agent.default_options == before
    assert agent.middleware == []
    assert client.calls[0].options["instructions"] == "You are a clerk.\nChoose well."


async def test_a_structured_answer_is_put_out_by_field_and_as_a_whole() -> None:
    client, agent = clerk([Ticket(title="Lamp", urgency=2)])
    result = outcome(await around(agent, output=TICKET).run("The lamp is out."))
    whole = {"title": "Lamp", "urgency": 2}
    assert result.outputs == {**whole, "result": whole}
    assert result.text == '{"title": "Lamp", "urgency": 2}'
    assert client.calls[0].options["response_format"] is Ticket


async def test_a_structured_answer_can_be_given_by_a_tool() -> None:
    client, agent = clerk([ToolCall("answer_with_Ticket", title="Lamp")])
    result = outcome(await around(agent, output=TICKET_BY_TOOL).run("The lamp is out."))
    assert result.outputs == {"title": "Lamp", "urgency": 1, "result": {"title": "Lamp", "urgency": 1}}
    assert "matched_type" not in result.outputs
    assert client.calls[0].options["tool_choice"] == "required"
    assert [each.text for each in result.said] == ['{"title": "Lamp", "urgency": 1}']


async def test_an_answer_in_a_code_fence_is_read() -> None:
    _, agent = clerk(['```json\n{"title": "Lamp"}\n```'])
    assert outcome(await around(agent, output=TICKET).run("x")).outputs["title"] == "Lamp"


async def test_a_json_schema_will_do_for_a_type() -> None:
    client, agent = clerk(['{"sum": "much"}', '{"sum": 3, "lines": ["a", 1]}', '{"sum": 3, "lines": ["a"]}'])
    result = outcome(await around(agent, output=StructuredOutput(SCHEMA)).run("Bill."))
    assert result.outputs == {"sum": 3, "lines": ["a"], "result": {"sum": 3, "lines": ["a"]}}
    assert 'sum must satisfy type: "number"' in shown(client.calls[1])[-1]
    assert 'lines[1] must satisfy type: "string"' in shown(client.calls[2])[-1]


@pytest.mark.parametrize(
    "bad", ["no JSON at all", '{"urgency": 1}', "", '["a list"]', pytest.param("[" * 100_000, id="deep")]
)
async def test_an_answer_that_is_no_value_is_told_to_the_model_which_answers_again(bad: str) -> None:
    client, agent = clerk([bad, '{"title": "Lamp"}'])
    result = outcome(await around(agent, output=TICKET).run("The lamp is out."))
    assert result.outputs["title"] == "Lamp"
    assert shown(client.calls[1])[-1].startswith("user: Your answer can't be used: ")


async def test_a_model_is_told_twice_that_its_answer_is_no_value_and_then_the_node_fails() -> None:
    client, agent = clerk(["one", "two", "three", "four"])
    with pytest.raises(AgentInvalidResponseException, match=r"node 'n' has no answer.*told so 2 times"):
        await around(agent, output=TICKET).run("The lamp is out.")
    assert len(client.calls) == 3


async def test_a_secret_in_a_wrong_answer_is_in_no_error() -> None:
    _, agent = clerk(['{"title": "t", "urgency": "hunter2"}'] * 3)
    with pytest.raises(AgentInvalidResponseException) as caught:
        await around(agent, output=TICKET).run("x")
    assert "urgency" in str(caught.value)
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    ("call", "outputs"),
    [
        (ToolCall("answer_with_Ticket", title="Lamp"), {"title": "Lamp", "urgency": 1, "matched_type": "Ticket"}),
        (ToolCall("answer_with_Refusal", reason="no"), {"reason": "no", "matched_type": "Refusal"}),
    ],
)
async def test_an_answer_of_several_types_says_which_it_is(call: ToolCall, outputs: dict[str, Any]) -> None:
    _, agent = clerk([call])
    result = outcome(await around(agent, output=EITHER).run("The lamp is out."))
    whole = {key: value for key, value in outputs.items() if key != "matched_type"}
    assert result.outputs == {**outputs, "result": whole}


@pytest.mark.parametrize(
    "bad",
    [
        "words only",
        [ToolCall("answer_with_Ticket", title="Lamp"), ToolCall("answer_with_Refusal", reason="no")],
        [ToolCall("answer_with_Ticket", title="Lamp"), ToolCall("answer_with_Ticket", title="Bulb")],
        ToolCall("answer_with_Ticket", urgency=3),
        ToolCall("answer_with_Refusal"),
    ],
)
async def test_a_model_that_gives_none_or_several_or_a_wrong_one_is_asked_again(bad: Any) -> None:
    client, agent = clerk([bad, ToolCall("answer_with_Refusal", reason="no")])
    result = outcome(await around(agent, output=EITHER).run("The lamp is out."))
    assert result.outputs["matched_type"] == "Refusal"
    assert "Call exactly one of" in shown(client.calls[1])[-1]


async def test_the_same_choice_twice_is_one() -> None:
    _, agent = clerk([[BILLING, BILLING]])
    assert outcome(await around(agent, output=DESKS).run("Pay.")).outputs["handoff_target"] == "billing"


async def test_a_router_puts_out_whom_it_has_chosen_and_what_it_has_said() -> None:
    client, agent = clerk([["That is about money.", BILLING]])
    result = outcome(await around(agent, output=DESKS).run("Pay."))
    assert result.outputs == {"handoff_target": "billing", "answer": "That is about money."}
    assert [each.text for each in result.said] == ["That is about money."]
    told = {each.name: each.description for each in client.calls[0].options["tools"]}
    assert told == {"handoff_to_billing": "About money.", "handoff_to_tech": "About machines."}


@pytest.mark.parametrize("bad", ["I don't know.", [BILLING, TECH], ToolCall("handoff_to_nobody")])
async def test_a_router_that_chooses_none_or_several_is_asked_again(bad: Any) -> None:
    client, agent = clerk([bad, TECH])
    assert outcome(await around(agent, output=DESKS).run("Help.")).outputs["handoff_target"] == "tech"
    assert len(client.calls) == 2


async def test_a_router_that_never_chooses_fails_or_takes_the_default() -> None:
    client, agent = clerk(["one", "two", "three"])
    with pytest.raises(AgentInvalidResponseException, match="none of these tools: handoff_to_billing, handoff_to_tech"):
        await around(agent, output=DESKS).run("Help.")
    assert len(client.calls) == 3
    client, agent = clerk(["one", "two", "three"])
    result = outcome(await around(agent, output=Handoffs(DESKS.targets, "tech")).run("Help."))
    assert result.outputs == {"handoff_target": "tech", "answer": "three"}
    assert len(client.calls) == 3


async def test_a_model_may_use_its_other_tools_before_it_chooses_and_has_to_choose_then() -> None:
    client, agent = clerk([ToolCall("look_up", item="bill"), ToolCall("look_up", item="sum"), BILLING], tools=[look_up])
    assert outcome(await around(agent, output=DESKS).run("Pay.")).outputs["handoff_target"] == "billing"
    assert [call.options["tool_choice"] for call in client.calls] == ["required"] * 3


async def test_a_model_that_never_stops_looking_things_up_is_stopped() -> None:
    def looks(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
        del messages
        return "Well." if options["tool_choice"] == "none" else ToolCall("look_up", item="bill")

    client = ScriptedChatClient(looks, function_invocation_configuration={"max_iterations": 3})
    agent = Agent(client, name="clerk", tools=[look_up])
    with pytest.raises(AgentInvalidResponseException, match="none of these tools"):
        await around(agent, output=DESKS).run("Pay.")
    assert len(client.calls) == 12


async def test_a_choice_that_was_made_in_the_history_is_none_of_this_task() -> None:
    history = (
        Message("assistant", [Content.from_function_call("old", "handoff_to_billing", arguments={})]),
        Message("tool", [Content.from_function_result("old", result={"chosen": "handoff_to_billing", "value": {}})]),
    )
    client, agent = clerk([TECH])
    result = outcome(await around(agent, output=DESKS).run([NodeTask("n", 1, "Again.", history)]))
    assert result.outputs["handoff_target"] == "tech"
    assert len(client.calls) == 1


async def test_a_middleware_that_forbids_a_choice_is_heard() -> None:
    @function_middleware
    async def never_billing(context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if context.function.name == "handoff_to_billing":
            context.result = "forbidden"
            return
        await call_next()

    client, agent = clerk([BILLING, TECH], middleware=[never_billing])
    assert outcome(await around(agent, output=DESKS).run("Pay.")).outputs["handoff_target"] == "tech"
    assert shown(client.calls[1])[-1] == "tool: forbidden"


@pytest.mark.parametrize(
    ("output", "error", "why"),
    [
        (Handoffs({"a.b": "", "a_b": ""}), ValueError, "'a.b' and 'a_b' would both be chosen"),
        (UnionOutput(()), ValueError, "has no types"),
        (UnionOutput((Ticket, Ticket)), ValueError, "both"),
        (StructuredOutput(str), TypeError, "pydantic model or a JSON schema"),
        (StructuredOutput({"properties": {"result": {}}}), ValueError, "'result'"),
    ],
)
def test_an_output_that_could_not_be_is_refused_when_the_node_is_made(
    output: Any, error: type[Exception], why: str
) -> None:
    with pytest.raises(error, match=why):
        around(clerk([])[1], output=output)


def test_a_tool_of_the_agent_that_has_the_name_of_a_choice_is_refused() -> None:
    @tool(name="handoff_to_tech")
    def mine() -> str:
        return "mine"

    with pytest.raises(ValueError, match=r"has a tool named 'handoff_to_tech'.*rename the tool"):
        around(clerk([], tools=[mine])[1], output=DESKS)


async def test_names_of_choices_are_such_as_providers_allow() -> None:
    client, agent = clerk([ToolCall("handoff_to_K_ln_2")])
    result = outcome(await around(agent, output=Handoffs({"Köln 2": ""})).run("Where?"))
    assert result.outputs["handoff_target"] == "Köln 2"
    assert [each.name for each in client.calls[0].options["tools"]] == ["handoff_to_K_ln_2"]


async def test_a_failure_of_a_node_that_stops_is_the_runs() -> None:
    _, agent = clerk([OSError("no line")])
    with pytest.raises(Exception, match="no line"):
        await around(agent).run("Write.")


@pytest.mark.parametrize("mode", ["isolate", "skip_dependents", "fallback"])
async def test_a_failure_of_a_node_that_does_not_stop_is_told_to_the_conductor(mode: Any) -> None:
    client, agent = clerk([OSError("no line"), OSError("no line")])
    workflow = around(agent, on_error=OnError(mode), retry=Retry(attempts=2, backoff=0.0))
    failed = outcome(await workflow.run("Write."))
    assert isinstance(failed, FailedMessage)
    assert (failed.executor_id, failed.attempts, failed.message) == ("n", 2, NodeTask("n", 0, "Write."))
    assert "no line" in failed.error.message
    assert len(client.calls) == 2


async def test_an_answer_that_is_never_a_value_is_a_failure_like_others() -> None:
    _, agent = clerk(["one", "two", "three"])
    failed = outcome(await around(agent, output=TICKET, on_error=OnError("isolate")).run("x"))
    assert failed.error.error_type == "AgentInvalidResponseException"


async def test_an_attempt_after_a_failure_begins_anew() -> None:
    client, agent = clerk([OSError("no line"), '{"title": "Lamp"}'])
    result = outcome(await around(agent, output=TICKET, retry=Retry(attempts=2, backoff=0.0)).run("x"))
    assert isinstance(result, NodeResult)
    assert result.outputs["title"] == "Lamp"
    assert [shown(call) for call in client.calls] == [["user: x"], ["user: x"]]


async def test_who_reads_a_stream_is_told_what_nodes_say_as_they_say_it() -> None:
    _, agent = clerk(["one two three four"])
    workflow = around(agent)
    told = [event async for event in workflow.run("Write.", stream=True)]
    pieces = [event for event in told if event.executor_id == "n" and hasattr(event.data, "contents")]
    assert "".join(event.data.text for event in pieces) == "one two three four"


async def test_a_union_of_schemas_is_told_by_their_titles() -> None:
    other = {"title": "Nothing", "type": "object"}
    _, agent = clerk([ToolCall("answer_with_Nothing")])
    result = outcome(await around(agent, output=UnionOutput((SCHEMA, other, Refusal))).run("x"))
    assert result.outputs == {"matched_type": "Nothing", "result": {}}
