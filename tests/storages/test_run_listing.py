"""Listings of runs and requests: the same on every store, a page at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import Executor, RunNotFoundError, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.storage import StoreStorage


class Clerk(Executor):
    @handler
    async def take(self, order: str, ctx: WorkflowContext[str, str]) -> None:
        match order.split():
            case ["fail", sku]:
                raise KeyError(sku)
            case ["ask", *questions]:
                for question in questions:
                    await ctx.request_info(question, bool, request_id=question)
            case _:
                ctx.spend(tokens=7)
                await ctx.yield_output(order)

    @response_handler
    async def answered(self, question: str, is_right: bool, ctx: WorkflowContext[str, str]) -> None:  # noqa: FBT001
        await ctx.yield_output(f"{question}: {is_right}")


def orders(clock: Clock | None = None, name: str = "orders") -> Workflow:
    return WorkflowBuilder(name=name, start_executor=Clerk("clerk"), clock=clock).build()


async def run(storage: StoreStorage, run_id: str, order: str, *, name: str = "orders", **tags: str) -> None:
    await orders(storage.clock, name).run(order, run_id=run_id, checkpoint_storage=storage, tags=tags)


@pytest.fixture(params=KINDS)
def storage(request: pytest.FixtureRequest, tmp_path: Path, clock: ManualClock) -> StoreStorage:
    return opened(request.param, tmp_path, clock=clock)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def filled(storage: StoreStorage, clock: ManualClock) -> StoreStorage:
    await run(storage, "done", "pay", customer="acme", priority="1")
    clock.advance(timedelta(hours=1))
    await run(storage, "asks", "ask a b", customer="acme")
    clock.advance(timedelta(hours=1))
    with pytest.raises(KeyError):
        await run(storage, "failed", "fail sku-17", customer="duck")
    clock.advance(timedelta(hours=1))
    await run(storage, "other", "ask c", name="returns", customer="acme")
    clock.advance(timedelta(hours=1))
    await storage.respond("asks", {"a": True})
    return storage


async def ids(storage: StoreStorage, *args: object, **chosen: object) -> list[str]:
    return [info.run_id for info in await storage.runs(*args, **chosen)]  # pyright: ignore[reportArgumentType]


async def test_runs_are_found_by_every_condition(filled: StoreStorage, clock: ManualClock) -> None:
    start = (await filled.run("done")).created_at
    assert await ids(filled) == ["done", "asks", "failed", "other"]
    assert await ids(filled, "returns") == ["other"]
    assert await ids(filled, status="waiting") == ["asks", "other"]
    assert await ids(filled, status=["failed", "idle"]) == ["done", "failed"]
    assert await ids(filled, tags={"customer": "acme"}) == ["done", "asks", "other"]
    assert await ids(filled, tags={"customer": "acme", "priority": "1"}) == ["done"]
    assert await ids(filled, tags={"customer": "acme", "priority": "2"}) == []
    assert await ids(filled, error="SKU-17") == ["failed"]
    assert await ids(filled, error="%") == []
    assert await ids(filled, created_after=start + timedelta(minutes=90)) == ["failed", "other"]
    assert await ids(filled, created_before=start + timedelta(minutes=90)) == ["done", "asks"]
    assert await ids(filled, updated_after=clock.now() - timedelta(minutes=90)) == ["other"]
    assert await ids(filled, updated_before=start + timedelta(minutes=30)) == ["done"]
    assert await ids(filled, "orders", "waiting", tags={"customer": "acme"}) == ["asks"]


async def test_pages_follow_each_other_in_every_order(filled: StoreStorage) -> None:
    await orders(filled.clock).run(run_id="asks", responses={"b": True}, checkpoint_storage=filled)
    for order, expected in (
        ("oldest", ["done", "asks", "failed", "other"]),
        ("newest", ["other", "failed", "asks", "done"]),
        ("updated", ["asks", "other", "failed", "done"]),
    ):
        found: list[str] = []
        while page := await ids(filled, order=order, limit=2, after=found[-1] if found else None):
            assert len(page) <= 2
            found += page
        assert found == expected
    with pytest.raises(RunNotFoundError):
        await filled.runs(after="nobody")


async def test_runs_are_counted_by_status(filled: StoreStorage) -> None:
    assert await filled.count_runs() == {"idle": 1, "waiting": 2, "failed": 1}
    assert await filled.count_runs("orders", tags={"customer": "acme"}) == {"idle": 1, "waiting": 1}


async def test_a_run_is_described(filled: StoreStorage) -> None:
    done, asks, failed = [await filled.run(run_id) for run_id in ("done", "asks", "failed")]
    assert done.tags == {"customer": "acme", "priority": "1"}
    assert (done.supersteps, done.version, done.open_requests, done.spent) == (1, 1, 0, {"tokens": 7})
    assert done.finished_at == done.updated_at == done.created_at
    assert (asks.open_requests, asks.finished_at) == (2, None)
    assert failed.finished_at is not None
    assert failed.error == "KeyError: 'sku-17'"
    with pytest.raises(RunNotFoundError):
        await filled.run("nobody")


async def test_forks_know_their_parent_and_inherit_its_tags(filled: StoreStorage) -> None:
    workflow = orders()
    await workflow.run(checkpoint_id="asks@0", checkpoint_storage=filled)
    [fork] = await filled.runs(parent="asks")
    assert (fork.parent_run_id, fork.parent_checkpoint_id) == ("asks", "asks@0")
    assert fork.tags == {"customer": "acme"}


async def test_requests_come_in_pages(filled: StoreStorage) -> None:
    found = await filled.requests()
    assert [(each.run_id, each.request_id, each.answered_by is None) for each in found] == [
        ("asks", "a", False),
        ("asks", "b", True),
        ("other", "c", True),
    ]
    assert [each.request_id for each in await filled.requests(limit=1)] == ["a"]
    assert [each.request_id for each in await filled.requests(limit=1, after=found[0])] == ["b"]
    assert [each.request_id for each in await filled.requests(after=found[1])] == ["c"]
    assert await filled.requests(after=found[2]) == []
    assert [each.request_id for each in await filled.requests(workflow_name="returns")] == ["c"]
    assert [each.request_id for each in await filled.requests(tags={"customer": "duck"})] == []


async def test_requests_of_a_run_that_was_taken_back_are_found(filled: StoreStorage) -> None:
    await orders(filled.clock).run(run_id="asks", responses={"b": True}, checkpoint_storage=filled)
    assert [each.request_id for each in await filled.requests()] == ["c"]
    handle = await orders().start(run_id="asks", checkpoint_storage=filled)
    await handle.restore("asks@1")
    assert [each.request_id for each in await filled.requests()] == ["a", "b", "c"]


@pytest.mark.parametrize("tags", [{"": "x"}, {"x": ""}, {"x": 1}, {"x" * 257: "y"}, {"x": "\ud800"}])
async def test_tags_are_short_texts(tags: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="tag"):
        await orders().run("pay", checkpoint_storage=f"sqlite:///{tmp_path}/runs.db", tags=tags)
    with pytest.raises(ValueError, match="at most 32 tags"):
        await orders().run("pay", tags={str(n): "x" for n in range(33)})


@pytest.mark.parametrize("chosen", [{"status": "happy"}, {"order": "random"}, {"limit": 0}])
async def test_unknown_conditions_are_refused(chosen: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"unknown|limit"):
        await opened("sqlite", tmp_path).runs(**chosen)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("kind", KINDS)
async def test_tags_travel_with_an_export(kind: str, tmp_path: Path) -> None:
    source, target = opened(kind, tmp_path), opened("sqlite", tmp_path / "elsewhere")
    await run(source, "r", "pay", customer="acme")
    await source.export_run("r", tmp_path / "r.jsonl")
    await target.import_run(tmp_path / "r.jsonl")
    assert await ids(target, tags={"customer": "acme"}) == ["r"]
