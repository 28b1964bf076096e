"""Ids: what may name a run or a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from perdure.errors import WorkflowCheckpointException
from perdure.testing.stores.driver import RunDriver, new_run, text_part
from perdure.testing.stores.suite import StoreSuite, contents_of, in_a_loop

if TYPE_CHECKING:
    from perdure.storage import Store
    from perdure.testing.clock import ManualClock

ODD_IDS = (
    "plain",
    "with space",
    "a/b",
    "a%2Fb",
    "a:b*c?d",
    "UPPER",
    "upper",
    ".hidden",
    "x.json",
    "naïve",
    "日本語",
    "👩‍👩‍👧",
    "~tilde",
    "%7Etilde",
    "-",
    "n" * 200,
    "n" * 199 + "m",
    "日" * 200,
    "日" * 199 + "月",
)
LEAVING_IDS = ("..", "../x", "/etc/passwd", "a/../../x", "..\\x", "a/b/../../../c")
REFUSED_IDS = ("", "new\nline", "nul\0", "n" * 300, "\x1b[31m", *LEAVING_IDS)


class IdConformance(StoreSuite):
    """Any printable string of bounded length names something, unless it is a path that leads out of a directory."""

    @in_a_loop
    async def test_any_printable_string_is_an_id(self, store: Store, clock: ManualClock) -> None:
        for name in ODD_IDS:
            run = await RunDriver.start(store, clock, name)
            await run.commit({"a": text_part(f"first of {ODD_IDS.index(name)}")}, checkpoint_id=name)
            await run.commit()
            await run.release()
        for name in ODD_IDS:
            assert await contents_of(store, name) == {"a": f'"first of {ODD_IDS.index(name)}"'.encode()}
            record = await store.run(name)
            assert record is not None
            assert record.head == f"{name}@1"

    @in_a_loop
    async def test_what_can_not_be_an_id_is_refused(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for name in REFUSED_IDS:
            with pytest.raises(WorkflowCheckpointException):
                await store.claim(name, create=new_run(name))
            with pytest.raises(WorkflowCheckpointException):
                await store.manifest(name)
            commit = run.next_commit()
            with pytest.raises(WorkflowCheckpointException):
                await run.write(replace(commit, manifest=replace(commit.manifest, checkpoint_id=name)))
        assert list(await store.ids()) == []
