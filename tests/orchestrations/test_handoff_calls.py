"""Tool calls beside a handoff, and invalid handoffs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.handoffs import agents, always, asked, desk, handed, said, shown

from perdure import (
    Agent,
    AgentInvalidResponseException,
    BaseChatClient,
    ChatResponse,
    Content,
    FileCheckpointStorage,
    FunctionInvocationContext,
    FunctionInvocationLayer,
    FunctionTool,
    Message,
    SqliteCheckpointStorage,
    UserInputRequiredException,
    function_middleware,
    tool,
)
from perdure.orchestrations import AgentRequestInfoResponse, HandoffBuilder
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from pathlib import Path

    from perdure import Workflow

BACK = [ToolCall("handoff_to_triage"), ToolCall("handoff_to_billing")]
BOTH = [ToolCall("handoff_to_billing"), ToolCall("handoff_to_tech")]


def ledger() -> tuple[list[str], dict[str, FunctionTool]]:
    """Tools of triage, and which of them were called."""
    done: list[str] = []

    @tool
    def look_up(item: str) -> str:
        done.append(f"look up {item}")
        return f"{item} is known"

    @tool
    def broken() -> str:
        done.append("broken")
        raise OSError("no line")

    @tool(approval_mode="always_require")
    def pay(amount: int) -> str:
        done.append(f"pay {amount}")
        return f"paid {amount}"

    return done, {"look_up": look_up, "broken": broken, "pay": pay}


async def test_a_model_that_hands_over_to_nobody_is_told_so_and_may_hand_over_again() -> None:
    script = {"triage": [ToolCall("handoff_to_nobody"), ToolCall("handoff_to_tech")], "tech": ["Try again."]}
    client, workflow = desk(script)
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech")]
    assert shown(client.calls[1])[-1] == "tool: there is no tool named 'handoff_to_nobody'"


async def test_a_handoff_with_arguments_is_a_handoff() -> None:
    call = ToolCall("handoff_to_tech", reason="refund", context={"order": 42}, self="me")
    _, workflow = desk({"triage": [call], "tech": ["Try again."]})
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech")]


async def test_a_model_that_never_names_a_known_agent_ends_with_the_user() -> None:
    _, workflow = desk({"triage": always(ToolCall("handoff_to_nobody"))})
    result = await workflow.run("Help.")
    assert handed(result) == []
    assert asked(result).source_executor_id == "triage"


async def test_an_agent_can_only_hand_over_to_whom_it_was_allowed_to() -> None:
    client, made = agents(
        {"triage": [ToolCall("handoff_to_tech"), ToolCall("handoff_to_billing")], "billing": ["Yes?"]}
    )
    workflow = HandoffBuilder(participants=made).add_handoff("triage", ["billing"]).with_start_agent("triage").build()
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "billing")]
    names = [[each.name for each in call.options.get("tools") or ()] for call in client.calls]
    assert names == [["handoff_to_billing"], ["handoff_to_billing"], []]


async def test_an_agent_that_hands_over_to_two_at_once_is_told_that_nobody_has_taken_over() -> None:
    script = {"triage": [BOTH, ToolCall("handoff_to_tech")], "tech": ["Try again."]}
    client, workflow = desk(script)
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech")]
    assert [call.agent for call in client.calls] == ["triage", "triage", "tech"]
    assert "handed over to 'billing', 'tech' at once" in shown(client.calls[1])[-1]
    assert not any("at once" in line for line in shown(client.calls[2]))


async def test_an_agent_that_does_not_decide_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")
    client, workflow = desk({"triage": always(BOTH)}, checkpoint_storage=storage)
    with pytest.raises(AgentInvalidResponseException, match="off to 'billing', 'tech' at once, after 2 corrections"):
        await workflow.run("Help.", run_id="r")
    assert len(client.calls) == 3


async def test_an_agent_that_has_decided_may_be_undecided_another_time() -> None:
    wavering = [BOTH, BOTH, ToolCall("handoff_to_tech")]
    script = {"triage": [*wavering, *wavering], "tech": [ToolCall("handoff_to_triage"), "Try again."]}
    _, workflow = desk(script)
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech"), ("tech", "triage"), ("triage", "tech")]


async def test_two_handoffs_to_one_agent_are_one() -> None:
    client, workflow = desk({"triage": [[ToolCall("handoff_to_tech"), ToolCall("handoff_to_tech")]]})
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech")]
    assert [call.agent for call in client.calls] == ["triage", "tech"]


async def test_a_tool_that_is_called_with_a_handoff_is_called_before_it() -> None:
    done, tools = ledger()
    script = {"triage": [[ToolCall("handoff_to_tech"), ToolCall("look_up", item="lamp")], "So it is."]}
    client, workflow = desk({**script, "tech": [ToolCall("handoff_to_triage")]}, tools={"triage": [tools["look_up"]]})
    result = await workflow.run("Help.")
    assert (done, handed(result)) == (["look up lamp"], [("triage", "tech"), ("tech", "triage")])
    assert shown(client.calls[1]) == ["user: Help."]
    assert shown(client.calls[2])[-1] == 'triage: {"handoff_to": "tech"} lamp is known'


async def test_a_tool_that_fails_beside_a_handoff_does_not_hold_it_up() -> None:
    done, tools = ledger()
    _, workflow = desk(
        {"triage": [[ToolCall("broken"), ToolCall("handoff_to_tech")]]}, tools={"triage": [tools["broken"]]}
    )
    result = await workflow.run("Help.")
    assert (done, handed(result)) == (["broken"], [("triage", "tech")])


@pytest.mark.parametrize("is_approved", [True, False])
@pytest.mark.parametrize("kind", [FileCheckpointStorage, SqliteCheckpointStorage])
async def test_a_handoff_waits_for_the_approval_of_a_call_beside_it(
    kind: type, tmp_path: Path, *, is_approved: bool
) -> None:
    done, tools = ledger()

    def build() -> Any:
        script = {"triage": [["One moment.", ToolCall("pay", amount=7), ToolCall("handoff_to_tech")]], "tech": ["Yes?"]}
        return desk(script, tools={"triage": [tools["pay"]]}, checkpoint_storage=kind(tmp_path / "runs"))

    first = await build()[1].run("Help.", run_id="r")
    assert (handed(first), asked(first).data.function_call.name) == ([], "pay")
    client, workflow = build()
    answer = {asked(first).request_id: asked(first).data.to_function_approval_response(is_approved)}
    result = await workflow.run(run_id="r", responses=answer)
    assert done == (["pay 7"] if is_approved else [])
    assert handed(result) == [("triage", "tech")]
    assert [call.agent for call in client.calls] == ["tech"]


async def test_a_stream_hands_over_after_an_approval_and_after_a_correction() -> None:
    done, tools = ledger()
    script = {"triage": [[ToolCall("pay", amount=7), ToolCall("handoff_to_tech")], "Yes?"], "tech": [BACK, BACK[0]]}
    _, workflow = desk(script, tools={"triage": [tools["pay"]]})
    first = [event async for event in workflow.run("Help.", stream=True)]
    [request] = [event for event in first if event.type == "request_info"]
    told = [event async for event in workflow.run(responses={request.request_id: True}, stream=True)]
    assert done == ["pay 7"]
    assert handed(told) == [("triage", "tech"), ("tech", "triage")]


async def test_a_call_that_needs_approval_is_asked_about_and_the_conversation_goes_on() -> None:
    done, tools = ledger()
    script = {"triage": [ToolCall("pay", amount=7), ["It is paid.", ToolCall("handoff_to_tech")]], "tech": ["Good."]}
    client, workflow = desk(script, tools={"triage": [tools["pay"]]})
    first = await workflow.run("Pay.")
    result = await workflow.run(responses={asked(first).request_id: True})
    assert (done, handed(result)) == (["pay 7"], [("triage", "tech")])
    assert shown(client.calls[-1]) == ["user: Pay.", "triage: It is paid."]


async def test_a_handoff_is_not_lost_beside_a_call_that_the_user_answers() -> None:
    where = FunctionTool(name="where_is_the_user")
    script = {"triage": [[ToolCall("where_is_the_user"), ToolCall("handoff_to_tech")], "You are passed on."]}
    _, workflow = desk(script, tools={"triage": [where]})
    first = await workflow.run("Help.")
    call = asked(first).data
    answer = Content.from_function_result(call.call_id, result="Oslo")
    result = await workflow.run(responses={asked(first).request_id: answer})
    assert (handed(result), said(result)[0]) == ([("triage", "tech")], "triage: You are passed on.")


async def test_a_handoff_is_not_lost_beside_a_tool_that_asks() -> None:
    @tool
    def sign(ctx: FunctionInvocationContext) -> str:
        if not ctx.answers:
            raise UserInputRequiredException(
                [Content.from_function_approval_request("ask", Content.from_function_call("c", "sign", arguments={}))]
            )
        return "signed"

    script = {"triage": [[ToolCall("sign"), ToolCall("handoff_to_tech")], "It is signed."]}
    _, workflow = desk(script, tools={"triage": [sign]})
    first = await workflow.run("Sign.")
    assert handed(first) == []
    result = await workflow.run(responses={asked(first).request_id: True})
    assert handed(result) == [("triage", "tech")]


async def test_a_tool_that_returns_what_looks_like_a_handoff_is_none() -> None:
    @tool
    def fetch() -> dict[str, str]:
        return {"handoff_to": "tech"}

    _, workflow = desk({"triage": [ToolCall("fetch"), "Nothing."]}, tools={"triage": [fetch]})
    result = await workflow.run("Help.")
    assert (handed(result), asked(result).source_executor_id) == ([], "triage")


async def test_a_conversation_that_shows_an_old_handoff_makes_none() -> None:
    call = Content.from_function_call("old", "handoff_to_tech", arguments={})
    old = [
        Message("assistant", ["I fetch tech.", call], author_name="triage"),
        Message("tool", [Content.from_function_result("old", result='{"handoff_to": "tech"}')]),
    ]
    _, workflow = desk({"triage": ["How can I help?"]})
    result = await workflow.run([Message("user", ["Help."]), *old, Message("user", ["Still there?"])])
    assert (handed(result), asked(result).source_executor_id) == ([], "triage")


async def test_a_middleware_can_prevent_a_handoff() -> None:
    @function_middleware
    async def stay(context: FunctionInvocationContext, call_next: Callable[[], Awaitable[None]]) -> None:
        if context.function.name == "handoff_to_tech":
            context.result = "tech is closed"
        else:
            await call_next()

    client, made = agents({"triage": [ToolCall("handoff_to_tech"), "Tech is closed."]}, middleware=[stay])
    workflow = HandoffBuilder(participants=made).with_start_agent("triage").build()
    result = await workflow.run("Help.")
    assert (handed(result), said(result)) == ([], ["triage: Tech is closed."])
    assert shown(client.calls[1])[-1] == "tool: tech is closed"


class Keeper(FunctionInvocationLayer, BaseChatClient):
    """A model whose provider keeps the conversation: it is told only what is new, and insists on results of calls."""

    STORES_BY_DEFAULT = True

    def __init__(self, *replies: list[Content]) -> None:
        super().__init__()
        self.replies = list(replies)
        self.shown: list[list[Message]] = []
        self.open: set[str | None] = set()

    def _inner_get_response(
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> Any:
        del stream, options, kwargs
        contents = [content for message in messages for content in message.contents]
        self.open -= {content.call_id for content in contents if content.type == "function_result"}
        assert not self.open, "the provider refuses: there is no result of a call"
        self.shown.append(list(messages))
        said = self.replies.pop(0)
        self.open = {content.call_id for content in said if content.type == "function_call"}
        return _kept(said)


async def _kept(said: list[Content]) -> ChatResponse[Any]:
    return ChatResponse(messages=[Message("assistant", said)], conversation_id="kept")


def calling(name: str, call_id: str) -> Content:
    return Content.from_function_call(call_id, name, arguments={})


async def test_a_provider_that_keeps_the_conversation_is_told_what_became_of_the_handoff() -> None:
    keeper = Keeper(
        [calling("handoff_to_tech", "1"), calling("handoff_to_billing", "2")],
        [calling("handoff_to_tech", "3")],
        [Content.from_text("Welcome back.")],
    )
    _, made = agents({"tech": [ToolCall("handoff_to_triage")]})
    made[0] = Agent(keeper, name="triage")
    workflow = HandoffBuilder(participants=made).with_start_agent("triage").build()
    result = await workflow.run("Help.")
    assert handed(result) == [("triage", "tech"), ("tech", "triage")]
    assert said(result)[-1] == "triage: Welcome back."
    assert [len(messages) for messages in keeper.shown] == [1, 2, 1]


@pytest.mark.parametrize("is_sent_back", [True, False])
async def test_a_provider_that_keeps_the_conversation_is_told_it_too_when_a_person_looks(
    tmp_path: Path, *, is_sent_back: bool
) -> None:
    keeper = Keeper([calling("handoff_to_tech", "1")], [Content.from_text("Well.")])

    def build() -> Workflow:
        _, made = agents({"tech": always(ToolCall("handoff_to_triage"))})
        made[0] = Agent(keeper, name="triage")
        builder = HandoffBuilder(participants=made, checkpoint_storage=SqliteCheckpointStorage(tmp_path / "runs.db"))
        return builder.with_start_agent("triage").with_request_info(agents=["triage"]).build()

    first = await build().run("Help.", run_id="r")
    answer = AgentRequestInfoResponse.from_strings(["No."] if is_sent_back else [])
    result = await build().run(run_id="r", responses={asked(first).request_id: answer})
    assert asked(result).data.agent_response.text == "Well."
    kinds = [content.type for message in keeper.shown[-1] for content in message.contents]
    assert kinds == (["function_result", "text"] if is_sent_back else ["function_result"])


@pytest.mark.parametrize("is_written_per_call", [True, False])
async def test_histories_are_whole_however_they_are_written(*, is_written_per_call: bool) -> None:
    done, tools = ledger()
    script = {
        "triage": [[ToolCall("look_up", item="lamp"), ToolCall("handoff_to_tech")], "Welcome back.", "Goodbye."],
        "tech": [ToolCall("handoff_to_triage")],
    }
    client, made = agents(
        script, tools={"triage": [tools["look_up"]]}, require_per_service_call_history_persistence=is_written_per_call
    )
    workflow = HandoffBuilder(participants=made).with_start_agent("triage").build()
    first = await workflow.run("Help.")
    await workflow.run(responses={asked(first).request_id: [Message("user", ["Thanks."])]})
    assert done == ["look up lamp"]
    assert [line.partition(": ")[2] for line in shown(client.calls[-1])] == [
        "Help.",
        "look_up handoff_to_tech",
        'lamp is known {"handoff_to": "tech"}',
        "Welcome back.",
        "Thanks.",
    ]
