"""Forks of hosted runs, and runs that are deleted: nothing of them is left."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from tests.hosting.flows import Gate, office, pass_on, row, shout, until

from perdure import (
    Edit,
    Host,
    RunBusyError,
    RunExistsError,
    RunFailedError,
    RunNotFoundError,
    UnknownWorkflowError,
    WorkflowCheckpointException,
)
from perdure.storage import MemoryStore, StoreStorage

if TYPE_CHECKING:
    from tests.hosting.places import Storage


def office_host(storage: Storage) -> Host:
    host = Host(storage)
    host.register(office)
    return host


async def test_a_fork_asks_again_and_its_source_does_not_change(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea", run_id="r")
        await run.result()
        await run.respond({"about tea": "yes"})
        await until(host, "r", "idle")
        before = await run.info()
        fork = await run.fork("r@1")
        assert [event.request_id for event in (await fork.result()).get_request_info_events()] == ["about tea"]
        await fork.respond({"about tea": "no"})
        assert (await fork.result()).get_outputs() == ["tea: no (1)"]
        assert await run.info() == before
        assert (await fork.info()).parent_checkpoint_id == "r@1"


async def test_a_fork_of_the_newest_checkpoint_has_the_status_of_its_source(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", shout))
    async with host:
        run = await host.start("w", "hi")
        await run.result()
        fork = await run.fork()
        assert (await fork.result()).get_outputs() == ["hi!"]
        assert (await fork.info()).status == "idle"


async def test_a_fork_continues_with_its_edit(storage: Storage) -> None:
    gate = Gate()
    host = Host(storage)
    host.register(row("w", pass_on, gate))
    async with host:
        run = await host.start("w", "hi", run_id="r")
        await gate.holds(1)
        fork = await host.fork("r", "r@1", edit=Edit(messages={"n1": ["ho"]}))
        gate.open()
        assert (await fork.result()).get_outputs() == ["ho"]
        assert (await run.result()).get_outputs() == ["hi"]


async def test_forking_at_a_checkpoint_of_another_run_is_refused(storage: Storage) -> None:
    async with office_host(storage) as host:
        for text in ("tea", "milk"):
            await (await host.start("office", text, run_id=text)).result()
        with pytest.raises(WorkflowCheckpointException, match="'milk'"):
            await host.fork("tea", "milk@0")
    with pytest.raises(UnknownWorkflowError):
        await Host(storage).fork("tea")


async def test_a_deleted_run_leaves_nothing_behind(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea" * 1000, run_id="r")
        await run.result()
        await run.send("milk" * 1000)
        assert await host.delete("r")
        with pytest.raises(RunNotFoundError):
            await run.info()
        assert await host.runs() == []
        assert await host.requests() == []
        assert await storage.list_checkpoint_ids() == []
        assert list(await storage.store.events("r")) == []
        assert list(await storage.store.inbox("r")) == []
        assert await storage.collect() == 0
        assert not await host.delete("r")


async def test_deleting_a_run_that_this_host_advances_stops_it_first(storage: Storage) -> None:
    gate = Gate()
    host = Host(storage)
    host.register(row("w", gate))
    async with host:
        await host.start("w", "hi", run_id="r")
        await gate.holds(1)
        assert await host.delete("r")
        assert (gate.inside, host.running) == (0, 0)
        again = await host.start("w", "ho", run_id="r")
        gate.open()
        assert (await again.result()).get_outputs() == ["ho"]


async def test_a_run_that_another_process_advances_cannot_be_deleted(storage: Storage) -> None:
    gate = Gate()
    one, other = Host(storage), Host(storage)
    one.register(row("w", gate))
    async with one:
        run = await one.start("w", "hi", run_id="r")
        await gate.holds(1)
        with pytest.raises(RunBusyError):
            await other.delete("r")
        gate.open()
        assert (await run.result()).get_outputs() == ["hi"]


async def test_waiting_for_a_run_ends_with_an_error_when_it_is_deleted(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea", run_id="r")
        await run.result()

        async def follow() -> list[str]:
            return [event.type async for event in run.events((await run.info()).events + 1)]

        following = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await host.delete("r")
        with pytest.raises(RunNotFoundError):
            await following


async def test_a_host_of_a_tenant_sees_only_its_runs(storage: Storage) -> None:
    acme, other = storage.tenant("acme"), storage.tenant("other")
    hosts = [Host(acme), Host(other)]
    for host in hosts:
        host.register(row("w", shout))
    async with hosts[0], hosts[1]:
        runs = [await host.start("w", f"hi {number}", run_id="r") for number, host in enumerate(hosts)]
        outputs = [(await run.result()).get_outputs() for run in runs]
        assert await hosts[0].delete("r")
        assert len(await hosts[1].runs()) == 1
    assert outputs == [["hi 0!"], ["hi 1!"]]
    assert await Host(storage).runs() == []


def test_a_host_can_be_created_without_an_event_loop() -> None:
    from perdure.storage import StoreStorage  # noqa: PLC0415

    host = Host(StoreStorage(MemoryStore()))
    assert not host.is_serving


async def test_the_store_alone_forks_a_run_and_a_host_continues_it(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea", run_id="r", tags={"for": "Ann"})
        await run.result()
        await run.respond({"about tea": "yes"})
        await until(host, "r", "idle")
        before = await run.info()
    assert await storage.fork("r@1", run_id="f") == "f"
    with pytest.raises(RunExistsError):
        await storage.fork("r@1", run_id="f")
    forked = await storage.run("f")
    assert (forked.status, forked.parent_run_id, forked.parent_checkpoint_id) == ("waiting", "r", "r@1")
    assert forked.tags == {"for": "Ann"}
    [request] = await storage.requests("f")
    await storage.respond("f", {request.request_id: "no"})
    async with office_host(storage) as host:
        await until(host, "f", "idle")
        assert (await (await host.run("f")).result()).get_outputs() == ["tea: no (1)"]
        assert await host.info("r") == before


async def test_the_store_alone_forks_the_newest_checkpoint_with_a_larger_budget(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", pass_on, shout))
    async with host:
        run = await host.start("w", "hi", run_id="r", budget={"supersteps": 1})
        with pytest.raises(RunFailedError):
            await run.result()
        head = (await run.info()).checkpoint_id
        assert head is not None
        await host.recover(await fork_of(storage, head))
        assert (await (await host.run("f")).result()).get_outputs() == ["hi!"]
        assert (await storage.view("f@0")).budget == {"supersteps": 1}


async def fork_of(storage: Storage, checkpoint_id: str) -> str:
    return await storage.fork(checkpoint_id, run_id="f", budget={"supersteps": 2})


async def test_a_host_moves_a_run_back(storage: Storage) -> None:
    async with office_host(storage) as host:
        run = await host.start("office", "tea", run_id="r")
        await run.result()
        await run.respond({"about tea": "yes"})
        await until(host, "r", "idle")
        await host.restore("r", "r@1")
        await until(host, "r", "waiting")
        await run.respond({"about tea": "no"})
        await until(host, "r", "idle")
        assert (await run.result()).get_outputs() == ["tea: no (1)"]
        assert "answered" in [event.type async for event in host.events("r")]


def test_storages_and_hosts_have_the_same_operations() -> None:
    shared = ("runs", "run", "requests", "respond", "send", "cancel", "recover", "fork", "restore", "events")
    for name in shared:
        assert callable(getattr(StoreStorage, name))
        assert callable(getattr(Host, name))
    # The `delete` of a storage is that of a checkpoint.
    assert callable(StoreStorage.delete_run)
    assert callable(Host.delete)
