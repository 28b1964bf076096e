"""Group chats with custom executors and orchestrators."""

from __future__ import annotations

from typing import Any

import pytest
from tests.orchestrations.chats import last_word, speakers, talker
from tests.orchestrations.magentic_team import DONE, Model, ledger, team
from typing_extensions import override

from perdure import (
    AgentExecutorResponse,
    AgentResponse,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.orchestrations import (
    BaseGroupChatOrchestrator,
    GroupChatBuilder,
    GroupChatOrchestrator,
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
    GroupChatWorkflowContextOutT,
    MaxMessages,
    OrchestrationState,
    ParticipantRegistry,
    create_completion_message,
)


class Clerk(Executor):
    """Says how many messages it has heard."""

    @handler
    async def hear(self, said: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        ctx.scope().set("heard", [*ctx.scope().get("heard", []), *(each.text for each in said.messages)])

    @handler
    async def speak(self, _: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        said = f"I have heard {len(ctx.scope().get('heard', []))}"
        await ctx.send_message(GroupChatResponseMessage(Message("assistant", [said])))


class Person(Executor):
    """Asks the outside what to say."""

    @handler
    async def hear(self, said: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        ctx.scope().set("last", said.messages[-1].text)

    @handler
    async def speak(self, _: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.request_info(str(ctx.scope().get("last")), str)

    @response_handler
    async def answer(self, _: str, answer: str, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.send_message(GroupChatResponseMessage(Message("user", [answer])))


class Chatterbox(Executor):
    """Speaks when it is told something, too."""

    @handler
    async def hear(self, _: GroupChatParticipantMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.send_message(GroupChatResponseMessage(Message("assistant", ["I know!"])))

    @handler
    async def speak(self, _: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        await ctx.send_message(GroupChatResponseMessage(Message("assistant", ["Well."])))


async def test_an_executor_takes_part_by_its_id() -> None:
    builder = GroupChatBuilder(
        participants=[talker("ada"), Clerk("clerk")],
        selection_func="round_robin",
        max_rounds=3,
        intermediate_output_from=["ada"],
    )
    seen: list[list[str | None]] = []

    def look(conversation: list[Message]) -> bool:
        seen.append([message.author_name for message in conversation])
        return False

    result = await builder.with_termination_condition(look).build().run("Talk.")
    assert speakers(result) == ["ada", "clerk", "ada"]
    assert [each.text for each in result.get_intermediate_outputs()] == ["heard -", "heard - a c"]
    assert seen[-1] == [None, "ada", "clerk", "ada"]


async def test_a_person_takes_part_and_the_chat_waits_for_them_in_any_process(tmp_path: Any) -> None:
    def chat(storage: Any) -> Any:
        return GroupChatBuilder(
            participants=[talker("ada"), Person("person")],
            selection_func="round_robin",
            max_rounds=3,
            checkpoint_storage=storage,
            intermediate_output_from=["ada"],
            name="with a person",
        ).build()

    async with SqliteCheckpointStorage(tmp_path / "runs.db") as storage:
        [request] = (await chat(storage).run("Talk.", run_id="r")).get_request_info_events()
        assert request.data == "heard -"
        result = await chat(storage).run(run_id="r", responses={request.request_id: "Good."})
    assert result.get_intermediate_outputs()[-1].text == "heard - a p"


async def test_who_speaks_out_of_turn_is_heard_and_never_two_are_asked_at_once() -> None:
    builder = GroupChatBuilder(
        participants=[talker("ada"), Chatterbox("box")], selection_func=lambda _: "ada", max_rounds=2
    )
    result = await builder.with_termination_condition(MaxMessages(9)).build().run("Talk.")
    assert speakers(result) == ["ada", "ada"]
    assert "maximum" in last_word(result)


class Deaf(Executor):
    @handler
    async def hear(self, said: str, ctx: WorkflowContext) -> None:
        """Takes none of the messages of a chat."""


def test_an_executor_that_can_not_be_asked_is_refused() -> None:
    builder = GroupChatBuilder(participants=[Deaf("deaf")], selection_func="round_robin")
    with pytest.raises(ValueError, match=r"executor 'deaf' can't take part.*GroupChatRequestMessage"):
        builder.build()


class Greeter(Executor):
    """Takes requests to speak, and no messages of others."""

    @handler
    async def speak(self, request: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        said = f"hello {request.additional_instruction or 'all'}"
        await ctx.send_message(GroupChatResponseMessage(Message("assistant", [said])))


async def test_an_executor_that_only_takes_requests_speaks_in_a_chat() -> None:
    chat = GroupChatBuilder(
        participants=[talker("ada"), Greeter("greeter")],
        selection_func="round_robin",
        max_rounds=3,
        intermediate_output_from=["ada"],
    ).build()
    result = await chat.run("Talk.")
    assert result.get_intermediate_outputs()[-1].text == "heard - a g"
    assert not [event for event in result if event.type == "undelivered"]


async def test_an_executor_that_only_takes_requests_speaks_in_a_magentic_team() -> None:
    model = Model(ledger("ada"), ledger("greeter", "Bob"), DONE)
    result = await team(model, participants=[talker("ada"), Greeter("greeter")]).run("Talk.")
    assert "hello Bob" in [message.text for message in model.seen[-1]]
    assert not [event for event in result if event.type == "undelivered"]


class Survey(BaseGroupChatOrchestrator):
    """Asks all of them at once, and ends with what they said. It is written as for the reference."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.answers: dict[str, str] = {}

    @override
    async def _handle_messages(
        self, messages: list[Message], ctx: WorkflowContext[GroupChatWorkflowContextOutT, Any]
    ) -> None:
        self._append_messages(messages)
        await self._broadcast_messages_to_participants(messages, ctx)
        for name in self._participant_registry.participants:
            await self._send_request_to_participant(name, ctx, additional_instruction="Be brief.")
        self._increment_round()

    @override
    async def _handle_response(
        self,
        response: AgentExecutorResponse | GroupChatResponseMessage,
        ctx: WorkflowContext[GroupChatWorkflowContextOutT, Any],
    ) -> None:
        said = self._process_participant_response(response)
        self._append_messages(said)
        self.answers[ctx.get_source_executor_id()] = said[-1].text
        if await self._check_terminate_and_yield(ctx) or len(self.answers) < len(
            self._participant_registry.participants
        ):
            return
        told = "; ".join(f"{name}: {answer}" for name, answer in sorted(self.answers.items()))
        await ctx.yield_output(AgentResponse(messages=[self._create_completion_message(told)]))

    @override
    def _snapshot_pattern_metadata(self) -> dict[str, Any]:
        return {"answers": dict(self.answers)}

    @override
    def _restore_pattern_metadata(self, metadata: dict[str, Any]) -> None:
        self.answers = metadata["answers"]


def survey(orchestrator: Any, **more: Any) -> GroupChatBuilder:
    return GroupChatBuilder(participants=[talker("ada"), Clerk("clerk")], orchestrator=orchestrator, **more)


@pytest.mark.parametrize("orchestrator", [Survey("survey"), lambda: Survey("survey")])
async def test_an_orchestrator_of_ones_own_leads_the_chat(orchestrator: Any) -> None:
    result = await survey(orchestrator).build().run("Talk.")
    assert last_word(result) == "ada: heard - -; clerk: I have heard 1"
    assert result.get_outputs()[0].messages[0].author_name == "survey"


async def test_an_orchestrator_of_ones_own_survives_with_what_it_adds() -> None:
    storage = InMemoryCheckpointStorage()
    participants = [talker("ada", [ConnectionError("the line broke"), "Here."]), Clerk("clerk")]
    workflow = GroupChatBuilder(
        participants=participants, orchestrator=Survey("survey"), checkpoint_storage=storage
    ).build()
    with pytest.raises(ConnectionError):
        await workflow.run("Talk.", run_id="r")
    assert last_word(await workflow.run(run_id="r")) == "ada: Here.; clerk: I have heard 1"
    workflow = survey(Survey("survey"), checkpoint_storage=storage).build()
    assert last_word(await workflow.run("Talk.", run_id="s")) == "ada: heard - -; clerk: I have heard 1"


async def test_what_an_orchestrator_of_ones_own_adds_belongs_to_the_run_without_a_storage_too() -> None:
    leader = Survey("survey")
    participants = [talker("ada", [ConnectionError("the line broke"), "Here."]), Clerk("clerk")]
    workflow = GroupChatBuilder(participants=participants, orchestrator=leader).build()
    with pytest.raises(ConnectionError):
        await workflow.run("Talk.", run_id="r")
    assert last_word(await workflow.run(run_id="r")) == "ada: Here.; clerk: I have heard 1"
    result = await workflow.run("Talk.", run_id="s")
    # With the answers of the other run it would have ended with the first of its own, and again with the second.
    assert [each.text for each in result.get_outputs()] == ["ada: Here.; clerk: I have heard 1"]


class Chair(BaseGroupChatOrchestrator):
    """Asks a person who speaks next; it has a response handler of its own, and a rule that it was made with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._append_messages([Message("system", ["Be polite."])])

    @override
    async def _handle_messages(
        self, messages: list[Message], ctx: WorkflowContext[GroupChatWorkflowContextOutT, Any]
    ) -> None:
        self._append_messages(messages)
        await self._broadcast_messages_to_participants(messages, ctx)
        await ctx.request_info("Who speaks?", str)

    @override
    async def _handle_response(
        self,
        response: AgentExecutorResponse | GroupChatResponseMessage,
        ctx: WorkflowContext[GroupChatWorkflowContextOutT, Any],
    ) -> None:
        self._append_messages(self._process_participant_response(response))
        said = " / ".join(message.text for message in self._get_conversation())
        await self._yield_completion(ctx, self._create_completion_message(f"{self._round_index}: {said}"))

    @response_handler
    async def chosen(self, _: str, name: str, context: WorkflowContext[GroupChatWorkflowContextOutT, Any]) -> None:
        self._append_messages([Message("user", [f"{name}, please."])])
        self._increment_round()
        await self._send_request_to_participant(name, context)


@pytest.mark.parametrize("storage", [None, InMemoryCheckpointStorage()], ids=["no storage", "a storage"])
async def test_a_handler_that_a_subclass_adds_keeps_what_it_does(storage: Any) -> None:
    workflow = survey(Chair("chair"), checkpoint_storage=storage).build()
    for run_id in ("one", "two"):
        [request] = (await workflow.run("Talk.", run_id=run_id)).get_request_info_events()
        result = await workflow.run(run_id=run_id, responses={request.request_id: "clerk"})
        assert last_word(result) == "1: Be polite. / Talk. / clerk, please. / I have heard 1"


def test_an_orchestrator_handles_one_message_at_a_time() -> None:
    with pytest.raises(ValueError, match="orchestrator 'survey' must handle one message at a time"):
        Survey("survey", max_concurrency=2)


async def test_the_builder_gives_an_orchestrator_what_it_lacks() -> None:
    result = await survey(Survey("survey")).with_termination_condition(MaxMessages(2)).build().run("Talk.")
    assert "termination condition" in result.get_outputs()[0].text
    given = GroupChatOrchestrator("lead", max_rounds=1)
    result = await survey(given, max_rounds=5).build().run("Talk.")
    assert speakers(result) == ["ada"]


async def test_an_orchestrator_that_does_nothing_says_what_it_needs() -> None:
    with pytest.raises(NotImplementedError, match="_handle_messages"):
        await survey(BaseGroupChatOrchestrator("bare")).build().run("Talk.")


def test_an_orchestrator_that_knows_others_is_refused() -> None:
    registry = ParticipantRegistry([talker("ada"), talker("eve")])
    with pytest.raises(ValueError, match="knows the participants 'ada', 'eve', but the chat has 'ada', 'clerk'"):
        survey(Survey("survey", registry)).build()
    with pytest.raises(ValueError, match="no participant is called 'bob'"):
        registry.is_agent("bob")
    with pytest.raises(ValueError, match="two participants are called 'ada'"):
        ParticipantRegistry([talker("ada"), talker("ada")])
    assert registry.is_agent("ada")
    assert not ParticipantRegistry([Clerk("clerk")]).is_agent("clerk")


def test_what_an_orchestrator_keeps_can_be_read_back() -> None:
    task = Message("user", ["Talk."])
    state = OrchestrationState([task], 3, "lead", {"a": 1}, task, ["ada"])
    assert OrchestrationState.from_dict(state.to_dict()) == state
    assert "task" not in OrchestrationState().to_dict()
    assert create_completion_message(author_name="lead").text == "Conversation completed."
