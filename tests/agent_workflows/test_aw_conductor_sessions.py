"""Conversations of several executions: a session that they share, forks that go their own way, policies that change."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.conducting import defined, node
from tests.agent_workflows.test_aw_conductor_threads import SESSION, CutOff, speaks, told, troupe, words

from perdure import Host, InMemoryCheckpointStorage, Message
from perdure.agent_workflows import OnError
from perdure.agent_workflows.messages import NodeResult
from perdure.threads import InMemorySessionStore, SqliteSessionStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.agent_workflows.conducting import Says

    from perdure import Workflow
    from perdure.agent_workflows import ConversationKind
    from perdure.agent_workflows.messages import NodeTask
    from perdure.threads import SessionStore

SHARED = {"session_id": "s"}


def boom(_: NodeTask) -> NodeResult:
    """Fail."""
    raise ValueError("boom")


def saying(text: str) -> Says:
    """Say that."""

    def say(task: NodeTask) -> NodeResult:
        return NodeResult(task.node_id, task.visit, {"answer": text}, text, (Message("assistant", [text]),))

    return say


async def test_every_execution_in_a_session_tells_its_request_to_all() -> None:
    store = InMemorySessionStore()
    definition = defined("a b", "a>b")
    await troupe(definition, store, "fork_per_agent", policy=SHARED, execution_id="e0").run("lamps")
    team = troupe(definition, store, "fork_per_agent", policy=SHARED, execution_id="e1")
    await team.run("tables")
    assert told(team.actors["a"].tasks[0]) == ["lamps", "a0"]
    assert told(team.actors["b"].tasks[0]) == ["lamps", "a0", "b0", "tables"]
    assert await words(store, "agent-a", "s") == ["user: lamps", "assistant: a0", "user: tables", "assistant: a0"]
    assert (await words(store, "agent-b", "s"))[3:] == ["user: tables", "user: a0", "assistant: b0"]


async def test_the_next_request_of_a_run_is_told_to_all_too() -> None:
    store = InMemorySessionStore()
    team = troupe(defined("a b", "a>b"), store, "fork_per_agent")
    workflow = team.workflow()
    await workflow.run("lamps", run_id="e1")
    await workflow.run("tables")
    assert told(team.actors["b"].tasks[1]) == ["lamps", "a0", "b0", "tables"]


async def test_executions_at_once_in_one_session_all_join_the_same_threads(tmp_path: Path) -> None:
    store = SqliteSessionStore(str(tmp_path / "s.db"))
    teams = [
        troupe(defined("a"), store, "fork_per_agent", policy=SHARED, execution_id=f"e{number}") for number in range(5)
    ]
    await asyncio.gather(*(team.run(team.execution_id) for team in teams))
    said = await words(store, "agent-a", "s")
    assert sorted(each for each in said if each.startswith("user")) == [f"user: e{number}" for number in range(5)]
    assert said.count("assistant: a0") == 5
    await store.close()


async def forked(store: SessionStore, kind: ConversationKind, policy: dict[str, str]) -> str:
    """Run to the end, and then go on once more from where `b` has not spoken yet; the id of that."""
    storage = InMemoryCheckpointStorage()
    definition = defined("a b c", "a>b", "b>c")
    await troupe(definition, store, kind, policy=policy, storage=storage).workflow().run("go", run_id="e1")
    # One for the request, and one for each superstep: of the conductor, of a node.
    checkpoint = (await storage.list_checkpoints(workflow_name="Test"))[3]
    other = troupe(definition, store, kind, {"b": saying("other")}, policy=policy, storage=storage)
    (result,) = (await other.workflow().run(checkpoint_id=checkpoint.checkpoint_id)).get_outputs()
    assert len(other.actors["a"].tasks) == 0
    assert len(other.actors["b"].tasks) == 1
    return result.execution_id


HEARD: dict[str, list[str]] = {
    "shared": ["go", "a0", "a0", "other", "other", "c0"],
    "per_agent": ["other", "c0"],
    "fork_per_agent": ["go", "other", "c0"],
}


@pytest.mark.parametrize("policy", [{}, SHARED])
@pytest.mark.parametrize("kind", ["shared", "per_agent", "fork_per_agent"])
async def test_a_fork_of_an_execution_has_threads_of_its_own(kind: ConversationKind, policy: dict[str, str]) -> None:
    store = InMemorySessionStore()
    session = policy.get("session_id", SESSION)
    fork = await forked(store, kind, policy)
    threads = {each.thread_id for each in await store.threads(session)}
    mains = {each for each in threads if "@" not in each}
    assert threads == mains | {f"{each}@{fork}" for each in mains}
    last = "main" if kind == "shared" else "agent-c"
    heard = [message.text for message in await store.messages(session, f"{last}@{fork}")]
    assert heard == HEARD[kind]
    original = [each for thread_id in mains for each in await words(store, thread_id, session)]
    assert "assistant: other" not in original
    assert "assistant: b0" in original


async def test_whichever_call_of_a_fork_is_cut_off_it_goes_on_in_its_own_threads_and_says_nothing_twice() -> None:
    definition = defined("a b c", "a>b", "b>c")

    async def talk(calls_left: int | None) -> tuple[bool, list[list[str]]]:
        store, storage, is_cut_off = CutOff(), InMemoryCheckpointStorage(), False

        def graph() -> Workflow:
            return troupe(definition, store, "fork_per_agent", policy=SHARED, storage=storage).workflow()

        await graph().run("go", run_id="e1")
        checkpoint = (await storage.list_checkpoints(workflow_name="Test"))[3]
        host = Host(storage)
        host.register(graph)
        fork = await host.fork("e1", checkpoint.checkpoint_id)
        store.calls_left = calls_left
        try:
            await graph().run(run_id=fork.run_id)
        except ConnectionResetError:
            is_cut_off, store.calls_left = True, None
            await graph().run(run_id=fork.run_id)
        return is_cut_off, [await words(store, each.thread_id, "s") for each in await store.threads("s")]

    _, expected = await talk(None)
    assert len(expected) == 8
    cuts = 0
    while True:
        is_cut_off, talked = await talk(cuts + 1)
        assert talked == expected, f"cut off at call {cuts + 1}"
        if not is_cut_off:
            break
        cuts += 1
    assert cuts > 4


async def test_a_fork_hears_what_was_said_in_its_session_before_the_execution_that_it_comes_from() -> None:
    store = InMemorySessionStore()
    await troupe(defined("c"), store, "per_agent", policy=SHARED, execution_id="e0").run("early")
    fork = await forked(store, "per_agent", SHARED)
    heard = [message.text for message in await store.messages("s", f"agent-c@{fork}")]
    assert heard == ["early", "c0", "other", "c0"]


@pytest.mark.parametrize("after", ["none", "shared", "per_agent", "fork_per_agent"])
@pytest.mark.parametrize("before", ["none", "shared", "per_agent", "fork_per_agent"])
async def test_a_policy_may_be_another_one_when_an_execution_goes_on(
    before: ConversationKind, after: ConversationKind
) -> None:
    store, storage = InMemorySessionStore(), InMemoryCheckpointStorage()
    definition = defined("a b c", "a>c", "b>c")
    definition = defined([node("a"), node("b"), node("c", reads="upstream")], *definition.edges)
    first = troupe(definition, store, before, {"b": boom}, storage=storage)
    with pytest.raises(ValueError, match="boom"):
        await first.workflow().run("go", run_id="e1")
    second = troupe(definition, store, after, storage=storage)
    (result,) = (await second.workflow().run(run_id="e1")).get_outputs()
    assert result.final_answer == "c0"
    if after != "none":
        thread_id = "main" if after == "shared" else "agent-b"
        said = [each for each in await words(store, thread_id) if each in {"user: go", "assistant: b0"}]
        assert said[-2:] == ["user: go", "assistant: b0"]


async def test_a_fallback_that_is_there_since_the_resume_is_given_the_task() -> None:
    store, storage = InMemorySessionStore(), InMemoryCheckpointStorage()
    stopping = troupe(defined([node("a")]), store, "none", {"a": boom}, storage=storage)
    with pytest.raises(ValueError, match="boom"):
        await stopping.workflow().run("a poem", run_id="e1")
    nodes = [node("a", on_error=OnError("fallback", "f")), node("f")]
    falling = troupe(defined(nodes), store, "none", {"a": boom, "f": speaks}, storage=storage)
    await falling.workflow().run(run_id="e1")
    assert [task.text for task in falling.actors["f"].tasks] == ["a poem"]
