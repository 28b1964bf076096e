"""`AgentExecutor` in attempts and streams: what is told once, what is forgotten, and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.activation.solo import lone
from tests.agents.talkers import agent

from perdure import InMemoryCheckpointStorage, Retry, Secret, WorkflowBuilder, WorkflowContext, handler
from perdure.agents import (
    Agent,
    AgentExecutor,
    AgentExecutorRequest,
    AgentResponse,
    Content,
    FunctionTool,
    Message,
    tool,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_AT_ONCE = Retry(3, 0)


def look() -> str:
    return "seen"


def flaky(*replies: Any) -> ScriptedChatClient:
    """A model that gives these replies in order, whatever it is shown."""
    left = list(replies)
    return ScriptedChatClient(lambda _messages, _options: left.pop(0))


async def told_by(workflow: Any, said: str) -> list[Content]:
    result = await workflow.run(said, stream=True).get_final_response()
    return [content for update in result.get_outputs() for content in update.contents]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()])
async def test_a_turn_that_is_tried_again_has_nothing_twice_in_its_result(storage: Any) -> None:
    client = flaky(["Let me look", ToolCall("look")], ConnectionError("down"), "the answer")
    node = AgentExecutor(Agent(client, name="a", tools=look), retry=_AT_ONCE)
    told = await told_by(WorkflowBuilder(start_executor=node, checkpoint_storage=storage).build(), "go")
    assert "".join(content.text or "" for content in told) == "Let me lookthe answer"
    assert [content.type for content in told].count("function_result") == 1


async def test_another_reader_of_a_run_is_told_all_of_a_turn_that_failed_for_another() -> None:
    client = flaky(["Let me look", ToolCall("look")], ConnectionError("down"), "the answer")
    workflow = WorkflowBuilder(
        name="w", start_executor=Agent(client, name="a", tools=look), checkpoint_storage=InMemoryCheckpointStorage()
    ).build()
    with pytest.raises(ConnectionError):
        await told_by(workflow, "go")
    events = [event async for event in workflow.run(run_id=workflow.run_id, stream=True) if event.type == "output"]
    assert "".join(event.data.text for event in events) == "Let me lookthe answer"


async def test_a_reset_that_an_attempt_failed_after_is_done_by_the_next() -> None:
    def said(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        shown.append([message.text for message in messages])
        return ConnectionError("down") if len(shown) == 1 else "yes"

    shown: list[list[str]] = []
    node = AgentExecutor(Agent(ScriptedChatClient(said), name="a"), retry=_AT_ONCE)
    workflow = WorkflowBuilder(start_executor=node, checkpoint_storage=InMemoryCheckpointStorage()).build()
    await workflow.run(AgentExecutorRequest([Message("user", ["old"])], should_respond=False))
    node.reset()
    await workflow.run("new")
    assert shown == [["new"], ["new"]]
    await workflow.run(AgentExecutorRequest([Message("user", ["kept"])], should_respond=False))
    await workflow.run("newest")
    assert shown[-1][-2:] == ["kept", "newest"]


async def test_a_secret_that_is_not_said_to_be_one_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    workflow = WorkflowBuilder(start_executor=agent("a"), checkpoint_storage=InMemoryCheckpointStorage()).build()
    given = {"api_key": "sk-1", "max_tokens": 5, "tokens": "some"}
    await workflow.run("hi", client_kwargs=given, function_invocation_kwargs={"token": Secret("sk-2")})
    assert "client_kwargs.api_key looks like a secret" in caplog.text
    assert caplog.text.count("looks like a secret") == 1
    assert "sk-" not in caplog.text


async def test_a_session_in_the_state_of_the_run_has_a_turn_once_though_the_handler_was_tried_again() -> None:
    failures = [ConnectionError("down"), ConnectionError("down")]
    talker = agent("a")

    async def do(text: str, ctx: WorkflowContext[Any, Any]) -> None:
        session = ctx.get_state("session") or talker.create_session()
        await talker.run(text, session=session)
        ctx.set_state("session", session)
        if failures:
            raise failures.pop()
        await ctx.yield_output([message.text for message in session.state["in_memory"]["messages"]])

    workflow = lone(do, storage=InMemoryCheckpointStorage(), retry=_AT_ONCE)
    assert (await workflow.run("hi")).get_outputs() == [["hi", "1:hi"]]
    assert (await workflow.run("ho")).get_outputs() == [["hi", "1:hi", "ho", "3:ho"]]


async def test_a_subclass_may_have_any_private_names_of_its_own() -> None:
    class Busy(AgentExecutor):
        def __init__(self) -> None:
            super().__init__(agent("busy"))
            self._cache = self._context = self._ask = self._respond = self._reset = self._live = "mine"

        @handler
        async def from_str(self, text: str, ctx: WorkflowContext[Any, Any]) -> None:
            await super().from_str(f"{text} {self._cache}", ctx)

    (output,) = (await WorkflowBuilder(start_executor=Busy()).build().run("hi")).get_outputs()
    assert output.text == "1:hi mine"


@pytest.mark.parametrize(
    ("given", "session", "reason"),
    [
        (5, None, "AgentExecutor needs an agent .* not 5"),
        (agent("a"), {"state": {}}, "must be an AgentSession, not a dict"),
    ],
)
def test_what_is_no_agent_or_no_session_is_refused(given: Any, session: Any, reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        AgentExecutor(given, session=session)


@pytest.mark.parametrize("is_stream", [True, False])
async def test_a_turn_that_asks_tells_and_keeps_its_words_however_it_is_read(is_stream: bool) -> None:  # noqa: FBT001
    @tool(approval_mode="always_require")
    def pay() -> str:
        return "paid"

    agent, storage = Agent(flaky(["Well", ToolCall("pay")]), name="a", tools=pay), InMemoryCheckpointStorage()
    workflow = WorkflowBuilder(start_executor=agent, checkpoint_storage=storage).build()
    run: Any = workflow.run("go", run_id="r", stream=is_stream)
    events = [event async for event in run] if is_stream else list(await run)
    assert "".join(event.data.text for event in events if event.type == "output") == "Well"
    ((kept,),) = [event.data for event in events if event.type == "executor_completed"]
    assert [(type(kept), kept.text)] == [(AgentResponse, "Well")]
    outputs = [event.data async for event in storage.events("r") if event.type == "output"]
    assert [[content.type for message in output.messages for content in message.contents] for output in outputs] == [
        ["text"]
    ]


async def test_a_streamed_call_that_others_are_to_make_says_so() -> None:
    position = FunctionTool(name="position", description="Where the user is.", func=None)
    told = await told_by(
        WorkflowBuilder(start_executor=Agent(flaky(ToolCall("position")), name="a", tools=[position])).build(), "go"
    )
    (first, *_) = [content for content in told if content.type == "function_call"]
    assert first.user_input_request is True
    assert first.id == first.call_id
