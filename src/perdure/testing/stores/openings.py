"""Openings: what a run is opened with is read at once as it is read one by one. A store need not be able to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from perdure.errors import CheckpointNotFoundError, WorkflowCheckpointException
from perdure.records import SinceHead, WholeCheckpoint
from perdure.storage import reads_at_once
from perdure.testing.stores.driver import RunDriver, command, finished, raw_part, text_part
from perdure.testing.stores.ids import REFUSED_IDS
from perdure.testing.stores.suite import StoreSuite, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import Openings, Store
    from perdure.testing.clock import ManualClock


class OpeningConformance(StoreSuite):
    """Whoever reads at once is shown the same as who reads one by one."""

    @in_a_loop
    async def test_a_checkpoint_comes_with_its_parts_and_its_run(self, store: Store, clock: ManualClock) -> None:
        opened = _opened(store)
        leaf = text_part("leaf")
        branch = raw_part(b"branch" * 5000, leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": branch}, leaf)
        await run.commit({"b": text_part("newer")})
        for checkpoint_id in ("r@0", "r@1"):
            manifest = await store.manifest(checkpoint_id)
            assert await opened.whole_checkpoint(checkpoint_id) == WholeCheckpoint(
                manifest, await store.parts(manifest.roots), await run.record()
            )
        assert (await opened.whole_checkpoint("r@0")).parts == {part.hash: part.data for part in (leaf, branch)}

    @in_a_loop
    async def test_a_checkpoint_that_is_not_there_is_not_found_with_its_run_either(
        self, store: Store, clock: ManualClock
    ) -> None:
        opened = _opened(store)
        await (await RunDriver.start(store, clock, "r")).commit()
        with pytest.raises(CheckpointNotFoundError):
            await opened.whole_checkpoint("r@1")

    @in_a_loop
    async def test_a_journal_comes_with_the_inbox(self, store: Store, clock: ManualClock) -> None:
        opened = _opened(store)
        assert _listed(await opened.since_head("r")) == ([], [])
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert _listed(await opened.since_head("r")) == ([], [])
        await run.note(finished("a", "1"), finished("b", "2", text_part("of b")))
        await run.post(command("c", "3", text_part("of c")), command("d", "4"))
        since = await opened.since_head("r")
        assert _listed(since) == (list(await store.journal("r")), list(await store.inbox("r")))
        assert [record.key for record in since.journal] == ["a", "b"]
        assert [each.id for each in since.inbox] == ["c", "d"]

    @in_a_loop
    async def test_what_can_not_be_an_id_is_refused_by_who_reads_at_once(self, store: Store) -> None:
        opened = _opened(store)
        for name in REFUSED_IDS:
            with pytest.raises(WorkflowCheckpointException):
                await opened.whole_checkpoint(name)
            with pytest.raises(WorkflowCheckpointException):
                await opened.since_head(name)


def _opened(store: Store) -> Openings:
    """The store, if it reads at once."""
    if not reads_at_once(store):
        pytest.skip("this store is asked for one after the other")
    return store


def _listed(since: SinceHead) -> tuple[list[object], list[object]]:
    return list(since.journal), list(since.inbox)
