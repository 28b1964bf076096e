"""Ids, and tenants: many share a store and never see each other."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import RunNotFoundError, WorkflowCheckpointException
from perdure.records import Archive, KeepFor, KeepLast, Mark
from perdure.storage import HostStore, Store, TenantStore, reads_at_once
from perdure.testing.stores.base import (
    NOTHING,
    ODD_IDS,
    REFUSED_IDS,
    SOON,
    UNWOKEN_SECONDS,
    HostStoreSuite,
    RunDriver,
    StoreSuite,
    TenantStoreSuite,
    archive_from_elsewhere,
    command,
    comparable,
    events,
    finished,
    halted,
    keeps,
    make_sample_run,
    new_run,
    raw_blob,
    read_contents,
    read_run,
    refused,
    text_blob,
    watcher,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from perdure.testing.clock import ManualClock


class IdConformance(StoreSuite):
    """Any printable string of limited length is an id, unless it is a path that leaves its directory."""

    async def test_any_printable_string_is_an_id(self, store: Store, clock: ManualClock) -> None:
        for name in ODD_IDS:
            run = await RunDriver.start(store, clock, name)
            await run.commit({"a": text_blob(f"first of {ODD_IDS.index(name)}")}, checkpoint_id=name)
            await run.commit()
            await run.release()
        for name in ODD_IDS:
            assert await read_contents(store, name) == {"a": f'"first of {ODD_IDS.index(name)}"'.encode()}
            record = await store.run(name)
            assert record is not None
            assert record.head == f"{name}@1"

    async def test_invalid_ids_are_refused(self, store: Store, fresh: RunDriver) -> None:
        for name in REFUSED_IDS:
            await refused(WorkflowCheckpointException, store.acquire(name, create=new_run(name)))
            await refused(WorkflowCheckpointException, store.manifest(name))
            await refused(WorkflowCheckpointException, fresh.commit(checkpoint_id=name))
        assert list(await store.ids()) == []


_TENANTS = ("", "ours", "theirs")
"""The empty name is the store itself."""

_GARBAGE = raw_blob(b"left over" * 3000)
"""An unused blob, large enough to be stored separately. Each tenant has one."""


@dataclass(frozen=True)
class Space:
    """Data of one tenant."""

    tenant: str
    store: TenantStore
    run: RunDriver
    """A run whose lease the tenant holds. Each tenant has one with the same id and checkpoints, and its own contents.
    """

    @classmethod
    async def filled(cls, store: TenantStore, clock: ManualClock, tenant: str) -> Space:
        """Fill a space with every kind of data, under the same ids as the others."""
        view = store.tenant(tenant) if tenant else store
        run = await make_sample_run(view, clock, of=f"<{tenant}>")
        free = await RunDriver.start(view, clock, "free")
        free.lease = await view.acquire("free", create=replace(new_run("free"), nonce=f"nonce of <{tenant}>"))
        await free.commit({"a": _GARBAGE, f"of <{tenant}>": text_blob("x")})
        await free.commit({f"of <{tenant}>": text_blob("x")}, wake_at=f"{SOON} <{tenant}>")
        await view.delete("free@0")
        await free.release()
        own = await RunDriver.start(view, clock, f"<{tenant}>", workflow_name="own", commits=1)
        await own.release()
        return cls(tenant, view, run)

    async def seen(self) -> Sequence[object]:
        """Return all readable data, except the numbers of commands."""
        runs = await self.store.runs()
        return [
            [(replace(record, owner=None), record.owner is not None) for record in runs],
            [await read_run(self.store, record.run_id) for record in runs],
            list(await self.store.ids()),
            dict(await self.store.blobs([_GARBAGE.hash])),
        ]


_ROOTS = [text_blob(f"told to <{tenant}>").hash for tenant in _TENANTS]
"""A blob hash of each tenant."""


async def _archived(store: TenantStore) -> Sequence[object]:
    archive = comparable(await store.archive("r"))
    parts = [*archive.journal, *archive.inbox, *archive.events, *archive.blobs]
    return [archive.record.nonce, *(each.data for each in parts if each.data)]


async def _blobs(store: TenantStore) -> Sequence[object]:
    return list((await store.blobs(_ROOTS)).values())


async def _read_blobs(store: TenantStore) -> Sequence[object]:
    return list((await asyncio.to_thread(store.read_blobs, _ROOTS)).values())


async def _whole_checkpoint(store: TenantStore) -> Sequence[object]:
    if not reads_at_once(store):
        return [await store.manifest("free@1")]
    whole = await store.whole_checkpoint("free@1")
    return [whole.manifest, whole.run]


async def _since_head(store: TenantStore) -> Sequence[object]:
    if not reads_at_once(store):
        return [*await store.journal("r"), *await store.inbox("r")]
    since = await store.since_head("r")
    return [*since.journal, *since.inbox]


async def _each(result: Awaitable[object]) -> Sequence[object]:
    return [await result]


LOOKS: Mapping[str, Callable[[TenantStore], Awaitable[Sequence[object]]]] = {
    "run": lambda store: _each(store.run("r")),
    "runs": lambda store: store.runs(workflow_name="flöw"),
    "journal": lambda store: store.journal("r"),
    "inbox": lambda store: store.inbox("r"),
    "events": lambda store: store.events("r"),
    "manifest": lambda store: _each(store.manifest("free@1")),
    "manifests": lambda store: store.manifests(workflow_name="flow"),
    "ids": lambda store: store.ids(workflow_name="own"),
    "latest": lambda store: _each(store.latest(workflow_name="flow")),
    "blobs": _blobs,
    "read_blobs": _read_blobs,
    "whole_checkpoint": _whole_checkpoint,
    "since_head": _since_head,
    "archive": _archived,
}
"""Results of the reading methods, by name. Each result contains its tenant's name."""

HOST_LOOKS: Mapping[str, Callable[[HostStore], Awaitable[Sequence[object]]]] = {
    "due": lambda store: store.due(at="", workflow_names=["flow"], limit=9),
    "next_wake": lambda store: _each(store.next_wake(after="", workflow_names=["flow"])),
}
"""Results of the reading methods that only a host needs."""


async def _restore(space: Space, archive: Archive) -> None:
    await space.run.release(halt=halted("exported"))
    await space.store.restore(archive)


CHANGES: Mapping[str, Callable[[Space, Archive], Awaitable[object]]] = {
    "acquire": lambda space, _: space.store.acquire("free"),
    "acquire for a fork": lambda space, _: RunDriver.start(space.store, space.run.clock, "new", parent="r@0"),
    "release": lambda space, _: space.run.release(halt=halted()),
    "commit": lambda space, _: space.run.commit({"a": text_blob("new")}, consumed=("a", "z"), events=events("new")),
    "rewind": lambda space, _: space.run.rewind("r@0"),
    "record": lambda space, _: space.run.note(finished("a", "new"), finished("new", "new")),
    "post": lambda space, _: space.run.post(command("new", "new")),
    "delete": lambda space, _: space.store.delete("r@1"),
    "delete of the last": lambda space, _: space.store.delete("free@1"),
    "collect": lambda space, _: space.store.collect(),
    "remove": lambda space, _: space.store.remove("r"),
    "close_run": lambda space, _: space.store.close_run("free", halt=halted("exported")),
    "restore": _restore,
}
"""Calls of the changing methods, by name."""


def _require_own(space: Space, shown: Sequence[object], look: str) -> None:
    """Require that every value names its tenant and no other, also in bytes and fields that a repr leaves out."""
    assert shown, look
    for each in shown:
        toc = getattr(each, "toc", None)
        data = each if isinstance(each, bytes) else getattr(each, "data", b"")
        text = f"{each!r} {toc and dict(toc)} {data!r}"
        assert [tenant for tenant in _TENANTS if f"<{tenant}>" in text] == [space.tenant], look


async def _require_isolated(
    store: Any, clock: ManualClock, looks: Mapping[str, Callable[[Any], Awaitable[Sequence[object]]]]
) -> None:
    """Require that each look at a tenant shows nothing until its space is filled, and then its own data only."""
    spaces: list[Space] = []
    for tenant in reversed(_TENANTS):
        for name, look in looks.items():
            with contextlib.suppress(WorkflowCheckpointException, RunNotFoundError):
                assert [*await look(store.tenant(tenant) if tenant else store)] in ([], [None]), name
        spaces.append(await Space.filled(store, clock, tenant))
    for space in spaces:
        for name, look in looks.items():
            _require_own(space, await look(space.store), name)


class TenantConformance(TenantStoreSuite):
    """One tenant's data does not exist for the others."""

    async def test_tenant_sees_only_its_own_data(self, store: TenantStore, clock: ManualClock) -> None:
        await _require_isolated(store, clock, LOOKS)

    @pytest.mark.parametrize("tenant", _TENANTS[:2])
    @pytest.mark.parametrize("change", CHANGES)
    async def test_change_of_one_tenant_does_not_affect_others(
        self, store: TenantStore, clock: ManualClock, change: str, tenant: str
    ) -> None:
        archive = await archive_from_elsewhere(clock)
        spaces = {each: await Space.filled(store, clock, each) for each in _TENANTS}
        before = {each: await space.seen() for each, space in spaces.items()}
        await CHANGES[change](spaces[tenant], archive)
        changed = [each for each, space in spaces.items() if await space.seen() != before[each]]
        assert changed == [tenant]
        for space in spaces.values():
            if space.tenant != tenant:
                # The owner of the run there still holds its lease.
                await space.run.commit()

    async def test_empty_tenant_can_change_nothing(self, store: TenantStore, clock: ManualClock) -> None:
        space = await Space.filled(store, clock, "ours")
        before = await space.seen()
        for empty in (store, store.tenant("theirs")):
            await refused(RunNotFoundError, empty.acquire("r"))
            await refused(RunNotFoundError, empty.post("r", command("new")))
            assert await empty.delete("r@0") is False
            assert await empty.remove("r") is False
            assert await empty.collect() == 0
            assert await empty.watch("r", seen=Mark("elsewhere")) == Mark()
            assert await read_run(empty) == NOTHING
        assert await space.seen() == before

    async def test_blob_of_another_tenant_can_not_be_referred_to(self, store: TenantStore, clock: ManualClock) -> None:
        secret = raw_blob(b"secret" * 3000)
        for small in (secret, text_blob("secret")):
            ours = await RunDriver.start(store.tenant("ours"), clock, f"of {small.hash}")
            await ours.commit({"a": small})
            for other in (store, store.tenant("theirs")):
                run = await RunDriver.start(other, clock, f"of {small.hash}")
                await run.commit({"a": small}, blobs=())
                assert await other.blobs([small.hash]) == {}
                assert await asyncio.to_thread(other.read_blobs, [small.hash]) == {}

    async def test_tenants_have_their_own_copies_of_a_blob(self, store: TenantStore, clock: ManualClock) -> None:
        shared, views = raw_blob(b"shared" * 3000), [store, *map(store.tenant, ("ours", "theirs"))]
        for view in views:
            await (await RunDriver.start(view, clock, "r")).commit({"a": shared})
        for view in views[:2]:
            await view.remove("r")
            assert await view.collect() == 1
            assert await view.blobs([shared.hash]) == {}
        assert await read_contents(views[2], "r@0") == {"a": shared.data}

    async def test_invalid_names_of_tenants_are_refused(self, store: TenantStore) -> None:
        for name in REFUSED_IDS:
            with pytest.raises(WorkflowCheckpointException):
                store.tenant(name)
        for name in ("ours", "theirs", ""):
            with pytest.raises(WorkflowCheckpointException):
                store.tenant("ours").tenant(name)

    async def test_any_id_names_a_tenant(self, store: TenantStore, clock: ManualClock) -> None:
        for name in ODD_IDS:
            run = await RunDriver.start(store.tenant(name), clock, "r")
            await run.commit({"a": text_blob(f"of {ODD_IDS.index(name)}")})
        await store.close()
        for name in ODD_IDS:
            view = store.tenant(name)
            assert await read_contents(view, "r@0") == {"a": f'"of {ODD_IDS.index(name)}"'.encode()}
            assert list(await view.ids()) == ["r@0"]
        assert list(await store.ids()) == []

    async def test_each_tenant_has_its_own_place(self, store: TenantStore) -> None:
        names = ("ours", "theirs", "our", "ours#", "#ours")
        places = [store.place, *(store.tenant(name).place for name in names)]
        assert len(set(places)) == len(places)
        assert [store.tenant(name).place for name in names] == places[1:]

    @keeps(checkpoints=KeepLast(2), events=KeepLast(1), finished_runs=KeepFor(timedelta(days=7)))
    async def test_retention_of_one_tenant_does_not_affect_others(self, store: TenantStore, clock: ManualClock) -> None:
        views = [store, *map(store.tenant, ("ours", "theirs"))]
        for view in views:
            finished_run = await RunDriver.start(view, clock, "finished")
            await finished_run.commit(settled=True)
            await finished_run.release()
            run = await finished_run.another("r")
            for _ in range(2):
                await run.commit(events=events("emitted"))
        clock.advance(timedelta(days=8))
        for view in views:
            run = RunDriver(view, clock, "r", "flow")
            run.head, run.position = "r@1", 1
            await run.reacquire()
            await run.commit(events=events("another"))
            left = [([*await each.ids()], len(await each.events("r"))) for each in views]
            done = views.index(view) + 1
            assert left == [(["r@1", "r@2"], 1)] * done + [(["finished@0", "r@0", "r@1"], 1)] * (3 - done)

    async def test_run_moves_from_one_tenant_to_another(self, store: TenantStore, clock: ManualClock) -> None:
        ours, theirs = store.tenant("ours"), store.tenant("theirs")
        await (await make_sample_run(ours, clock)).release()
        before = await read_run(ours)
        await theirs.restore(await ours.archive("r"))
        assert await read_run(theirs) == before
        await ours.remove("r")
        await ours.collect()
        assert await read_run(theirs) == before
        assert await read_run(store) == NOTHING

    async def test_two_views_of_one_tenant_wake_each_other(self, store: TenantStore, clock: ManualClock) -> None:
        run = await RunDriver.start(store.tenant("ours"), clock, "r")
        await run.commit(status="idle")
        view = store.tenant("ours")
        watch = await watcher(view, "r", seen=run.at("r@0"))
        await run.commit(status="idle")
        assert await asyncio.wait_for(watch, UNWOKEN_SECONDS) == run.at("r@1")


class HostTenantConformance(TenantConformance, HostStoreSuite):
    """Work lists of one tenant show nothing of another's."""

    async def test_tenant_sees_only_its_own_work(self, store: HostStore, clock: ManualClock) -> None:
        await _require_isolated(store, clock, HOST_LOOKS)

    async def test_work_for_one_view_of_a_tenant_notifies_another(self, store: HostStore, clock: ManualClock) -> None:
        run = await RunDriver.start(store.tenant("ours"), clock, "r")
        await run.commit(status="idle")
        async with store.tenant("ours").subscribe() as subscription:
            subscription.clear()
            await run.post(command("a"))
            await asyncio.wait_for(subscription.wait(), UNWOKEN_SECONDS)
