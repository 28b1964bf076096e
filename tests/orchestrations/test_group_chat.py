"""Group chats: messages, speakers, the end, and the events."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.chats import last_word, speakers, talker

from perdure import (
    AgentExecutor,
    AgentResponse,
    AgentResponseUpdate,
    InMemoryCheckpointStorage,
    Message,
    Retry,
    SqliteCheckpointStorage,
    WorkflowConvergenceException,
    WorkflowRunState,
    tool,
)
from perdure.orchestrations import (
    AgentRequestInfoResponse,
    GroupChatBuilder,
    GroupChatOrchestrator,
    GroupChatRequestSentEvent,
    GroupChatResponseReceivedEvent,
    GroupChatState,
    MaxMessages,
    SpeakerWas,
    TextMentioned,
)
from perdure.testing import ToolCall

if TYPE_CHECKING:
    from pathlib import Path

OVER = "The group chat has reached its termination condition."
LIMIT = "The group chat has reached the maximum number of rounds."


def two(**more: Any) -> GroupChatBuilder:
    chosen: dict[str, Any] = {"selection_func": "round_robin", "max_rounds": 3, **more}
    return GroupChatBuilder(participants=[talker("ada"), talker("bob")], **chosen)


async def test_participants_speak_in_turn_and_hear_each_other() -> None:
    result = await two(intermediate_output_from="all").build().run("Talk.")
    assert speakers(result) == ["ada", "bob", "ada"]
    said = [response.text for response in result.get_intermediate_outputs()]
    assert said == ["heard -", "heard - a", "heard - a b"]
    assert [each.messages for each in result.get_outputs()] == [
        [Message("assistant", [LIMIT], author_name="group_chat_orchestrator")]
    ]


async def test_events_tell_who_is_asked_and_who_has_spoken() -> None:
    result = await two(max_rounds=2).build().run("Talk.")
    assert [event.data for event in result if event.type == "group_chat"] == [
        GroupChatRequestSentEvent(0, "ada"),
        GroupChatResponseReceivedEvent(1, "ada"),
        GroupChatRequestSentEvent(1, "bob"),
        GroupChatResponseReceivedEvent(2, "bob"),
    ]


@pytest.mark.parametrize("kind", ["sync", "async"])
async def test_a_function_selects_by_what_was_said(kind: str) -> None:
    states: list[GroupChatState] = []

    def select(state: GroupChatState) -> str:
        states.append(state)
        return "bob" if state.conversation[-1].author_name != "bob" else "ada"

    async def select_later(state: GroupChatState) -> str:
        return select(state)

    result = await two(selection_func=select if kind == "sync" else select_later).build().run("Talk.")
    assert speakers(result) == ["bob", "ada", "bob"]
    assert [state.current_round for state in states] == [0, 1, 2]
    assert list(states[0].participants) == ["ada", "bob"]
    assert [message.author_name for message in states[2].conversation] == [None, "bob", "ada"]


@pytest.mark.parametrize("selected", ["eve", "", None, 3])
async def test_who_does_not_take_part_is_never_asked(selected: Any) -> None:
    def select(_: GroupChatState) -> Any:
        return selected

    with pytest.raises(RuntimeError, match=f"returned {selected!r}, which is not a participant"):
        await two(selection_func=select).build().run("Talk.")


async def test_a_condition_ends_the_chat_after_an_answer() -> None:
    result = await two(termination_condition=SpeakerWas("bob") & MaxMessages(3)).build().run("Talk.")
    assert speakers(result) == ["ada", "bob"]
    assert last_word(result) == OVER


async def test_a_condition_is_asked_about_the_input_too() -> None:
    builder = two().with_termination_condition(lambda conversation: conversation[0].text == "Stop.")
    result = await builder.build().run("Stop.")
    assert (speakers(result), last_word(result)) == ([], OVER)


async def test_descriptions_tell_what_participants_are_for() -> None:
    seen: list[dict[str, str]] = []

    def select(state: GroupChatState) -> str:
        seen.append(dict(state.participants))
        return "ada"

    ada = AgentExecutor(talker("ada", description="She counts."))
    await GroupChatBuilder(participants=[ada, talker("bob")], selection_func=select, max_rounds=1).build().run("Talk.")
    assert seen[0]["ada"] == "She counts."
    assert "no description" in seen[0]["bob"]


async def test_a_stream_is_told_updates_and_the_run_keeps_the_response() -> None:
    workflow = two(max_rounds=1, checkpoint_storage=InMemoryCheckpointStorage()).build()
    told = [event.data async for event in workflow.run("Talk.", run_id="r", stream=True) if event.type == "output"]
    assert [(type(each), each.text) for each in told] == [(AgentResponseUpdate, LIMIT)]
    [kept] = (await workflow.run(run_id="r")).get_outputs()
    assert isinstance(kept, AgentResponse)
    assert kept.text == LIMIT


async def test_lists_and_messages_begin_a_chat_and_an_empty_list_does_not() -> None:
    builder = two(max_rounds=1, intermediate_output_from=["ada"])
    for task in (Message("user", ["Talk."]), [Message("user", ["Talk."])]):
        result = await builder.build().run(task)
        assert result.get_intermediate_outputs()[0].text == "heard -"
    result = await builder.build().run([Message("user", ["Talk."]), Message("user", ["Please."])])
    assert result.get_intermediate_outputs()[0].text == "heard - -"
    with pytest.raises(ValueError, match="the list of messages is empty"):
        await builder.build().run([])


async def test_the_next_turn_knows_the_last_one_and_counts_anew(tmp_path: Path) -> None:
    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        builder = two(max_rounds=2, checkpoint_storage=storage, intermediate_output_from="all", name="talk")
        await builder.build().run("Talk.", run_id="r")
        await storage.send("r", "Go on.")
        result = await builder.build().run(run_id="r")
    # Everybody has heard the last answer of the turn before; the last word was for the outside.
    said = [response.text for response in result.get_intermediate_outputs()]
    assert said[-2:] == ["heard - a b -", "heard - a b - a"]
    assert last_word(result) == LIMIT


async def test_one_workflow_serves_several_runs() -> None:
    workflow = two(checkpoint_storage=InMemoryCheckpointStorage(), intermediate_output_from="all").build()
    for run_id in ("one", "two"):
        result = await workflow.run("Talk.", run_id=run_id)
        assert [each.text for each in result.get_intermediate_outputs()] == ["heard -", "heard - a", "heard - a b"]


async def test_only_words_are_told_to_the_others() -> None:
    @tool
    def count() -> int:
        """Count."""
        return 3

    ada = talker("ada", [["Let me count.", ToolCall("count")], "There are 3."], tools=[count])
    shown: list[Message] = []

    def listen(messages: Any, _: Any) -> str:
        shown.extend(messages)
        return "Good."

    builder = GroupChatBuilder(participants=[ada, talker("bob", listen)], selection_func="round_robin", max_rounds=2)
    await builder.build().run("Count.")
    assert [(each.author_name, each.text) for each in shown] == [
        (None, "Count."),
        ("ada", "Let me count."),
        ("ada", "There are 3."),
    ]
    assert {content.type for message in shown for content in message.contents} == {"text"}


async def test_a_tool_that_needs_approval_waits_for_it_and_the_chat_with_it(tmp_path: Path) -> None:
    @tool(approval_mode="always_require")
    def pay() -> str:
        """Pay."""
        return "paid"

    def chat(storage: SqliteCheckpointStorage) -> Any:
        ada = talker("ada", [ToolCall("pay"), "It is paid."], tools=[pay])
        return GroupChatBuilder(
            participants=[ada, talker("bob")],
            selection_func="round_robin",
            max_rounds=2,
            checkpoint_storage=storage,
            intermediate_output_from="all",
            name="paying",
        ).build()

    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        result = await chat(storage).run("Pay.", run_id="r")
        assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
        [request] = result.get_request_info_events()
        answers = {request.request_id: request.data.to_function_approval_response(approved=True)}
        result = await chat(storage).run(run_id="r", responses=answers)
    assert [each.text for each in result.get_intermediate_outputs()] == ["It is paid.", "heard - a"]


async def test_a_word_while_somebody_is_about_to_speak_is_heard_and_selects_nobody() -> None:
    storage = InMemoryCheckpointStorage()
    position = talker(
        "ada", [ToolCall("where"), "There."], tools=[tool(lambda: "", name="where", approval_mode="always_require")]
    )
    workflow = GroupChatBuilder(
        participants=[position, talker("bob")],
        selection_func="round_robin",
        max_rounds=2,
        checkpoint_storage=storage,
        intermediate_output_from="all",
    ).build()
    [request] = (await workflow.run("Where?", run_id="r")).get_request_info_events()
    await storage.send("r", "Hurry.")
    result = await workflow.run(run_id="r")
    assert result.get_final_state() is WorkflowRunState.IDLE_WITH_PENDING_REQUESTS
    result = await workflow.run(run_id="r", responses={request.request_id: True})
    assert [each.text for each in result.get_intermediate_outputs()][-2:] == ["There.", "heard - - a"]
    assert last_word(result) == LIMIT


async def test_a_person_looks_at_a_turn_before_the_others_hear_of_it() -> None:
    workflow = two(max_rounds=2, checkpoint_storage=InMemoryCheckpointStorage(), intermediate_output_from="all")
    workflow = workflow.with_request_info(agents=["ada"]).build()
    result = await workflow.run("Talk.", run_id="r")
    [request] = result.get_request_info_events()
    assert request.data.agent_response.text == "heard -"
    more = AgentRequestInfoResponse.from_strings(["Say more."])
    result = await workflow.run(run_id="r", responses={request.request_id: more})
    [request] = result.get_request_info_events()
    assert request.data.agent_response.text == "heard - a -"
    result = await workflow.run(run_id="r", responses={request.request_id: AgentRequestInfoResponse.approve()})
    assert result.get_intermediate_outputs()[-1].text == "heard - a"
    assert last_word(result) == LIMIT


async def test_many_rounds_are_no_endless_loop() -> None:
    result = await two(max_rounds=60).build().run("Talk.")
    assert len(speakers(result)) == 60


async def test_a_chat_is_an_agent_too() -> None:
    chat = two(termination_condition=TextMentioned("heard - a")).build().as_agent(name="chat")
    response = await chat.run("Talk.")
    assert response.text == OVER


async def test_a_model_that_fails_leaves_the_chat_as_it_was() -> None:
    ada = talker("ada", [ConnectionError("the line broke"), "Here I am."])
    builder = GroupChatBuilder(
        participants=[ada, talker("bob")], selection_func="round_robin", max_rounds=2, intermediate_output_from="all"
    )
    workflow = builder.with_checkpointing(InMemoryCheckpointStorage()).build()
    with pytest.raises(ConnectionError):
        await workflow.run("Talk.", run_id="r")
    result = await workflow.run(run_id="r")
    assert [each.text for each in result.get_intermediate_outputs()] == ["Here I am.", "heard - a"]


async def test_factories_make_new_participants_for_each_build() -> None:
    builder = GroupChatBuilder(
        participant_factories=[lambda: talker("ada"), lambda: talker("bob")],
        selection_func="round_robin",
        max_rounds=1,
        output_from=["ada"],
    )
    workflows = [builder.build(), builder.build()]
    assert workflows[0].name == workflows[1].name
    assert [(await each.run("Talk.")).get_outputs()[0].text for each in workflows] == ["heard -", "heard -"]


ADA, BOB = talker("ada"), talker("bob")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"participants": [ADA], "participant_factories": [talker]}, "either participants or participant_factories"),
        ({"participants": None}, "either participants or participant_factories"),
        ({"participants": []}, "participants is empty"),
        ({"participants": None, "participant_factories": []}, "participant_factories is empty"),
        ({"participants": [ADA, talker("ada")]}, "two participants are called 'ada'"),
        ({"participants": [talker("")]}, "no name"),
        ({"orchestrator_agent": BOB}, "give only one of"),
        ({"selection_func": None}, "the chat has no orchestrator"),
        ({"selection_func": None, "orchestrator_agent": talker("ada")}, "both have the name 'ada'"),
        ({"output_from": ["eve"]}, "'eve'"),
    ],
)
def test_a_chat_that_can_not_be_is_refused(given: dict[str, Any], reason: str) -> None:
    chosen: dict[str, Any] = {"participants": [ADA, BOB], "selection_func": "round_robin", **given}
    with pytest.raises(ValueError, match=reason):
        GroupChatBuilder(**chosen).build()


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"selection_func": "random"}, "'round_robin', not 'random'"),
        ({"orchestrator_agent": lambda: 3}, "orchestrator_agent must be a Agent"),
        ({"orchestrator": lambda: ADA}, "orchestrator must be a BaseGroupChatOrchestrator"),
        ({"selection_func": "round_robin", "termination_condition": 3}, "termination condition"),
    ],
)
def test_what_is_of_the_wrong_kind_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(TypeError, match=reason):
        GroupChatBuilder(participants=[ADA, BOB], **given).build()


class Seen:
    """Selects in turn, notes which conversations it was shown, and fails when it is told to."""

    def __init__(self, *, fails_at: int = 0) -> None:
        self.conversations: list[list[str]] = []
        self._fails_at = fails_at

    def __call__(self, state: GroupChatState) -> str:
        self.conversations.append([message.text for message in state.conversation])
        if len(self.conversations) == self._fails_at:
            raise ConnectionError("the line broke")
        return list(state.participants)[state.current_round % 2]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()], ids=["no storage", "a storage"])
async def test_one_run_knows_nothing_of_another(storage: Any) -> None:
    seen = Seen()
    workflow = two(selection_func=seen, max_rounds=1, checkpoint_storage=storage).build()
    for run_id in ("one", "two"):
        await workflow.run(f"The secret of {run_id}.", run_id=run_id)
    assert seen.conversations == [["The secret of one."], ["The secret of two."]]


async def test_one_session_knows_nothing_of_another() -> None:
    seen = Seen()
    agent = two(selection_func=seen, max_rounds=1).build().as_agent("chat")
    alice, bob = agent.create_session(), agent.create_session()
    await agent.run("My password is 1.", session=alice)
    await agent.run("I am bob.", session=bob)
    assert seen.conversations[-1] == ["I am bob."]
    await agent.run("It is me again.", session=alice)
    assert seen.conversations[-1][0] == "My password is 1."
    assert "I am bob." not in seen.conversations[-1]


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()], ids=["no storage", "a storage"])
async def test_what_was_said_before_a_failure_is_heard_once(storage: Any) -> None:
    seen = Seen(fails_at=2)
    chat = two(selection_func=seen, max_rounds=2, intermediate_output_from="all", checkpoint_storage=storage).build()
    with pytest.raises(ConnectionError):
        await chat.run("Talk.", run_id="r")
    result = await chat.run(run_id="r")
    assert seen.conversations[1:] == [["Talk.", "heard -"]] * 2
    assert [each.text for each in result.get_intermediate_outputs()] == ["heard - a"]


async def test_an_attempt_that_fails_leaves_nothing_in_the_conversation() -> None:
    seen = Seen(fails_at=2)
    leader = GroupChatOrchestrator("lead", selection_func=seen, max_rounds=2, retry=Retry(2, backoff=0))
    chat = GroupChatBuilder(participants=[talker("ada"), talker("bob")], orchestrator=leader).build()
    assert last_word(await chat.run("Talk.")) == LIMIT
    assert seen.conversations[1:] == [["Talk.", "heard -"]] * 2


async def test_the_last_word_is_for_the_outside_and_no_participant_is_told() -> None:
    chat = two(max_rounds=1, intermediate_output_from="all").build()
    await chat.run("Talk.")
    result = await chat.run("Go on.")
    assert [each.text for each in result.get_intermediate_outputs()] == ["heard - a -"]


@pytest.mark.parametrize(
    "limits",
    [
        {"selection_func": "round_robin", "termination_condition": MaxMessages(62)},
        {"selection_func": "round_robin", "termination_condition": MaxMessages(99) | MaxMessages(31, by="ada")},
        {"selection_func": "round_robin", "termination_condition": MaxMessages(62) & MaxMessages(3)},
        {"orchestrator": lambda: GroupChatOrchestrator("lead", max_rounds=61)},
    ],
    ids=["messages", "messages by one", "both", "rounds of one's own orchestrator"],
)
async def test_limits_of_the_program_are_not_cut_short(limits: dict[str, Any]) -> None:
    def well(*_: object) -> str:
        return "Well."

    chat = GroupChatBuilder(participants=[talker("ada", well), talker("bob", well)], **limits).build()
    assert len(speakers(await chat.run("Talk."))) == 61


async def test_the_supersteps_of_a_chat_can_be_limited() -> None:
    with pytest.raises(WorkflowConvergenceException, match="within 4 supersteps"):
        await two(max_rounds=9, max_iterations=4).build().run("Talk.")
    with pytest.raises(ValueError, match="max_iterations must be 1 or more, not 0"):
        two(max_iterations=0)
