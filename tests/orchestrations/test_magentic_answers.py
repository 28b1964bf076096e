"""Answers of a manager's model are checked, and invalid ones are sent back with the reason."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.orchestrations.magentic_team import DONE, CountingManager, Model, ledger, members, team

from perdure import Agent, AgentInvalidResponseException, InMemoryCheckpointStorage, Message, tool
from perdure.orchestrations import (
    MagenticAnswerError,
    MagenticContext,
    MagenticProgressLedger,
    MagenticProgressLedgerItem,
    StandardMagenticManager,
)
from perdure.orchestrations.magentic.manager import parse_ledger
from perdure.testing import ScriptedChatClient, ToolCall

NAMES = ("ada", "bob")
GOOD = json.dumps(ledger("bob", "go"))


def without(name: str) -> dict[str, Any]:
    """A ledger that lacks an item."""
    return {key: item for key, item in ledger().items() if key != name}


USELESS = [
    ("Let me think about it.", "there is no JSON object in it"),
    ('{"is_request_satisfied": ', "there is no JSON object in it"),
    ("{" * 5000 + "}" * 5000, "there is no JSON object in it"),
    (f"{json.dumps(ledger('ada', 'go'))} No, wait: {GOOD}", "two ledgers in it that differ in 'next_speaker'"),
    (f"{GOOD} {json.dumps(DONE)}", "two ledgers in it that differ in 'is_request_satisfied'"),
    ('{"thought": "hm"}', "the answer of 'is_request_satisfied' is true or false, and there is none"),
    (without("is_in_loop"), "the answer of 'is_in_loop' is true or false, and there is none"),
    (without("is_request_satisfied"), "the answer of 'is_request_satisfied' is true or false, and there is none"),
    (without("next_speaker"), "the answer of 'next_speaker' is a text that is not empty, and there is none"),
    ({**ledger(), "is_in_loop": False}, "'is_in_loop' is an object with 'reason' and 'answer', not False"),
    (ledger(done="perhaps"), "the answer of 'is_request_satisfied' is true or false, not 'perhaps'"),
    (ledger(moves=1), "the answer of 'is_progress_being_made' is true or false, not '1'"),
    (ledger(loops=None), "the answer of 'is_in_loop' is true or false, and there is none"),
    (ledger(speaker=None), "the answer of 'next_speaker' is a text that is not empty, and there is none"),
    (ledger(speaker=["ada"]), "who is not in the team; there are 'ada', 'bob'"),
    (ledger("eve"), "'next_speaker' is 'eve', who is not in the team; there are 'ada', 'bob'"),
    (ledger("Ada"), "'next_speaker' is 'Ada', who is not in the team"),
    (ledger(speaker=True), "the answer of 'next_speaker' is a text that is not empty, not True"),
    (ledger("ada", " "), "the answer of 'instruction_or_question' is a text that is not empty, not ' '"),
]


@pytest.mark.parametrize(("answer", "reason"), USELESS, ids=[reason for _, reason in USELESS])
async def test_a_ledger_of_no_use_is_told_so_and_asked_for_again(answer: Any, reason: str) -> None:
    model = Model(answer, ledger("bob", "write"), DONE)
    result = await team(model).run("tides")
    assert result.get_outputs()[0].text == "the answer"
    assert reason in model.seen[3][-1].text
    assert [event.data.participant_name for event in result if event.type == "group_chat"] == ["bob", "bob"]


@pytest.mark.parametrize(("answer", "reason"), USELESS, ids=[reason for _, reason in USELESS])
async def test_a_model_that_never_gets_a_ledger_right_fails_the_run(answer: Any, reason: str) -> None:
    model = Model(answer)
    with pytest.raises(MagenticAnswerError) as caught:
        await team(model).run("tides")
    assert reason in str(caught.value)
    assert "gave no valid progress ledger in 3 attempts" in str(caught.value)
    assert model.asked == ["FACTS?", "PLAN?", *["PROGRESS?"] * 3], "no plan is made anew because of it"
    assert isinstance(caught.value, AgentInvalidResponseException)
    assert isinstance(caught.value, RuntimeError)


async def test_a_text_that_says_false_is_false() -> None:
    model = Model(ledger("ada", done="false", loops="False", moves="TRUE "), DONE)
    result = await team(model, max_stall_count=0).run("tides")
    assert [event.data.participant_name for event in result if event.type == "group_chat"] == ["ada", "ada"]


@pytest.mark.parametrize(
    "text",
    [
        f"```json\n{GOOD}\n```",
        f"Here it is: {GOOD} That is all.",
        f"{{a remark}} and then {GOOD}",
        str(ledger("bob", "go")),
        json.dumps(ledger(" bob ", "go")),
        json.dumps(ledger("bob", "go")).replace("so it is", 'with a \\" and a {'),
    ],
    ids=["fenced", "in prose", "after another brace", "as Python writes it", "with blanks", "with quotes"],
)
def test_a_ledger_is_found_however_it_is_wrapped(text: str) -> None:
    found = parse_ledger(text, NAMES)
    assert (found.next_speaker.answer, found.instruction_or_question.answer) == ("bob", "go")
    assert found.is_request_satisfied.answer is False


AGAIN = json.dumps(ledger(" bob ", "go", done="false")).replace("so it is", "for another reason")


@pytest.mark.parametrize(
    "text",
    [
        f"{GOOD}\n{GOOD}",
        f"{GOOD} or, in other words, {AGAIN}",
        f'{{"thought": "hm"}} {GOOD} {{"next_speaker_was": "eve"}}',
    ],
    ids=["the same", "other words", "objects that are none"],
)
def test_a_ledger_that_is_said_twice_is_one(text: str) -> None:
    assert parse_ledger(text, NAMES).next_speaker.answer == "bob"


def test_of_two_ledgers_that_are_done_nothing_else_counts() -> None:
    short = {"is_request_satisfied": {"answer": True}}
    assert (
        parse_ledger(f"{json.dumps(short)} {json.dumps(ledger(done='true'))}", NAMES).is_request_satisfied.answer
        is True
    )


def test_who_is_done_need_not_name_a_speaker() -> None:
    assert parse_ledger(json.dumps(ledger("", "", done=True)), NAMES).is_request_satisfied.answer is True


@pytest.mark.parametrize(
    "satisfied",
    [
        ledger(None, None, done=True),
        ledger(None, None, done="true", loops=None, moves=None),
        {"is_request_satisfied": {"answer": True}},
    ],
    ids=["null", "null everywhere", "missing"],
)
async def test_a_team_that_is_done_is_done_whatever_else_the_ledger_lacks(satisfied: Any) -> None:
    model = Model(ledger(), satisfied)
    assert (await team(model).run("tides")).get_outputs()[0].text == "the answer"
    assert model.asked.count("PROGRESS?") == 2


def test_words_of_a_ledger_that_is_done_are_no_truth_either() -> None:
    found = parse_ledger(json.dumps(ledger(done="true", loops="false", moves="False")), NAMES)
    assert (found.is_in_loop.answer, found.is_progress_being_made.answer) == (False, False)


@pytest.mark.parametrize("kind", ["facts", "plan", "new_facts", "new_plan", "answer"])
async def test_an_empty_answer_is_asked_for_again(kind: str) -> None:
    scripted: dict[str, Any] = {kind: ["", "  ", "at last"]}
    model = Model(ledger(moves=False), DONE, **scripted)
    await team(model, max_stall_count=0).run("tides")
    question = f"{kind.replace('_', ' ').upper()}?"
    assert model.asked.count(question) == 3
    last = len(model.asked) - 1 - model.asked[::-1].index(question)
    assert "it is empty" in model.seen[last][-1].text


async def test_a_plan_that_stays_empty_fails_the_run() -> None:
    with pytest.raises(MagenticAnswerError, match="no valid plan"):
        await team(Model(plan=[""])).run("tides")


async def test_a_manager_of_ones_own_is_told_as_well() -> None:
    manager = CountingManager(speakers=["eve", "ada"], plans=["", "a plan"])
    result = await team(manager=manager).run("tides")
    assert result.get_outputs()[0].text == "after 3"
    assert "it is empty" in manager.contexts[1].chat_history[-1].text
    assert "'next_speaker' is 'eve'" in manager.contexts[3].chat_history[-1].text
    assert not any("eve" in message.text for message in manager.contexts[-1].chat_history)


async def test_a_manager_of_ones_own_that_insists_fails_the_run() -> None:
    class Insisting(CountingManager):
        async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
            del magentic_context
            return MagenticProgressLedger.from_dict(ledger("eve"))

    with pytest.raises(MagenticAnswerError, match="'eve', who is not in the team"):
        await team(manager=Insisting()).run("tides")


class Stumbling(CountingManager):
    """A manager that can't read what it has thought, so many times."""

    def __init__(self, error: Exception, times: int) -> None:
        super().__init__()
        self.error, self.times = error, times

    async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
        self.times -= 1
        if self.times >= 0:
            raise self.error
        return await super().create_progress_ledger(magentic_context)


async def test_a_manager_of_ones_own_that_can_not_read_its_ledger_is_told_and_asked_again() -> None:
    manager = Stumbling(json.JSONDecodeError("no JSON", "?", 0), times=2)
    assert (await team(manager=manager).run("tides")).get_outputs()[0].text == "after 3"
    assert "no JSON" in manager.contexts[1].chat_history[-1].text


async def test_a_manager_of_ones_own_that_can_never_read_its_ledger_fails_the_run() -> None:
    with pytest.raises(MagenticAnswerError, match="in 3 attempts; about the last one: bad ledger"):
        await team(manager=Stumbling(ValueError("bad ledger"), times=3)).run("tides")
    patient = Stumbling(ValueError("bad ledger"), times=3)
    patient.progress_ledger_retry_count = 4
    assert (await team(manager=patient).run("tides")).get_outputs()[0].text == "after 3"


async def test_another_error_of_a_manager_of_ones_own_is_not_about_its_answer() -> None:
    manager = Stumbling(RuntimeError("out of order"), times=1)
    workflow = team(manager=manager, checkpoint_storage=InMemoryCheckpointStorage())
    with pytest.raises(RuntimeError, match="out of order"):
        await workflow.run("tides", run_id="r")
    assert (await workflow.run(run_id="r")).get_outputs()[0].text == "after 3"


async def test_words_of_a_manager_of_ones_own_are_no_truth() -> None:
    class Wordy(CountingManager):
        async def create_progress_ledger(self, magentic_context: MagenticContext) -> MagenticProgressLedger:
            found = await super().create_progress_ledger(magentic_context)
            found.is_request_satisfied = MagenticProgressLedgerItem("", "true" if self.count > 2 else "false")
            return found

    assert (await team(manager=Wordy()).run("tides")).get_outputs()[0].text == "after 3"


async def test_a_failed_run_fails_again_and_its_fork_asks_anew() -> None:
    model = Model("nonsense", "nonsense", "nonsense", DONE)
    workflow = team(model, checkpoint_storage=InMemoryCheckpointStorage())
    run = workflow.start("tides", run_id="r")
    with pytest.raises(MagenticAnswerError, match="fork the run"):
        await run.result()
    with pytest.raises(MagenticAnswerError, match="fork the run"):
        await workflow.twin().run(run_id="r")
    assert len(model.asked) == 5, "what was answered is recorded"
    result = await (await run.fork()).result()
    assert result.get_outputs()[0].text == "the answer"


async def test_a_failed_run_goes_on_with_more_tries() -> None:
    model = Model("nonsense", "nonsense", "nonsense", DONE)
    storage = InMemoryCheckpointStorage()
    with pytest.raises(MagenticAnswerError, match=r"run\(run_id=...\) and a larger progress_ledger_retry_count"):
        await team(model, checkpoint_storage=storage, name="crew").run("tides", run_id="r")
    patient = team(model, checkpoint_storage=storage, name="crew", progress_ledger_retry_count=4)
    assert (await patient.run(run_id="r")).get_outputs()[0].text == "the answer"
    assert model.asked == ["FACTS?", "PLAN?", *["PROGRESS?"] * 4, "ANSWER?"]


async def test_an_error_of_a_managers_model_is_no_reason_to_begin_anew() -> None:
    model = Model(ConnectionError("the line broke"), DONE)
    workflow = team(model, checkpoint_storage=InMemoryCheckpointStorage())
    with pytest.raises(ConnectionError):
        await workflow.run("tides", run_id="r")
    result = await workflow.run(run_id="r")
    assert result.get_outputs()[0].text == "the answer"
    assert model.asked == ["FACTS?", "PLAN?", "PROGRESS?", "PROGRESS?", "ANSWER?"]


async def test_a_manager_that_wants_an_approval_is_refused_with_what_to_do() -> None:
    @tool(approval_mode="always_require")
    def pay() -> str:
        """Pay."""
        return "paid"

    boss = Agent(ScriptedChatClient([ToolCall("pay")]), name="boss", tools=[pay])
    with pytest.raises(MagenticAnswerError, match="give those tools to a participant"):
        await team(manager_agent=boss).run("tides")


async def test_a_manager_can_be_asked_without_a_workflow() -> None:
    agent = members(["the tides", "- a step"])[0]
    manager = StandardMagenticManager(agent)
    context = MagenticContext("tides", [Message("user", ["tides"])], {"ada": "helps"})
    plan = await manager.plan(context.clone())
    assert (plan.role, plan.author_name) == ("assistant", "magentic_manager")
    assert "- a step" in plan.text
    assert context.chat_history == [Message("user", ["tides"])]
    restored = StandardMagenticManager(agent)
    restored.on_checkpoint_restore(json.loads(json.dumps(manager.on_checkpoint_save())))
    assert restored.task_ledger == manager.task_ledger
    with pytest.raises(RuntimeError, match="before replan"):
        await StandardMagenticManager(agent).replan(context)


def test_a_context_and_a_ledger_come_back_from_plain_values() -> None:
    context = MagenticContext("tides", [Message("user", ["tides"])], {"ada": "helps"}, 3, 2, 1)
    assert MagenticContext.from_dict(json.loads(json.dumps(context.to_dict()))) == context
    found = MagenticProgressLedger.from_dict(ledger())
    assert MagenticProgressLedger.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(ValueError, match="task"):
        MagenticContext.from_dict({})
