"""Nodes over failures and crashes: recorded model and tool calls are reused, and a resume can succeed."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from tests.agent_workflows.nodes import DESKS, EITHER, TICKET, around, clerk, outcome, shown

from perdure import (
    Agent,
    AgentInvalidResponseException,
    BaseChatClient,
    ChatMiddlewareLayer,
    ChatResponse,
    Content,
    FunctionInvocationLayer,
    InMemoryCheckpointStorage,
    Message,
    Retry,
    tool,
)
from perdure.agent_workflows import Approval, NodeApprovalRequest
from perdure.testing import ToolCall
from perdure.testing.crash import sweep

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

GOOD = '{"title": "Lamp"}'


async def test_a_further_attempt_goes_on_where_the_one_before_has_given_up() -> None:
    client, agent = clerk(["one", "two", "three", "four", GOOD])
    result = outcome(await around(agent, output=TICKET, retry=Retry(attempts=2, backoff=0.0)).run("x"))
    assert result.outputs["title"] == "Lamp"
    assert len(client.calls) == 5, "nothing that was said is asked for again"


async def test_attempts_end() -> None:
    client, agent = clerk([str(number) for number in range(20)])
    with pytest.raises(AgentInvalidResponseException):
        await around(agent, output=TICKET, retry=Retry(attempts=3, backoff=0.0)).run("x")
    assert len(client.calls) == 9


async def test_a_run_that_has_failed_for_a_useless_answer_goes_on_when_it_is_resumed(
    storage: InMemoryCheckpointStorage,
) -> None:
    done: list[str] = []

    @tool
    def order(item: str) -> str:
        done.append(item)
        return "ordered"

    script = [ToolCall("order", item="lamp"), "one", "two", "three", GOOD]
    with pytest.raises(AgentInvalidResponseException):
        await around(clerk(script, tools=[order])[1], output=TICKET, storage=storage).run("x", run_id="r")
    client, agent = clerk(script, tools=[order])
    result = outcome(await around(agent, output=TICKET, storage=storage).run(run_id="r"))
    assert result.outputs["title"] == "Lamp"
    assert (len(client.calls), done) == (1, ["lamp"])


async def test_a_crash_at_any_moment_repeats_nothing() -> None:
    storages: dict[str, InMemoryCheckpointStorage] = {}
    said: dict[int, list[str]] = {}
    done: dict[int, list[str]] = {}

    async def life(storage: Any) -> Any:
        key = len(storages)

        @tool(if_interrupted="rerun")
        def look_up(item: str) -> str:
            done.setdefault(key, []).append(item)
            return f"{item} is known"

        script = [ToolCall("look_up", item="lamp"), "words", ToolCall("answer_with_Ticket", title="Lamp")]
        client, agent = clerk(script, tools=[look_up])
        workflow = around(agent, output=EITHER, approval=Approval(), storage=storage)
        try:
            waiting = await _begun(workflow, storage)
            requests = {each.request_id: NodeApprovalRequest.approve() for each in waiting.get_request_info_events()}
            result = await workflow.run(run_id="r", responses=requests) if requests else waiting
        finally:
            said.setdefault(key, []).extend(shown(call)[-1] for call in client.calls)
        return outcome(result).outputs["title"]

    found = await sweep(
        life, storage=lambda name: storages.setdefault(name, InMemoryCheckpointStorage()), expected="Lamp"
    )
    assert found.points > 10
    assert max(map(len, done.values())) <= 2
    # A call whose record the crash cut off may be made once more, and no other is.
    assert max(map(len, said.values())) <= 4
    # What the crashes left suspended is let go of here: collected while Python parses a module, it makes that fail.
    gc.collect()


async def _begun(workflow: Any, storage: Any) -> Any:
    if await storage.list_checkpoint_ids(workflow_name=workflow.name):
        return await workflow.run(run_id="r")
    return await workflow.run("x", run_id="r")


class KeptElsewhere(FunctionInvocationLayer[Any], ChatMiddlewareLayer[Any], BaseChatClient):
    """A model whose provider keeps the conversation, so it receives only new messages."""

    def __init__(self, replies: Sequence[Content]) -> None:
        super().__init__()
        self.replies = list(replies)
        self.told: list[list[str]] = []

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        del stream, options, kwargs

        async def answered() -> ChatResponse[Any]:
            self.told.append([f"{each.role}: {each.contents[0].type}" for each in messages])
            reply = self.replies[len(self.told) - 1]
            return ChatResponse(messages=[Message("assistant", [reply])], conversation_id="kept")

        return answered()


async def test_a_provider_that_keeps_the_conversation_is_shown_the_result_of_a_useless_choice() -> None:
    calls = [
        Content.from_function_call("1", "answer_with_Ticket", arguments="{}"),
        Content.from_function_call("2", "answer_with_Ticket", arguments=GOOD),
    ]
    client = KeptElsewhere(calls)
    result = outcome(await around(Agent(client, name="clerk"), output=EITHER).run("x"))
    assert result.outputs["title"] == "Lamp"
    assert client.told == [["user: text"], ["tool: function_result", "user: text"]]


async def test_arguments_that_are_no_json_are_told_to_the_model() -> None:
    calls = [
        Content.from_function_call("1", "answer_with_Ticket", arguments='{"title": '),
        Content.from_function_call("2", "answer_with_Ticket", arguments=GOOD),
    ]
    client = KeptElsewhere(calls)
    assert outcome(await around(Agent(client, name="clerk"), output=EITHER).run("x")).outputs["title"] == "Lamp"


async def test_a_client_without_middleware_is_asked_for_a_choice_all_the_same() -> None:
    class Plain(FunctionInvocationLayer[Any], BaseChatClient):
        """A client that knows nothing of middleware."""

        choices: list[Any] = []  # noqa: RUF012 - one test reads it

        def _inner_get_response(self, *, options: Mapping[str, Any], **kwargs: Any) -> Any:
            assert "middleware" not in kwargs
            self.choices.append(options.get("tool_choice"))

            async def answered() -> ChatResponse[Any]:
                call = Content.from_function_call("1", "handoff_to_tech", arguments={})
                return ChatResponse(messages=[Message("assistant", [call])])

            return answered()

    client = Plain()
    assert outcome(await around(Agent(client, name="clerk"), output=DESKS).run("x")).outputs["handoff_target"] == "tech"
    assert client.choices == ["required"]
