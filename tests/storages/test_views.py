"""Checkpoints as plain data, and their differences, with the store alone."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.storages.kinds import KINDS, opened

from perdure import (
    CheckpointNotFoundError,
    Executor,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    handler,
    response_handler,
)
from perdure.storage import StoreStorage

if TYPE_CHECKING:
    from pathlib import Path


@dataclass
class Cart:
    items: list[str] = field(default_factory=list[str])
    at: datetime = datetime(2024, 1, 1, tzinfo=UTC)


class Shop(Executor):
    @handler
    async def take(self, item: str, ctx: WorkflowContext[Cart, str]) -> None:
        cart = Cart([item])
        ctx.set_state("cart", cart)
        ctx.set_state("raw", b"\x00")
        ctx.spend(tokens=3)
        await ctx.send_message(cart)

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"served": 1}


class Desk(Executor):
    @handler
    async def check(self, cart: Cart, ctx: WorkflowContext[Cart, str]) -> None:
        await ctx.yield_output(cart.items[0])
        await ctx.request_info(cart, bool, request_id="fine?")

    @response_handler
    async def decided(self, cart: Cart, is_fine: bool, ctx: WorkflowContext[Cart, str]) -> None:  # noqa: FBT001
        ctx.set_state("is_fine", (is_fine, cart.items))


def shop(name: str = "shop") -> Workflow:
    taking, desk = Shop("shop"), Desk("desk")
    return WorkflowBuilder(name=name, start_executor=taking).add_edge(taking, desk).build()


@pytest.fixture(params=KINDS)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> StoreStorage:
    storage = opened(request.param, tmp_path)
    await shop().run("tea", run_id="r", checkpoint_storage=storage)
    # As another process sees it, which knows none of the types.
    return StoreStorage(storage.store)


CART = {"$type": f"{__name__}:Cart", "items": ["tea"], "at": "2024-01-01T00:00:00+00:00"}


async def test_a_checkpoint_is_plain_data_without_the_program(storage: StoreStorage) -> None:
    first, middle, last = [await storage.view(f"r@{number}") for number in range(3)]
    assert (first.kind, first.iteration, first.messages[0].value) == ("entry", 0, "tea")
    assert middle.state == {"cart": CART, "raw": {"$type": "bytes", "base64": "AA=="}}
    assert dict(middle.executors) == {"shop": {"served": 1}}
    assert [(each.sources, each.target, each.value) for each in middle.messages] == [(("shop",), "desk", CART)]
    assert middle.spent == {"tokens": 3}
    assert not last.messages
    assert last.outputs == [{"executor": "desk", "kind": "output", "data": "tea"}]
    assert last.requests["fine?"]["data"] == CART
    assert last.requests["fine?"]["response_type"] == "builtins:bool"
    assert (last.graph["start_executor"], set(last.graph["executors"])) == ("shop", {"shop", "desk"})
    assert json.loads(json.dumps(last.to_dict())) == last.to_dict()
    with pytest.raises(CheckpointNotFoundError):
        await storage.view("r@9")


async def test_a_value_that_is_not_looked_at_is_not_read(storage: StoreStorage) -> None:
    view = await storage.view("r@2")
    await storage.store.close()
    read: list[object] = []

    def blobs(roots: Any) -> Any:
        read.append(tuple(roots))
        return {}

    object.__setattr__(view.reader, "blobs", blobs)
    assert (view.kind, sorted(view.state), list(view.requests)) == ("superstep", ["cart", "raw"], ["fine?"])
    assert not read


async def test_large_values_are_cut_with_a_note(storage: StoreStorage) -> None:
    await shop().run("tea" * 1000, run_id="large", checkpoint_storage=storage)
    view = await storage.view("large@1", value_size_max=200)
    assert len(json.dumps(view.state["cart"])) < 600
    assert "cut: 3,000 characters in all" in json.dumps(view.state["cart"], ensure_ascii=False)


async def test_sub_workflows_are_shown(tmp_path: Path) -> None:
    storage = opened("sqlite", tmp_path)
    outer = WorkflowBuilder(name="outer", start_executor=WorkflowExecutor(shop("inner"), id="sub")).build()
    await outer.run("tea", run_id="r", checkpoint_storage=storage)
    view = await storage.view(str((await storage.run("r")).checkpoint_id))
    assert view.sub_workflows["sub"].state["cart"]["items"] == ["tea"]
    assert view.to_dict()["sub_workflows"]["sub"]["requests"]["fine?"]["data"]["items"] == ["tea"]


async def test_a_difference_names_what_was_added_removed_and_changed(storage: StoreStorage) -> None:
    await shop().run("milk", run_id="other", checkpoint_storage=storage)
    found = await storage.diff("r@1", "other@1")
    kinds = {change.path: (change.kind, change.before, change.after) for change in found.changes}
    assert kinds["state//cart/items/0"] == ("changed", "tea", "milk")
    assert "state//raw" not in kinds
    later = {change.path: change.kind for change in (await storage.diff("r@1", "r@2")).changes}
    assert later["deliveries"] == "removed"
    assert later["request/fine?"] == "added"
    assert not (await storage.diff("r@1", "r@1")).changes


async def test_two_runs_are_compared_superstep_by_superstep(storage: StoreStorage) -> None:
    await shop().run("tea", run_id="same", checkpoint_storage=storage)
    await shop().run("milk", run_id="other", checkpoint_storage=storage)
    equal = await storage.diff_runs("r", "same")
    assert (equal.superstep, equal.last_equal) == (None, ("r@2", "same@2"))
    assert ((await storage.diff_runs("r", "other")).turn, (await storage.diff_runs("r", "other")).superstep) == (1, 0)
    await shop().run(run_id="r", responses={"fine?": True}, checkpoint_storage=storage)
    await shop().run(run_id="same", responses={"fine?": False}, checkpoint_storage=storage)
    diverged = await storage.diff_runs("r", "same")
    assert diverged.superstep is not None
    assert diverged.diff is not None
    assert diverged.diff.changes
