"""Forks at the first checkpoint, in a session that executions share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.building import Cast
from tests.agent_workflows.conducting import defined
from tests.agent_workflows.test_aw_conductor_threads import CutOff, troupe, words
from tests.soak import MEMORY

from perdure import Host, InMemoryCheckpointStorage
from perdure.agent_workflows import AgentWorkflow, Conversation
from perdure.threads import FileSessionStore, InMemorySessionStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure import CheckpointStorage, Workflow
    from perdure.agent_workflows import ConversationKind
    from perdure.storage import StoreStorage
    from perdure.threads import SessionStore

HEARD: dict[str, dict[str, list[str]]] = {
    "shared": {"main": ["early", "A0", "A0", "B0", "go", "A2", "A2", "B2"]},
    "per_agent": {"agent-a": ["early", "A0", "go", "A2"], "agent-b": ["A0", "B0", "A2", "B2"]},
    "fork_per_agent": {
        "root": ["early", "go"],
        "agent-a": ["early", "A0", "go", "A2"],
        "agent-b": ["early", "A0", "B0", "go", "A2", "B2"],
    },
}
"""What the fork knows in the end, if an execution has said `A0` and `B0` before and its original said `A1` and `B1`."""
KINDS = ["shared", "per_agent", "fork_per_agent"]


def built(
    kind: ConversationKind, store: SessionStore, storage: CheckpointStorage, session_id: str | None = "s"
) -> AgentWorkflow:
    """A workflow of two agents that count how often they have spoken, in whichever execution."""
    spoken: list[str] = []

    def speaks(name: str) -> Callable[..., str]:
        def speak(*_: object) -> str:
            spoken.append(name)
            return f"{name}{spoken.count(name) - 1}"

        return speak

    cast = Cast(one=speaks("A"), two=speaks("B"))
    builder = AgentWorkflow.create().with_name("Talk").with_checkpointing().with_workflow_store(storage)
    builder.with_session_store(store).with_conversation(Conversation(kind, session_id))
    return builder.add_agent("a", cast["one"]).add_agent("b", cast["two"]).from_("a").to("b").build()


async def first_checkpoint(storage: CheckpointStorage, execution_id: str) -> str:
    checkpoints = await storage.list_checkpoints(workflow_name="Talk")
    return next(each.checkpoint_id for each in checkpoints if each.run_id == execution_id)


async def said(store: SessionStore, session_id: str, *, ending: str = "") -> dict[str, list[str]]:
    """Return the messages of a session's threads, or of a fork's under their plain names."""
    names = [each.thread_id for each in await store.threads(session_id)]
    own = [name for name in names if name.endswith(ending) and (ending or "@" not in name)]
    return {name.removesuffix(ending): [each.text for each in await store.messages(session_id, name)] for name in own}


@pytest.mark.parametrize("open_storage", ["sqlite", *MEMORY], indirect=True)  # Hosts do not run on files.
@pytest.mark.parametrize("kind", KINDS)
async def test_a_fork_at_the_first_checkpoint_has_threads_of_its_own(
    kind: ConversationKind, storage: StoreStorage, tmp_path: Path
) -> None:
    store = FileSessionStore(tmp_path / "sessions")
    workflow = built(kind, store, storage)
    await workflow.run("early", execution_id="e0")
    await workflow.run("go", execution_id="e1")
    before = await said(store, "s")
    host = Host(storage)
    host.register(workflow.as_workflow)
    # A fork of a fork that has done nothing is one of the original, too.
    fork = await (await host.fork("e1", await first_checkpoint(storage, "e1"))).fork()
    await workflow.resume(fork.run_id)
    assert await said(store, "s") == before
    assert await said(store, "s", ending=f"@{fork.run_id}") == HEARD[kind]


async def test_a_fork_without_a_named_session_speaks_in_that_of_its_original() -> None:
    store, storage = InMemorySessionStore(), InMemoryCheckpointStorage()
    workflow = built("shared", store, storage, session_id=None)
    await workflow.run("go", execution_id="e1")
    checkpoint_id = await first_checkpoint(storage, "e1")
    (result,) = (await workflow.as_workflow().run(checkpoint_id=checkpoint_id)).get_outputs()
    assert await said(store, "workflow-Talk-e1") == {"main": ["go", "A0", "A0", "B0"]}
    ending = f"@{result.execution_id}"
    assert await said(store, "workflow-Talk-e1", ending=ending) == {"main": ["go", "A1", "A1", "B1"]}


@pytest.mark.parametrize("kind", KINDS)
async def test_whichever_call_of_a_fork_at_the_first_checkpoint_is_cut_off_it_says_nothing_twice(
    kind: ConversationKind,
) -> None:
    definition, policy = defined("a b", "a>b"), {"session_id": "s"}

    async def talk(calls_left: int | None) -> tuple[bool, list[list[str]]]:
        store, storage, is_cut_off = CutOff(), InMemoryCheckpointStorage(), False

        def graph() -> Workflow:
            return troupe(definition, store, kind, policy=policy, storage=storage).workflow()

        await graph().run("early", run_id="e0")
        await graph().run("go", run_id="e1")
        host = Host(storage)
        host.register(graph)
        checkpoints = await storage.list_checkpoints(workflow_name="Test")
        fork = await host.fork("e1", next(each.checkpoint_id for each in checkpoints if each.run_id == "e1"))
        store.calls_left = calls_left
        try:
            await graph().run(run_id=fork.run_id)
        except ConnectionResetError:
            is_cut_off, store.calls_left = True, None
            await graph().run(run_id=fork.run_id)
        return is_cut_off, [await words(store, each.thread_id, "s") for each in await store.threads("s")]

    _, expected = await talk(None)
    cuts = 0
    while True:
        is_cut_off, talked = await talk(cuts + 1)
        assert talked == expected, f"cut off at call {cuts + 1}"
        if not is_cut_off:
            break
        cuts += 1
    assert cuts > len(expected) // 2
