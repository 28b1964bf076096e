"""Types that a run may store and read back; others are refused when they are saved."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Never

import pytest
from pydantic import BaseModel

from perdure import EncodeError, Executor, UntrustedTypeError, WorkflowBuilder, WorkflowContext, handler, register_type

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from conftest import Storage
    from perdure import Workflow


@dataclass
class Seen:
    """Visible by name in the module of the executors below."""

    number: int


class Couple(NamedTuple):
    """The same, a named tuple."""

    left: Seen
    right: Seen


class Model(BaseModel):
    """The same, a model."""

    seen: list[Seen] = []


class Keeper(Executor):
    """Keeps what a function makes in the state, and shows it a superstep later."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__("keeper")
        self.make = make
        self.shown: Any = None

    @handler
    async def keep(self, number: int, ctx: WorkflowContext[str, str]) -> None:
        ctx.set_state("kept", {"number": number, "things": [None, self.make()]})
        await ctx.send_message("show")

    @handler
    async def show(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
        del text
        self.shown = ctx.get_state("kept")["things"][1]


def keeping(storage: Storage, make: Callable[[], Any] = object) -> tuple[Workflow, Keeper]:
    keeper = Keeper(make)
    builder = WorkflowBuilder(start_executor=keeper, name="keeping", checkpoint_storage=storage)
    return builder.add_edge(keeper, keeper).build(), keeper


def elsewhere(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module that no executor was defined in, with a dataclass of its own."""
    module = type(sys)(name)
    code = "from dataclasses import dataclass\n@dataclass\nclass Price:\n    cents: int\n"
    monkeypatch.setitem(sys.modules, name, module)
    exec(code, module.__dict__)
    return module


@pytest.mark.parametrize("value", [Seen(1), Couple(Seen(1), Seen(2)), Model(seen=[Seen(3)])])
async def test_data_types_visible_in_the_module_of_an_executor_are_trusted(storage: Storage, value: Any) -> None:
    workflow, _ = keeping(storage, lambda: value)
    await workflow.run(1)
    (_, kept, _) = await storage.list_checkpoint_ids()
    again, keeper = keeping(storage)
    await again.run(checkpoint_id=kept)
    assert keeper.shown == value
    assert type(keeper.shown) is type(value)


async def test_a_type_that_is_not_declared_is_refused_when_it_is_saved_with_its_path_and_a_remedy(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = elsewhere("prices_one", monkeypatch).Price
    workflow, _ = keeping(storage, lambda: price(5))
    with pytest.raises(EncodeError) as caught:
        await workflow.run(1)
    assert caught.value.path == "state['kept']['things'][1]"
    assert "'prices_one:Price'" in caught.value.reason
    for way in ("handler's annotations", "register_type", "allowed_checkpoint_types"):
        assert way in caught.value.remedy
    assert len(await storage.list_checkpoint_ids()) == 1


@pytest.mark.parametrize("way", ["name", "class"])
async def test_a_listed_type_is_trusted(
    open_storage: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    price = elsewhere("prices_two", monkeypatch).Price
    listed = "prices_two:Price" if way == "name" else price
    async with open_storage(allowed_checkpoint_types=[listed]) as storage:
        workflow, _ = keeping(storage, lambda: price(5))
        await workflow.run(1)
        (_, kept, _) = await storage.list_checkpoint_ids()
        again, keeper = keeping(storage)
        await again.run(checkpoint_id=kept)
        assert keeper.shown == price(5)


async def test_a_registered_type_is_trusted_and_keeps_its_name_when_it_moves(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    price = elsewhere("prices_three", monkeypatch).Price
    register_type(price, name="price-three")
    workflow, _ = keeping(storage, lambda: price(5))
    await workflow.run(1)
    (_, kept, _) = await storage.list_checkpoint_ids()
    again, keeper = keeping(storage)
    await again.run(checkpoint_id=kept)
    assert keeper.shown == price(5)


async def test_a_type_that_only_the_writing_program_declared_is_refused_by_the_reading_one(
    open_on_disk: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch
) -> None:
    price = elsewhere("prices_four", monkeypatch).Price
    async with open_on_disk(allowed_checkpoint_types=[price]) as storage:
        workflow, _ = keeping(storage, lambda: price(5))
        await workflow.run(1)
        (_, kept, _) = await storage.list_checkpoint_ids()
    async with open_on_disk() as storage:
        again, keeper = keeping(storage)
        with pytest.raises(UntrustedTypeError, match="'prices_four:Price'") as caught:
            await again.run(checkpoint_id=kept)
        assert caught.value.path == "state['kept']['things'][1]"
        assert keeper.shown is None


async def test_listing_decodes_nothing(open_on_disk: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch) -> None:
    price = elsewhere("prices_five", monkeypatch).Price
    async with open_on_disk(allowed_checkpoint_types=[price]) as storage:
        workflow, _ = keeping(storage, lambda: price(5))
        await workflow.run(1)
    async with open_on_disk() as storage:
        (entry, kept, last) = await storage.list_checkpoints(workflow_name="keeping")
        assert [c.iteration_count for c in (entry, kept, last)] == [0, 1, 2]
        latest = await storage.get_latest(workflow_name="keeping")
        assert latest is not None
        assert latest.checkpoint_id == last.checkpoint_id
        with pytest.raises(UntrustedTypeError, match="'prices_five:Price'"):
            _ = kept.state


async def test_reading_imports_nothing(open_on_disk: Callable[..., Storage], monkeypatch: pytest.MonkeyPatch) -> None:
    price = elsewhere("prices_six", monkeypatch).Price
    async with open_on_disk(allowed_checkpoint_types=["prices_six:Price"]) as storage:
        workflow, _ = keeping(storage, lambda: price(5))
        await workflow.run(1)
        (_, kept, _) = await storage.list_checkpoint_ids()
    monkeypatch.delitem(sys.modules, "prices_six")
    async with open_on_disk(allowed_checkpoint_types=["prices_six:Price"]) as storage:
        again, _ = keeping(storage)
        with pytest.raises(UntrustedTypeError, match="'prices_six:Price'"):
            await again.run(checkpoint_id=kept)
    assert "prices_six" not in sys.modules


async def test_pickle_is_used_by_those_who_ask_for_it_alone(open_storage: Callable[..., Storage]) -> None:
    async with open_storage() as storage:
        workflow, _ = keeping(storage, lambda: range)
        await workflow.run(1)
    async with open_storage() as storage:
        workflow, _ = keeping(storage, lambda: Opaque(5))
        with pytest.raises(EncodeError):
            await workflow.run(1, run_id="without")
    async with open_storage(allow_pickle=True, allowed_checkpoint_types=[Opaque]) as storage:
        workflow, keeper = keeping(storage, lambda: Opaque(5))
        await workflow.run(1, run_id="with")
        assert keeper.shown.number == 5


class Opaque:
    """No data type: only pickle knows how to keep it."""

    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class Deep:
    """A type with another inside."""

    inner: list[Seen] = field(default_factory=list[Seen])


async def test_the_types_of_a_checkpoint_can_be_looked_at_before_the_workflow_has_run(
    open_on_disk: Callable[..., Storage],
) -> None:
    async with open_on_disk() as storage:
        workflow, _ = keeping(storage, lambda: Deep([Seen(1)]))
        await workflow.run(1)
    async with open_on_disk() as storage:
        keeping(storage)
        latest = await storage.get_latest(workflow_name="keeping")
        assert latest is not None
        assert latest.state["kept"]["things"][1] == Deep([Seen(1)])
