"""Conversations: the messages that each node sees, and no duplicates after crashes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from tests.agent_workflows.conducting import Says, Troupe, defined, node, otherwise, when

from perdure import InMemoryCheckpointStorage, Message
from perdure.agent_workflows import START, Conversation, OnError
from perdure.agent_workflows.conductor.conversations import Conversations
from perdure.agent_workflows.messages import NodeResult
from perdure.threads import InMemorySessionStore

if TYPE_CHECKING:
    from perdure.agent_workflows import ConversationKind, Definition
    from perdure.agent_workflows.messages import NodeTask
    from perdure.threads import SessionStore, Thread

T = TypeVar("T")

SESSION = "workflow-Test-e1"


def speaks(task: NodeTask) -> NodeResult:
    """Say who one is, and how often one has spoken before."""
    text = f"{task.node_id}{task.visit}"
    said = Message("assistant", [text], author_name=task.node_id)
    return NodeResult(task.node_id, task.visit, {"answer": text}, text, (said,))


def troupe(
    definition: Definition,
    store: SessionStore,
    kind: ConversationKind,
    says: dict[str, Says] | None = None,
    **options: Any,
) -> Troupe:
    """Return nodes that add messages, with conversations of this kind."""
    policy = Conversation(kind, **options.pop("policy", {}))
    conversations = Conversations(store, policy, workflow_name="Test")
    spoken: dict[str, Says] = {**{each.id: speaks for each in definition.nodes}, **(says or {})}
    return Troupe(definition, spoken, conversations=conversations, **{"execution_id": "e1", **options})


async def words(store: SessionStore, thread_id: str, session_id: str = SESSION) -> list[str]:
    """Return the messages of a thread."""
    return [f"{each.role}: {each.text}" for each in await store.messages(session_id, thread_id)]


def told(task: NodeTask) -> list[str]:
    """Return the history of a task."""
    return [message.text for message in task.history]


async def test_in_a_shared_thread_everybody_knows_what_was_said_before() -> None:
    store = InMemorySessionStore()
    team = troupe(defined("a b", "a>b"), store, "shared")
    await team.run()
    assert await words(store, "main") == ["user: go", "assistant: a0", "user: a0", "assistant: b0"]
    assert told(team.actors["a"].tasks[0]) == []
    assert told(team.actors["b"].tasks[0]) == ["go", "a0"]
    assert [thread.thread_id for thread in await store.threads(SESSION)] == ["main"]


async def test_each_event_says_which_node_has_said_it() -> None:
    store = InMemorySessionStore()
    await troupe(defined("a b", "a>b"), store, "shared").run()
    tags = [event.tags for event in await store.read(SESSION, "main")]
    assert tags[0] == {"workflow_name": "Test", "execution_id": "e1", "node_id": "a"}
    assert [each["node_id"] for each in tags] == ["a", "a", "b", "b"]


async def test_with_a_thread_for_each_agent_it_knows_what_itself_was_told_and_said() -> None:
    store = InMemorySessionStore()
    nodes = [node("a", reads="request"), node("b")]
    definition = defined(nodes, f"{START}>a", "a>b", when("b>a", "b0"), otherwise("b>END"))
    team = troupe(definition, store, "per_agent", policy={"thread_prefix": "of-"})
    await team.run()
    assert await words(store, "of-a") == ["user: go", "assistant: a0", "user: go", "assistant: a1"]
    assert await words(store, "of-b") == ["user: a0", "assistant: b0", "user: a1", "assistant: b1"]
    assert [told(task) for task in team.actors["a"].tasks] == [[], ["go", "a0"]]


async def test_a_fork_for_each_agent_begins_with_the_request_and_tells_it_once() -> None:
    store = InMemorySessionStore()
    team = troupe(defined("a b", "a>b"), store, "fork_per_agent")
    await team.run()
    assert await words(store, "root") == ["user: go"]
    assert await words(store, "agent-a") == ["user: go", "assistant: a0"]
    assert await words(store, "agent-b") == ["user: go", "user: a0", "assistant: b0"]
    assert told(team.actors["a"].tasks[0]) == []
    assert told(team.actors["b"].tasks[0]) == ["go"]
    forks = [thread.forked_from.thread_id for thread in await store.threads(SESSION) if thread.forked_from]
    assert forks == ["root", "root"]


async def test_a_session_that_is_named_is_gone_on_with() -> None:
    store = InMemorySessionStore()
    policy = {"session_id": "s", "thread_id": "t"}
    await troupe(defined("a"), store, "shared", policy=policy).run("one")
    second = troupe(defined("a"), store, "shared", policy=policy, execution_id="e2")
    await second.run("two")
    assert told(second.actors["a"].tasks[0]) == ["one", "a0"]
    assert await words(store, "t", "s") == ["user: one", "assistant: a0", "user: two", "assistant: a0"]


async def test_what_was_denied_or_failed_is_not_part_of_the_conversation() -> None:
    store = InMemorySessionStore()

    def denied(task: NodeTask) -> NodeResult:
        return NodeResult(task.node_id, task.visit, {}, "", (Message("assistant", ["x"]),), denied="no")

    definition = defined([node("a", on_error=OnError("fallback", "f")), node("f")])
    team = troupe(definition, store, "shared", {"a": denied})
    await team.run()
    assert await words(store, "main") == ["user: go", "assistant: f0"]


async def test_who_stands_in_is_told_the_request_once_too() -> None:
    store = InMemorySessionStore()

    def broken(_: NodeTask) -> NodeResult:
        raise ValueError("boom")

    definition = defined([node("a", on_error=OnError("fallback", "f")), node("f")])
    team = troupe(definition, store, "fork_per_agent", {"a": broken})
    workflow = team.workflow()
    await workflow.run("go", run_id="e1")
    assert await words(store, "agent-f") == ["user: go", "assistant: f0"]
    await workflow.run("again")
    assert await words(store, "agent-f") == ["user: go", "assistant: f0", "user: again", "assistant: f1"]
    assert [told(task) for task in team.actors["f"].tasks] == [[], ["go", "f0"]]


async def test_a_handler_that_is_entered_again_adds_nothing_twice() -> None:
    store, storage = InMemorySessionStore(), InMemoryCheckpointStorage()
    definition = defined("a b", "a>b")

    def broken(_: NodeTask) -> NodeResult:
        raise ValueError("boom")

    with pytest.raises(ValueError, match="boom"):
        await (
            troupe(definition, store, "fork_per_agent", {"b": broken}, storage=storage)
            .workflow()
            .run("go", run_id="e1")
        )
    again = troupe(definition, store, "fork_per_agent", storage=storage)
    await again.workflow().run(run_id="e1")
    assert await words(store, "agent-a") == ["user: go", "assistant: a0"]
    assert await words(store, "agent-b") == ["user: go", "user: a0", "assistant: b0"]


class CutOff(InMemorySessionStore):
    """A store that completes its n-th call, but fails before returning, as if the process had died."""

    calls_left: int | None = None

    async def append(self, *args: Any, **options: Any) -> int:
        """Append, and maybe be cut off."""
        return self._told(await super().append(*args, **options))

    async def thread(self, session_id: str, thread_id: str) -> Thread | None:
        """Look, and maybe be cut off."""
        return self._told(await super().thread(session_id, thread_id))

    async def fork(self, *args: Any, **options: Any) -> Thread:
        """Fork, and maybe be cut off."""
        return self._told(await super().fork(*args, **options))

    def _told(self, result: T) -> T:
        if self.calls_left is not None:
            self.calls_left -= 1
            if self.calls_left == 0:
                raise ConnectionResetError("cut off")
        return result


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("kind", ["shared", "fork_per_agent"])
async def test_whichever_call_to_the_store_is_cut_off_a_resume_adds_what_is_missing_and_nothing_twice(
    kind: ConversationKind, *, is_first: bool
) -> None:
    definition = defined("a b c", "a>b", "a>c")
    policy = {"session_id": SESSION}

    async def talk(calls_left: int | None) -> tuple[bool, dict[str, list[str]]]:
        store, storage = CutOff(), InMemoryCheckpointStorage()
        if not is_first:
            await troupe(definition, store, kind, policy=policy, execution_id="e0").run("before")
        store.calls_left = calls_left
        is_cut_off = False
        try:
            await troupe(definition, store, kind, policy=policy, storage=storage).workflow().run("go", run_id="e1")
        except ConnectionResetError:
            is_cut_off, store.calls_left = True, None
            await troupe(definition, store, kind, policy=policy, storage=storage).workflow().run(run_id="e1")
        threads = await store.threads(SESSION)
        return is_cut_off, {each.thread_id: await words(store, each.thread_id) for each in threads}

    _, expected = await talk(None)
    cuts = 0
    while True:
        is_cut_off, talked = await talk(cuts + 1)
        assert talked == expected, f"cut off at call {cuts + 1}"
        if not is_cut_off:
            break
        cuts += 1
    assert cuts > len(expected)
