"""Answers that don't fit the response format go back to the model a few times; then the run fails, and can go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from pydantic import BaseModel, ValidationError

from perdure import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    InvalidValueError,
    ResponseValueError,
    WorkflowBuilder,
    json_schema_faults,
    parse_answer,
    tool,
    value_faults,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Sequence

GOOD = '{"kind": "spam"}'


class Verdict(BaseModel):
    """The answer of the agents below."""

    kind: str


SCHEMA = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}


def judge(script: Sequence[Any], wanted: Any = Verdict, retries: int = 2, **more: Any) -> tuple[Any, Agent[Any]]:
    client = ScriptedChatClient(script, function_invocation_configuration={"max_output_retries": retries})
    return client, Agent(client, name="judge", default_options={"response_format": wanted}, **more)


@pytest.mark.parametrize("wanted", [Verdict, SCHEMA, {"type": "json_schema", "json_schema": {"schema": SCHEMA}}])
@pytest.mark.parametrize("bad", ["no JSON", '{"kind": 1}', "{}", ""])
async def test_an_answer_that_does_not_fit_is_given_back_to_the_model(wanted: Any, bad: str) -> None:
    client, agent = judge([bad, GOOD], wanted)
    response = await agent.run("Is it spam?")
    assert response.value == (Verdict(kind="spam") if wanted is Verdict else {"kind": "spam"})
    assert response.text == GOOD, "a refused answer is not part of the response"
    assert client.calls[1].messages[-1].text.startswith("Your answer can't be used: ")


async def test_json_in_a_code_fence_fits() -> None:
    client, agent = judge([f"```json\n{GOOD}\n```"])
    assert (await agent.run("Is it spam?")).value == Verdict(kind="spam")
    assert len(client.calls) == 1


async def test_the_number_of_retries_is_limited_and_can_be_set() -> None:
    for retries in (0, 1, 2):
        client, agent = judge(["one", "two", "three", GOOD], retries=retries)
        with pytest.raises(ResponseValueError, match=f"told so {retries} times"):
            await agent.run("Is it spam?")
        assert len(client.calls) == retries + 1


async def test_tool_calls_of_a_refused_answer_stay_in_the_response() -> None:
    done: list[str] = []

    @tool
    def look(item: str) -> str:
        """Look at it."""
        done.append(item)
        return "seen"

    _, agent = judge([ToolCall("look", item="mail"), "words", GOOD], tools=[look])
    response = await agent.run("Is it spam?")
    assert [message.role for message in response.messages] == ["assistant", "tool", "assistant"]
    assert done == ["mail"]


async def test_the_streamed_updates_of_a_refused_answer_are_taken_back() -> None:
    _, agent = judge(["some words", GOOD])
    stream = agent.run("Is it spam?", stream=True)
    updates = [update async for update in stream]
    [discarding] = [update for update in updates if update.discards]
    assert "".join(update.text for update in discarding.discards) == "some words"
    assert AgentResponse[Any].from_updates(updates).text == (await stream.get_final_response()).text == GOOD


async def test_a_workflow_streams_and_stores_only_the_answer_that_fits(storage: Any) -> None:
    _, agent = judge(["some words", GOOD])
    workflow = WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).build()
    stream = workflow.run("Is it spam?", stream=True)
    events = [event async for event in stream]
    assert [event for event in events if event.type == "attempt_discarded"]
    outputs = (await stream.get_final_response()).get_outputs()
    assert "".join(each.text for each in outputs if isinstance(each, AgentResponseUpdate)) == GOOD


async def test_a_run_that_failed_for_its_answers_goes_on_when_it_is_resumed(storage: Any) -> None:
    script = ["one", "two", "three", GOOD]

    def build() -> tuple[Any, Any]:
        client, agent = judge(script)
        return client, WorkflowBuilder(name="w", start_executor=agent, checkpoint_storage=storage).build()

    client, workflow = build()
    with pytest.raises(ResponseValueError):
        await workflow.run("Is it spam?", run_id="r")
    assert len(client.calls) == 3
    client, workflow = build()
    result = await workflow.run(run_id="r")
    assert (result.get_outputs()[-1].text, len(client.calls)) == (GOOD, 1)


def test_a_program_validates_an_answer_itself() -> None:
    assert parse_answer(f"```json\n{GOOD}\n```", Verdict) == Verdict(kind="spam")
    assert parse_answer(GOOD, SCHEMA) == {"kind": "spam"}
    with pytest.raises(InvalidValueError, match=r'^kind must satisfy type: "string"$'):
        parse_answer('{"kind": 1}', SCHEMA)
    with pytest.raises(ValidationError) as refused:
        parse_answer('{"kind": 1}', Verdict)
    assert str(InvalidValueError.of(refused.value)) == "kind: Input should be a valid string"
    assert value_faults({}, SCHEMA) == ["the value: 'kind' is a required property"]
    assert value_faults({"kind": 1}, {"properties": {"kind": {"$ref": "#/$defs/none"}}}) == []
    assert json_schema_faults({"required": "kind"}) == ['required must satisfy type: "array"']
