"""A Magentic team follows its plan, restarts when it is stuck, and ends within its limits."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from tests.orchestrations.magentic_team import DONE, STUCK, CountingManager, Model, heard, ledger, members, team, told

from perdure import (
    Agent,
    AgentResponse,
    AgentResponseUpdate,
    Executor,
    InMemoryCheckpointStorage,
    Message,
    SqliteCheckpointStorage,
    WorkflowContext,
    handler,
    tool,
)
from perdure.orchestrations import (
    GroupChatParticipantMessage,
    GroupChatRequestMessage,
    GroupChatResponseMessage,
    MagenticAgentExecutor,
    MagenticBuilder,
    MagenticContext,
    MagenticOrchestrator,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    MaxMessages,
    StandardMagenticManager,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path


async def test_a_team_follows_its_plan_to_the_answer() -> None:
    model = Model(ledger("ada", "look it up"), ledger("bob", "write it"), DONE)
    result = await team(model).run("tides")
    [answer] = result.get_outputs()
    assert isinstance(answer, AgentResponse)
    assert (answer.text, answer.messages[0].author_name) == ("the answer", "boss")
    assert model.asked == ["FACTS?", "PLAN?", "PROGRESS?", "PROGRESS?", "PROGRESS?", "ANSWER?"]
    assert told(result) == ["plan_created", *["progress_ledger_updated"] * 3]
    asked = [event.data for event in result if event.type == "group_chat"]
    assert [(each.round_index, each.participant_name) for each in asked] == [*[(1, "ada")] * 2, *[(2, "bob")] * 2]


async def test_a_manager_is_shown_all_that_was_said_and_the_others_what_one_has_said() -> None:
    model = Model(ledger("ada", "look it up"), ledger("bob", "write it"), DONE)
    await team(model).run("tides")
    assert [message.text for message in model.seen[-1]] == [
        "tides",
        "tides / the facts / the plan",
        "look it up",
        "look it up",
        "write it",
        "look it up|write it",
        "ANSWER? tides",
    ]


async def test_a_team_asks_with_prompts_of_its_own_unless_others_are_given() -> None:
    asked: list[str] = []

    def model(messages: Sequence[Message], _: Mapping[str, Any]) -> Any:
        asked.append(messages[-1].text)
        return DONE if "JSON" in messages[-1].text else "something"

    manager = Agent(ScriptedChatClient(model), name="boss")
    await MagenticBuilder(participants=members(), manager_agent=manager).build().run("tides {x}")
    facts, plan, progress, final = asked
    assert all("tides {x}" in prompt for prompt in (facts, progress, final))
    assert all("- ada: ada helps\n- bob: bob helps" in prompt for prompt in (plan, progress))
    assert "ada, bob" in progress


async def test_who_reads_a_stream_is_told_an_update_by_the_orchestrator() -> None:
    events = [event async for event in team().run("tides", stream=True) if event.type == "output"]
    assert [(event.executor_id, type(event.data), event.data.text) for event in events] == [
        ("magentic_orchestrator", AgentResponseUpdate, "the answer")
    ]


async def test_outputs_of_participants_are_told_if_they_are_wanted() -> None:
    result = await team(output_from=["ada"]).run("tides")
    assert [output.text for output in result.get_outputs()] == ["go on", "the answer"]
    result = await team(intermediate_output_from="all").run("tides")
    assert [event.executor_id for event in result if event.type == "intermediate"] == ["ada"]


def test_a_workflow_is_called_the_same_in_every_process() -> None:
    assert team().name == team().name
    assert team(name="tides").name == "tides"


async def test_a_team_that_is_stuck_forgets_and_plans_anew() -> None:
    model = Model(ledger("ada", "dig"), ledger("ada", "dig deeper", moves=False), ledger("ada", "look up"), DONE)
    spoken: list[str] = []

    def speak(messages: Sequence[Message], options: Mapping[str, Any]) -> str:
        spoken.append(heard(messages, options))
        return "hm"

    result = await team(model, participants=members(speak), max_stall_count=0).run("tides")
    assert told(result).count("replanned") == 1
    assert spoken == ["dig", "look up"], "the second time nobody remembers the first"
    assert "NEW FACTS? the facts" in model.seen[4][-1].text
    assert model.seen[6][0].text == "tides / new facts / a new plan"


async def test_a_manager_makes_another_plan_of_the_one_that_failed_and_of_what_the_team_has_said() -> None:
    model = Model(ledger("ada", "dig"), ledger("ada", "dig deeper", moves=False), DONE)
    await team(model, participants=members(["only sand"]), max_stall_count=0).run("tides")
    said = ["tides", "tides / the facts / the plan", "dig", "only sand"]
    facts, plan, progress = ([message.text for message in shown] for shown in model.seen[4:7])
    assert facts == [*said, "NEW FACTS? the facts"]
    assert plan[:5] == facts
    assert progress == ["tides / new facts / a new plan", "PROGRESS? ada, bob"], "what did not lead on is forgotten"


async def test_a_manager_of_ones_own_is_shown_what_failed_when_the_reset_is_counted() -> None:
    class Impatient(CountingManager):
        async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
            found = await super().create_progress_ledger(magentic_context)
            return replace(found, is_in_loop=MagenticProgressLedgerItem("it is", answer=self.count == 2))

    manager = Impatient(max_stall_count=0)
    await team(manager=manager).run("tides")
    shown = next(context for context in manager.contexts if context.reset_count)
    assert [message.text for message in shown.chat_history] == ["tides", "a plan", "number 1", "number 1"]
    assert (shown.stall_count, shown.reset_count) == (0, 1)


async def test_the_prompt_for_another_plan_has_the_one_before() -> None:
    asked: list[str] = []

    def model(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
        asked.append(messages[-1].text)
        return "dig at the beach"

    manager = StandardMagenticManager(Agent(ScriptedChatClient(model), name="boss"))
    context = MagenticContext("tides", participant_descriptions={"ada": "helps"})
    await manager.plan(context)
    await manager.replan(context)
    assert "dig at the beach" in asked[-1]
    assert "- ada: helps" in asked[-1]


async def test_a_reset_gives_each_agent_another_session() -> None:
    sessions: list[str] = []

    class Noting(Agent[Any]):
        def run(self, *args: Any, session: Any = None, **more: Any) -> Any:
            sessions.append(session.session_id)
            return super().run(*args, session=session, **more)

    ada = Noting(ScriptedChatClient(heard), name="ada")
    model = Model(ledger(), ledger(), STUCK, ledger(), DONE)
    await team(model, participants=[ada], max_stall_count=0).run("tides")
    first, second, third = sessions
    assert first == second != third


async def test_rounds_that_get_on_make_up_for_those_that_do_not() -> None:
    stumbling = [STUCK, ledger(), STUCK, ledger(), STUCK, DONE]
    assert "replanned" not in told(await team(Model(*stumbling), max_stall_count=1).run("tides"))
    assert "replanned" in told(await team(Model(STUCK, STUCK, DONE), max_stall_count=1).run("tides"))


async def test_a_team_ends_after_so_many_rounds() -> None:
    result = await team(Model(ledger()), max_round_count=2).run("tides")
    [output] = result.get_outputs()
    assert output.text == "Workflow terminated due to reaching maximum round count."
    assert told(result).count("progress_ledger_updated") == 2


async def test_a_team_ends_after_so_many_resets() -> None:
    result = await team(Model(STUCK), max_stall_count=0, max_reset_count=2).run("tides")
    [output] = result.get_outputs()
    assert output.text == "Workflow terminated due to reaching maximum reset count."
    assert told(result).count("replanned") == 2


async def test_a_condition_ends_a_team_as_it_ends_a_chat() -> None:
    result = await team(Model(ledger()), termination_condition=MaxMessages(3)).run("tides")
    assert result.get_outputs()[0].text == "Workflow terminated due to reaching its termination condition."
    assert told(result).count("progress_ledger_updated") == 2


class Clerk(Executor):
    """A participant that is no agent."""

    def __init__(self) -> None:
        super().__init__("clerk")
        self.heard: list[str] = []

    @handler
    async def hear(self, news: GroupChatParticipantMessage, ctx: WorkflowContext) -> None:
        """Take a note."""
        del ctx
        self.heard = [*self.heard, *(message.text for message in news.messages)]

    @handler
    async def act(self, request: GroupChatRequestMessage, ctx: WorkflowContext[GroupChatResponseMessage]) -> None:
        """File what was said."""
        await ctx.send_message(
            GroupChatResponseMessage(Message("assistant", [f"filed: {request.additional_instruction}"]))
        )

    def on_checkpoint_save(self) -> dict[str, Any]:
        """The notes."""
        return {"heard": self.heard}

    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        """The notes."""
        self.heard = state["heard"]


async def test_an_executor_takes_part_beside_agents() -> None:
    clerk = Clerk()
    model = Model(ledger("ada", "think"), ledger("clerk", "file it"), DONE)
    await team(model, participants=[*members(), clerk]).run("tides")
    assert clerk.heard == ["think"]
    assert "filed: file it" in [message.text for message in model.seen[-1]]


async def test_a_tool_of_a_participant_waits_for_its_approval() -> None:
    @tool(approval_mode="always_require")
    def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    ada = Agent(ScriptedChatClient([ToolCall("pay", euros=3), "It is paid."]), name="ada", tools=[pay])
    model = Model()
    workflow = team(model, participants=[ada])
    result = await workflow.run("settle it")
    [request] = result.get_request_info_events()
    result = await workflow.run(
        responses={request.request_id: request.data.to_function_approval_response(approved=True)}
    )
    assert [output.text for output in result.get_outputs()] == ["the answer"]
    assert "It is paid." in [message.text for message in model.seen[-1]]


async def test_a_team_can_be_talked_to_as_an_agent() -> None:
    assert (await team().as_agent(name="crew").run("tides")).text == "the answer"


async def test_what_a_manager_keeps_is_there_after_a_restart(tmp_path: Path) -> None:
    storage = SqliteCheckpointStorage(tmp_path / "runs.db")

    def built() -> Any:
        return team(manager=CountingManager(), checkpoint_storage=storage, enable_plan_review=True)

    result = await built().run("tides", run_id="r")
    [request] = result.get_request_info_events()
    responses = {request.request_id: request.data.approve()}
    async for event in built().run(run_id="r", responses=responses, stream=True):
        if event.type == "superstep_completed":
            break
    manager = CountingManager()
    result = await team(manager=manager, checkpoint_storage=storage, enable_plan_review=True).run(run_id="r")
    assert result.get_outputs()[0].text == "after 3"
    assert manager.count == 3


async def test_runs_of_one_workflow_know_nothing_of_each_other() -> None:
    model = Model(ledger(), DONE, ledger(), DONE)
    workflow = team(model, checkpoint_storage=InMemoryCheckpointStorage())
    for run_id in ("one", "two"):
        result = await workflow.run(run_id, run_id=run_id)
        assert result.get_outputs()[0].text == "the answer"
        assert model.seen[-1][0].text == run_id


async def test_a_manager_is_given_a_copy_that_it_may_spoil() -> None:
    class Spoiling(CountingManager):
        async def create_progress_ledger(self, magentic_context: MagenticContext) -> Any:
            found = await super().create_progress_ledger(magentic_context.clone())
            for message in magentic_context.chat_history:
                message.contents.clear()
            magentic_context.reset()
            return found

    manager = Spoiling()
    await team(manager=manager).run("tides")
    assert [message.text for message in manager.contexts[-1].chat_history][:3] == ["tides", "a plan", "number 1"]
    assert (manager.contexts[-1].round_count, manager.contexts[-1].reset_count) == (3, 0)


async def test_a_task_needs_text() -> None:
    for wrong in ([Message("user", []), Message("user", [" "])], "  ", []):
        with pytest.raises(ValueError, match=r"task|empty"):
            await team().run(wrong)


async def test_several_messages_are_one_task() -> None:
    model = Model(DONE)
    await team(model).run([Message("user", ["one"]), Message("assistant", ["a remark"]), Message("user", ["two"])])
    assert model.seen[0][-1].text == "FACTS? one\n\ntwo"
    assert [message.text for message in model.seen[0][:-1]] == ["one", "a remark", "two"]


def test_a_team_needs_exactly_one_manager() -> None:
    boss = Agent(ScriptedChatClient(Model()), name="boss")
    with pytest.raises(ValueError, match="No manager configured"):
        MagenticBuilder(participants=members()).build()
    with pytest.raises(ValueError, match="Exactly one of"):
        MagenticBuilder(participants=members(), manager=CountingManager(), manager_agent=boss)
    with pytest.raises(TypeError, match="MagenticManagerBase"):
        MagenticBuilder(participants=members(), manager_factory=lambda: boss).build()  # pyright: ignore[reportArgumentType]


def test_limits_beside_a_manager_that_has_its_own_are_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    team(manager=CountingManager())
    assert not caplog.messages
    team(manager=CountingManager(), max_round_count=5)
    assert "are ignored" in caplog.text


def test_a_session_is_renewed_by_a_handler_alone() -> None:
    with pytest.raises(RuntimeError, match="renew it in a handler"):
        MagenticAgentExecutor(members()[0]).renew_session()


def test_a_factory_makes_a_manager_for_each_workflow() -> None:
    made: list[CountingManager] = []

    def make() -> CountingManager:
        made.append(CountingManager())
        return made[-1]

    builder = MagenticBuilder(participants=members(), manager_factory=make)
    orchestrators = [
        each for _ in range(2) for each in builder.build().executors.values() if isinstance(each, MagenticOrchestrator)
    ]
    assert len(made) == 2
    assert orchestrators[0] is not orchestrators[1]


def test_a_prompt_that_could_not_be_filled_in_is_refused_at_once() -> None:
    with pytest.raises(ValueError, match="final_answer_prompt can't be filled in: KeyError: 'nobody'"):
        team(final_answer_prompt="{nobody}")
    with pytest.raises(ValueError, match="brace twice"):
        StandardMagenticManager(members()[0], progress_ledger_prompt='{"answer": true}')
