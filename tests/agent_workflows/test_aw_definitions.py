"""Stored definitions: versions, concurrent saves, killed processes, isolation from runs."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.agent_workflows.config_samples import live, plain
from tests.soak import MEMORY

from perdure import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    KeepFor,
    KeepLast,
    LatestOnly,
    Retention,
    SqliteCheckpointStorage,
    WorkflowCheckpoint,
)
from perdure.agent_workflows import AgentWorkflowError, DefinitionStore
from perdure.agent_workflows.definition import to_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

SAVER = Path(__file__).with_name("definition_saver.py")


def opened(kind: str, directory: Path) -> Any:
    retention = Retention(checkpoints=LatestOnly())
    match kind:
        case "file":
            return FileCheckpointStorage(directory / "store", retention=retention)
        case "sqlite":
            return SqliteCheckpointStorage(directory / "store.db", retention=retention)
        case _:
            return InMemoryCheckpointStorage(retention=retention)


@pytest.fixture(params=["file", "sqlite", *MEMORY])
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Any]:
    async with opened(request.param, tmp_path) as one:
        yield one


def config(name: str = "review", **more: Any) -> dict[str, Any]:
    return {**to_config(plain()).config, "name": name, **more}


async def test_definitions_have_versions_and_the_same_again_is_none(storage: Any) -> None:
    store = DefinitionStore(storage)
    assert await store.save(config()) == 1
    assert await store.save(config()) == 1
    assert await store.save(config(version="3")) == 2
    assert await store.save(config()) == 3  # The newest is another one: this is what is meant now.
    assert await store.load("review") == config()
    assert [await store.load("review", version) for version in (1, 2)] == [config(), config(version="3")]


async def test_a_definition_is_loaded_as_it_was_saved_with_what_is_left_out(storage: Any) -> None:
    written = to_config(live().definition).config
    await DefinitionStore(storage).save(written)
    loaded = await DefinitionStore(storage).load("live")
    assert json.dumps(loaded) == json.dumps(written)  # The order of agents is part of it.


async def test_workflows_are_apart_whatever_their_names(storage: Any) -> None:
    store = DefinitionStore(storage)
    names = ["review", "a:b", "a%3Ab", "a/b", "é", "with space"]
    for name in names:
        assert await store.save(config(name)) == 1
    assert await store.names() == names
    assert [(await store.load(name))["name"] for name in names] == names


async def test_runs_and_definitions_never_see_each_other(storage: Any) -> None:
    checkpoint = WorkflowCheckpoint(workflow_name="review", graph_signature_hash="x")
    await storage.save(checkpoint)
    assert await DefinitionStore(storage).names() == []
    await DefinitionStore(storage).save(config())
    assert await storage.list_checkpoint_ids(workflow_name="review") == [checkpoint.checkpoint_id]
    assert [record.workflow_name for record in await storage.store.runs()] == ["review"]
    assert await DefinitionStore(storage).names() == ["review"]


async def test_a_save_that_expects_another_version_writes_nothing(storage: Any) -> None:
    store = DefinitionStore(storage)
    assert await store.save(config(), expected=0) == 1
    with pytest.raises(AgentWorkflowError, match=r"is at version 1, not at 0, and nothing was saved"):
        await store.save(config(version="3"), expected=0)
    assert await store.save(config(), expected=0) == 1  # The same again, as after a crash.
    assert await store.save(config(version="3"), expected=1) == 2
    assert await store.load("review", 2) == config(version="3")


async def test_of_rivals_each_gets_a_version_and_none_is_lost(storage: Any) -> None:
    store = DefinitionStore(storage)
    written = [config(version=str(number)) for number in range(6)]
    versions = await asyncio.gather(*(store.save(each) for each in written))
    assert sorted(versions) == [1, 2, 3, 4, 5, 6]
    assert [await store.load("review", version) for version in versions] == written


async def test_rivals_with_the_same_definition_make_one_version(storage: Any) -> None:
    stores = [DefinitionStore(storage) for _ in range(4)]
    assert set(await asyncio.gather(*(store.save(config()) for store in stores))) == {1}


async def test_what_is_not_there_is_told_with_what_is(storage: Any) -> None:
    store = DefinitionStore(storage)
    with pytest.raises(AgentWorkflowError, match="no definition of a workflow 'review'; there are none"):
        await store.load("review")
    await store.save(config())
    with pytest.raises(AgentWorkflowError, match="no definition of a workflow 'other'; there are 'review'"):
        await store.load("other")
    for version in (0, 2, -1):
        with pytest.raises(AgentWorkflowError, match=f"no definition of version {version}; its versions are 1 to 1"):
            await store.load("review", version)


async def test_a_storage_that_forgets_runs_keeps_all_definitions() -> None:
    forgetful = Retention(events=KeepLast(1), finished_runs=KeepFor(timedelta(0)))
    store = DefinitionStore(InMemoryCheckpointStorage(retention=forgetful))
    await store.save(config())
    await store.save(config(version="3"))
    await store.save({"name": "other"})
    assert await store.load("review", 1) == config()
    assert await store.load("review") == config(version="3")


@pytest.mark.parametrize("wrong", [{}, {"name": ""}, {"name": 1}, [], {"name": "x", "agents": {"a"}}], ids=repr)
async def test_what_is_no_definition_is_refused(wrong: Any) -> None:
    store = DefinitionStore(InMemoryCheckpointStorage())
    with pytest.raises(AgentWorkflowError, match="a definition is"):
        await store.save(wrong)
    assert await store.names() == []


def test_a_storage_without_a_store_is_refused() -> None:
    class Own:
        """A storage with the six methods, as anybody can write one."""

    with pytest.raises(AgentWorkflowError, match="a Own has no store for definitions"):
        DefinitionStore(Own())  # pyright: ignore[reportArgumentType]


async def test_a_tenant_has_definitions_of_its_own() -> None:
    storage = InMemoryCheckpointStorage()
    await DefinitionStore(storage.tenant("acme")).save({"name": "theirs"})
    assert await DefinitionStore(storage).names() == []
    assert await DefinitionStore(storage.tenant("acme")).names() == ["theirs"]


def told_by_a_killed_process(kind: str, directory: Path) -> list[Any]:
    """Return the versions that a process printed before it was killed."""
    with warm.start(str(SAVER), kind, str(directory), stdout=PIPE) as process:
        assert process.stdout is not None
        try:
            return [json.loads(process.stdout.readline()) for _ in range(5)]
        finally:
            process.kill()


@pytest.mark.parametrize("kind", ["file", "sqlite"])
async def test_what_was_saved_outlasts_a_killed_process_and_is_not_saved_twice(kind: str, tmp_path: Path) -> None:
    told = told_by_a_killed_process(kind, tmp_path)
    assert told == [1, 2, 3, 4, 5]
    async with opened(kind, tmp_path) as storage:
        store = DefinitionStore(storage)
        saved = await store.load("review")
        versions = range(1, int(saved["version"]) + 1)
        assert len(versions) >= 5
        assert [(await store.load("review", version))["version"] for version in versions] == [*map(str, versions)]
        assert await store.save(saved) == versions[-1]
