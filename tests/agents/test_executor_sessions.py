"""The sessions of agents in a workflow: part of the run, and one for all executors that were given it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.agents.talkers import Model, agent
from tests.workflow.nodes import Context, node

from perdure import Log, WorkflowBuilder, WorkflowExecutor
from perdure.agents import AgentExecutor, AgentSession, Message
from perdure.agents.sessions.session import apply_changes, find_changes

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import Workflow


def alone(model: Model, storage: Any = None, session: AgentSession | None = None) -> Workflow:
    executor = AgentExecutor(agent("agent", model), session=session)
    return WorkflowBuilder(name="w", start_executor=executor, checkpoint_storage=storage).build()


def in_turn(model: Model, storage: Any = None) -> tuple[Workflow, AgentSession]:
    """Two agents with one session, one after the other."""
    session = AgentSession()
    first = AgentExecutor(agent("first", model), session=session)
    second = AgentExecutor(agent("second", model), session=session, context_mode="last_agent")
    builder = WorkflowBuilder(name="w", start_executor=first, checkpoint_storage=storage)
    return builder.add_edge(first, second).build(), session


def side_by_side(model: Model, storage: Any = None) -> tuple[Workflow, AgentSession]:
    """Two agents with one session, at the same time."""

    async def pass_on(message: Any, ctx: Context) -> None:
        await ctx.send_message(message)

    session, start = AgentSession(), node("start", pass_on)
    left, right = (AgentExecutor(agent(name, model), session=session) for name in ("left", "right"))
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage)
    return builder.add_fan_out_edges(start, [left, right]).build(), session


def history(session: AgentSession) -> list[str]:
    return [message.text for message in session.state["in_memory"]["messages"]]


async def test_an_agent_remembers_the_turns_of_its_run(storage: Any) -> None:
    model = Model()
    workflow = alone(model, storage)
    await workflow.run("one")
    await workflow.run("two")
    assert model.shown == [["one"], ["one", "1:one", "two"]]


async def test_without_a_storage_an_agent_remembers_as_well() -> None:
    model = Model()
    workflow = alone(model)
    await workflow.run("one")
    await workflow.run("two")
    assert model.shown == [["one"], ["one", "1:one", "two"]]


async def test_an_agent_remembers_in_another_process(open_on_disk: Callable[..., Any]) -> None:
    async with open_on_disk() as storage:
        await alone(Model(), storage).run("one", run_id="r")
    model, session = Model(), AgentSession()
    async with open_on_disk() as storage:
        run = alone(model, storage, session).start(run_id="r")
        await run.result()
        await run.send("two")
        await run.result()
    assert model.shown == [["one", "1:one", "two"]]
    assert history(session) == ["one", "1:one", "two", "3:two"]


async def test_two_runs_of_one_definition_do_not_hear_of_each_other(storage: Any) -> None:
    model = Model()
    workflow = alone(model, storage)
    await workflow.run("one", run_id="a")
    await workflow.run("other", run_id="b")
    assert model.shown == [["one"], ["other"]]


async def test_the_session_that_the_program_has_is_up_to_date_after_a_turn() -> None:
    session = AgentSession()
    session.state["mine"] = {"kept": True}
    await alone(Model(), session=session).run("one")
    assert (history(session), session.state["mine"]) == (["one", "1:one"], {"kept": True})


async def test_what_the_program_says_to_the_agent_in_between_is_not_lost() -> None:
    model, session = Model(), AgentSession()
    talker = agent("agent", model)
    workflow = WorkflowBuilder(start_executor=AgentExecutor(talker, session=session)).build()
    await workflow.run("one")
    await talker.run("aside", session=session)
    await workflow.run("two")
    assert history(session) == ["one", "1:one", "aside", "3:aside", "two", "5:two"]


async def test_a_turn_that_fails_leaves_nothing_in_the_session(storage: Any) -> None:
    def fail(_: Any) -> str:
        if len(model.shown) == 2:
            raise ConnectionError("no model")
        return "fine"

    model = Model(fail)
    workflow = alone(model, storage)
    await workflow.run("one", run_id="r")
    with pytest.raises(ConnectionError):
        await workflow.run("two")
    await workflow.run(run_id="r")
    assert model.shown == [["one"], ["one", "fine", "two"], ["one", "fine", "two"]]


async def test_one_session_of_several_executors_is_one(storage: Any) -> None:
    model = Model()
    workflow, session = in_turn(model, storage)
    await workflow.run("one")
    assert model.shown == [["one"], ["one", "1:one", "1:one"]]
    assert history(session) == ["one", "1:one", "1:one", "3:1:one"]


async def test_one_session_of_several_executors_is_one_after_a_restart(open_on_disk: Callable[..., Any]) -> None:
    async with open_on_disk() as storage:
        await in_turn(Model(lambda _: "said"), storage)[0].run("one", run_id="r")
    model = Model(lambda _: "more")
    async with open_on_disk() as storage:
        workflow, session = in_turn(model, storage)
        run = workflow.start(run_id="r")
        await run.result()
        await run.send("two")
        await run.result()
    assert model.shown[0] == ["one", "said", "said", "said", "two"]
    assert history(session) == ["one", "said", "said", "said", "two", "more", "more", "more"]


async def test_turns_side_by_side_in_one_session_are_both_kept_in_the_order_of_the_plan(storage: Any) -> None:
    model = Model(lambda messages: f"to {messages[-1].text}")
    workflow, session = side_by_side(model, storage)
    await workflow.run("one", run_id="r")
    assert history(session) == ["one", "to one", "one", "to one"]
    await workflow.run("two")
    assert model.shown[2:] == [["one", "to one", "one", "to one", "two"]] * 2
    assert history(session) == ["one", "to one", "one", "to one", "two", "to two", "two", "to two"]
    told = [event async for event in storage.events("r")]
    assert [event for event in told if event.type == "warning"] == []


async def test_turns_side_by_side_in_one_session_are_both_kept_without_a_storage() -> None:
    workflow, session = side_by_side(Model(lambda _: "yes"))
    await workflow.run("one")
    await workflow.run("two")
    assert history(session) == ["one", "yes", "one", "yes", "two", "yes", "two", "yes"]


async def test_a_session_in_the_state_of_a_run_is_not_what_others_see(storage: Any) -> None:
    await alone(Model(), storage).run("one", run_id="r")
    (checkpoint, *_) = reversed(await storage.list_checkpoints(workflow_name="w"))
    assert {key for key in checkpoint.state if not key.startswith("_")} == set()


async def test_a_history_is_not_copied_when_a_turn_goes_on_with_it() -> None:
    session = AgentSession()
    session.state["in_memory"] = {"messages": Log([Message("user", ["long ago"])])}
    long_ago = session.state["in_memory"]["messages"][0]
    workflow = alone(Model(), session=session)
    await workflow.run("one")
    await workflow.run("two")
    assert session.state["in_memory"]["messages"][0] is long_ago


async def test_what_was_decoded_of_a_history_is_not_decoded_again(storage: Any) -> None:
    session = AgentSession()
    workflow = alone(Model(lambda _: "said"), storage, session)
    # So many that a chunk of the history is full.
    for turn in range(8):
        await workflow.run(f"turn {turn}")
    first = session.state["in_memory"]["messages"][0]
    await workflow.run("the last")
    assert session.state["in_memory"]["messages"][0] is first
    assert len(history(session)) == 18


async def test_an_agent_inside_of_a_sub_workflow_remembers_in_another_process(open_on_disk: Callable[..., Any]) -> None:
    def nested(model: Model, storage: Any) -> Workflow:
        child = WorkflowExecutor(alone(model), "child", allow_direct_output=True)
        return WorkflowBuilder(name="parent", start_executor=child, checkpoint_storage=storage).build()

    async with open_on_disk() as storage:
        await nested(Model(), storage).run("one", run_id="r")
    model = Model()
    async with open_on_disk() as storage:
        run = nested(model, storage).start(run_id="r")
        await run.result()
        await run.send("two")
        outputs = (await run.result()).get_outputs()
    assert (model.shown, outputs[-1].text) == ([["one", "1:one", "two"]], "3:two")


@pytest.mark.parametrize(
    ("before", "after", "others", "expected"),
    [
        ({}, {"a": {"m": Log([1])}}, {"a": {"m": Log([2])}}, {"a": {"m": Log([2, 1])}}),
        ({"m": Log([0])}, {"m": Log([0, 1])}, {"m": Log([0, 2])}, {"m": Log([0, 2, 1])}),
        ({"m": [0]}, {"m": [0, 1]}, {"m": [0, 2]}, {"m": [0, 2, 1]}),
        ({"m": Log([0, 1])}, {"m": Log([9])}, {"m": Log([0, 1, 2])}, {"m": Log([9])}),
        ({"x": 1, "y": 1}, {"x": 2, "y": 1}, {"x": 1, "y": 3}, {"x": 2, "y": 3}),
        ({"x": 1}, {}, {"x": 1, "y": 2}, {"y": 2}),
        ({"x": {"y": 1}}, {"x": {"y": 1, "z": {}}}, {"x": 7}, {"x": {"z": {}}}),
        ({}, {"m": []}, {}, {"m": []}),
        ({1: 1}, {1: 2}, {1: 1}, {1: 2}),
    ],
)
def test_changes_of_two_turns_come_together(before: Any, after: Any, others: Any, expected: Any) -> None:
    apply_changes(find_changes(before, after), others)
    assert others == expected
