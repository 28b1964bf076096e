"""What a size report says of a run, on every storage, with the storage alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.storages.kinds import KINDS, opened
from typing_extensions import override

from perdure import (
    Executor,
    InMemoryCheckpointStorage,
    KeepLast,
    PartSize,
    Retention,
    RunNotFoundError,
    SizeReport,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
)
from perdure.records import Blob, Manifest, NewRun
from perdure.storage import MemoryStore
from perdure.storage.sizes import Scales, format_bytes, name_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping
    from pathlib import Path

    from perdure.storage import StoreStorage

LETTER = "Dear diary. " * 90


class Diarist(Executor):
    """Adds a page to its diary in each superstep, and keeps a photograph that never changes."""

    @handler
    async def write(self, pages: int, ctx: WorkflowContext[int, str]) -> None:
        diary: list[str] = ctx.get_state("diary") or []
        ctx.set_state("diary", [*diary, f"{len(diary)} {LETTER}"])
        if not diary:
            ctx.set_state("photograph", bytes(range(256)) * 200)
            ctx.set_state("copy", bytes(range(256)) * 200)
        if pages > 1:
            await ctx.send_message(pages - 1)
        else:
            await ctx.yield_output("written")


async def diary(storage: StoreStorage, *, pages: int, run_id: str = "diary") -> None:
    diarist = Diarist(id="diarist")
    builder = WorkflowBuilder(
        name="diary", start_executor=diarist, checkpoint_storage=storage, max_iterations=pages + 1
    )
    await builder.add_edge(diarist, diarist).build().run(pages, run_id=run_id)


def entry(report: SizeReport, name: str) -> PartSize:
    [found] = [each for each in report.entries if each.name == name]
    return found


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreStorage]:
    async with opened(request.param, tmp_path) as one:
        yield one


async def test_a_report_says_what_is_large_what_is_new_and_what_grows(storage: StoreStorage) -> None:
    await diary(storage, pages=15)
    report = await storage.size_report("diary")
    assert (report.run_id, report.checkpoint_id, report.since) == ("diary", "diary@15", "diary@14")
    assert report.checkpoints == 16

    pages, photograph = entry(report, "state['diary']"), entry(report, "state['photograph']")
    assert 15 * len(LETTER) < pages.size < 20 * len(LETTER)
    assert pages.parts > 1
    assert 0 < pages.new < pages.size
    assert 9 * len(LETTER) < pages.growth[10] < 12 * len(LETTER)
    assert photograph.size > 51_200
    assert (photograph.new, photograph.growth) == (0, {10: 0})
    assert report.grows[0] == pages
    assert photograph not in report.grows
    assert report.entries == tuple(sorted(report.entries, key=lambda each: (-each.size, each.name)))


async def test_shared_blobs_count_once(storage: StoreStorage) -> None:
    await diary(storage, pages=2)
    report = await storage.size_report("diary")
    photograph, copy = entry(report, "state['photograph']"), entry(report, "state['copy']")
    assert photograph.shared >= 51_200
    assert photograph.shared == copy.shared
    assert report.size < 2 * 51_200
    assert report.parts_stored < 2 * 51_200


async def test_all_that_is_stored_of_a_run_is_counted(storage: StoreStorage) -> None:
    await diary(storage, pages=5)
    report = await storage.size_report("diary")
    events = await storage.store.events("diary")
    assert report.events_stored == sum(len(batch.data) for batch in events) > 0
    assert report.manifests_stored >= sum(len(each.header) for each in await storage.store.manifests(run_id="diary"))
    assert (report.journal_stored, report.inbox_stored) == (0, 0)
    assert report.stored == report.parts_stored + report.manifests_stored + report.events_stored
    await storage.send("diary", 3, target="diarist")
    assert (await storage.size_report("diary")).inbox_stored > 0


async def test_the_head_can_be_compared_with_an_older_one(storage: StoreStorage) -> None:
    await diary(storage, pages=8)
    near, far = await storage.size_report("diary"), await storage.size_report("diary", since=4)
    assert (near.since, far.since) == ("diary@7", "diary@4")
    assert entry(near, "state['diary']").new < entry(far, "state['diary']").new
    assert (await storage.size_report("diary", since=1_000)).since == "diary@0"
    with pytest.raises(ValueError, match="give 1 or more"):
        await storage.size_report("diary", since=0)


async def test_an_unknown_run_has_no_report(storage: StoreStorage) -> None:
    with pytest.raises(RunNotFoundError):
        await storage.size_report("nobody")


async def test_a_report_goes_as_far_back_as_the_retention_does() -> None:
    storage = InMemoryCheckpointStorage(retention=Retention(checkpoints=KeepLast(3)))
    await diary(storage, pages=12)
    report = await storage.size_report("diary", since=50)
    assert (report.checkpoints, report.since) == (3, "diary@10")
    assert entry(report, "state['diary']").growth == {}
    assert report.grows == ()


async def test_growth_is_looked_for_over_a_hundred_checkpoints_too() -> None:
    storage = InMemoryCheckpointStorage()
    await diary(storage, pages=101)
    pages = (await storage.size_report("diary")).grows[0]
    assert pages.growth[100] > 9 * pages.growth[10] > 0


async def test_a_fork_without_a_checkpoint_of_its_own_has_the_report_of_where_it_stands() -> None:
    storage = InMemoryCheckpointStorage()
    await diary(storage, pages=3)
    begun = NewRun("fork", "diary", "2031-01-01T00:00:00+00:00", "nonce", parent_checkpoint_id="diary@2")
    await storage.store.release(await storage.store.acquire("fork", create=begun))
    report = await storage.size_report("fork")
    assert (report.checkpoint_id, report.checkpoints) == ("diary@2", 0)
    assert entry(report, "state['diary']").size > 2 * len(LETTER)


async def test_the_values_of_a_sub_workflow_are_named_with_it() -> None:
    inner = WorkflowBuilder(name="inner", start_executor=Diarist(id="diarist")).build()
    storage = InMemoryCheckpointStorage()
    outer = WorkflowBuilder(
        name="outer", start_executor=WorkflowExecutor(inner, id="inside"), checkpoint_storage=storage
    )
    await outer.build().run(1, run_id="r")
    names = [each.name for each in (await storage.size_report("r")).entries]
    assert any(name.startswith("sub-workflow 'inside': ") for name in names)


async def test_a_report_is_a_table_to_read() -> None:
    storage = InMemoryCheckpointStorage()
    await diary(storage, pages=11)
    first, second, blank, heads, *rows = str(await storage.size_report("diary")).splitlines()
    assert first.startswith("run 'diary' at 'diary@11': ")
    assert second.startswith("stored: ")
    assert " in 12 checkpoints (parts " in second
    assert (blank, heads.split("  ")[0]) == ("", "what")
    assert heads.endswith("growth over 10")
    assert [row for row in rows if row.startswith("state['diary'] ")]


@pytest.mark.parametrize(
    ("path", "name"),
    {
        "state//cart": "state['cart']",
        "state//a/b": "state['a/b']",
        "state/team%2F1/plan": "state['plan'] of scope 'team/1'",
        "executor/writer": "executor 'writer'",
        "request/may-it-go": "request 'may-it-go'",
        "deliveries": "messages",
        "outputs/0": "outputs",
        "outputs/17": "outputs",
        "child/inner%20one/state//x": "sub-workflow 'inner one': state['x']",
        "child/a/child/b/executor/c": "sub-workflow 'a': sub-workflow 'b': executor 'c'",
        "something/new": "something/new",
    }.items(),
)
def test_a_path_has_a_name_in_the_words_of_users(path: str, name: str) -> None:
    assert name_of(path) == name


@pytest.mark.parametrize(
    ("size", "text"),
    {0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", -2048: "-2.0 KiB", 1024**2: "1.0 MiB", 3 * 1024**4: "3.0 TiB"}.items(),
)
def test_sizes_are_for_people(size: int, text: str) -> None:
    assert format_bytes(size) == text


class Shelf(MemoryStore):
    """A store that has these parts and no run."""

    def __init__(self, *blobs: Blob) -> None:
        super().__init__()
        self.held = {blob.hash: blob.data for blob in blobs}

    @override
    async def blobs(self, roots: Iterable[str]) -> Mapping[str, bytes]:
        return self.held


def manifest(**contents: Any) -> Manifest:
    return Manifest("r@1", "r", "w", 1, None, "", 0, b"{}", **contents)


async def test_values_inside_a_checkpoint_or_base_are_measured_too() -> None:
    chunk = Blob.of(b"[1,2,3]")
    listed = Blob.of(b'{"~":"list","chunks":["%s"]}' % chunk.hash.encode(), (chunk.hash,))
    paths = b'"state//old","state//gone","state//n"'
    chunks = b",".join([b'"%s"' % listed.hash.encode()] * 3)
    base = Blob.of(b'{"~":"toc","paths":[%s],"chunks":[%s]}' % (paths, chunks), (listed.hash,))
    pieces = b'{"state//n":[1],"deliveries":{"~":"part","part":"%s"}}' % chunk.hash.encode()
    here = manifest(toc={}, pieces=pieces, refs=(chunk.hash,), base=base.hash, gone=("state//gone",))
    scales = Scales(Shelf(chunk, listed, base))
    await scales.add([here])
    things = scales.values(here)
    assert sorted(things) == ["messages", "state['n']", "state['old']", "table of contents"]
    assert sum(things["state['n']"].values()) == 3
    assert things["messages"][chunk.hash] == 7
    assert things["state['old']"] == {chunk.hash: 7, listed.hash: len(listed.data)}
    assert scales.total == len(chunk.data) + len(listed.data) + len(base.data)
