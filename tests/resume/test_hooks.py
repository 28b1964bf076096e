"""Checkpoint hooks of executors: when they are called, and warnings about executors without them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import pytest
from shapes import Clerk, nested
from typing_extensions import override

from perdure import (
    EncodeError,
    Executor,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from conftest import Storage
    from perdure import Workflow


class Watched(Executor):
    """Keeps a number, and a record of the calls of its hooks."""

    def __init__(self, id: str, calls: list[str]) -> None:  # noqa: A002
        super().__init__(id)
        self.calls = calls
        self.number = 0

    @handler
    async def add(self, number: int, ctx: WorkflowContext[int, int]) -> None:
        self.calls.append(f"{self.id} runs")
        self.number += number
        if number > 1:
            await ctx.send_message(number - 1)
        await ctx.yield_output(self.number)

    @override
    def on_checkpoint_save(self) -> Awaitable[dict[str, Any]] | dict[str, Any]:
        return self.save()

    @override
    def on_checkpoint_restore(self, state: dict[str, Any]) -> Awaitable[None] | None:
        return self.restore(state)

    async def save(self) -> dict[str, Any]:
        self.calls.append(f"{self.id} saves {self.number}")
        return {"number": self.number}

    async def restore(self, state: dict[str, Any]) -> None:
        self.calls.append(f"{self.id} restores {state['number']}")
        self.number = state["number"]


class Sync(Watched):
    """The same with hooks that are no coroutines."""

    @override
    def on_checkpoint_save(self) -> dict[str, Any]:
        self.calls.append(f"{self.id} saves {self.number}")
        return {"number": self.number}

    @override
    def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.calls.append(f"{self.id} restores {state['number']}")
        self.number = state["number"]


def watched(storage: Storage | None, calls: list[str], kind: type[Watched] = Watched) -> Workflow:
    first, second = kind("a", calls), kind("b", calls)
    builder = WorkflowBuilder(start_executor=first, name="watched", checkpoint_storage=storage)
    return builder.add_edge(first, second).build()


@pytest.mark.parametrize("kind", [Watched, Sync])
async def test_executors_save_at_the_entry_and_after_each_of_their_activations(
    storage: Storage, kind: type[Watched]
) -> None:
    calls: list[str] = []
    await watched(storage, calls, kind).run(2)
    assert calls == ["a saves 0", "b saves 0", "a runs", "a saves 2", "b runs", "b saves 1"]


async def test_every_turn_has_an_entry_at_which_all_are_asked(storage: Storage) -> None:
    calls: list[str] = []
    workflow = watched(storage, calls)
    await workflow.run(2)
    calls.clear()
    await workflow.run(1)
    assert calls == ["a saves 2", "b saves 1", "a runs", "a saves 3"]


async def test_what_a_program_changed_of_an_executor_between_two_turns_is_kept(storage: Storage) -> None:
    calls: list[str] = []
    workflow = watched(storage, calls)
    await workflow.run(1)
    node = workflow.executors["b"]
    assert isinstance(node, Watched)
    node.number = 40
    await workflow.run(1)
    assert workflow.run_id is not None
    other = watched(storage, [])
    await other.run(run_id=workflow.run_id)
    twin = other.executors["b"]
    assert isinstance(twin, Watched)
    assert twin.number == 40


@pytest.mark.parametrize("kind", [Watched, Sync])
async def test_a_resume_restores_before_anything_runs(storage: Storage, kind: type[Watched]) -> None:
    await watched(storage, [], kind).run(2)
    (_, first, _) = await storage.list_checkpoint_ids(workflow_name="watched")
    calls: list[str] = []
    resumed = await watched(storage, calls, kind).run(checkpoint_id=first)
    assert calls == ["a restores 2", "b restores 0", "b runs", "b saves 1"]
    assert resumed.get_outputs() == [1]


async def test_without_a_storage_no_hook_is_called(storage: Storage) -> None:
    del storage
    calls: list[str] = []
    workflow = watched(None, calls)
    await workflow.run(2)
    await workflow.run(1)
    assert calls == ["a runs", "b runs", "a runs"]


async def test_a_failure_without_a_storage_calls_no_hook() -> None:
    calls: list[str] = []

    class Broken(Watched):
        @handler
        @override
        async def add(self, number: int, ctx: WorkflowContext[int, int]) -> None:
            del number, ctx
            raise ValueError("broken")

    workflow = WorkflowBuilder(start_executor=Broken("a", calls), name="watched").build()
    with pytest.raises(ValueError, match="broken"):
        await workflow.run(1)
    assert calls == []


async def test_executors_of_a_sub_workflow_are_asked_and_restored_too(storage: Storage) -> None:
    clerk = Clerk()
    clerk.log = ["before"]
    await nested(storage, clerk=clerk).run(["hue"])
    waiting = await storage.get_latest(workflow_name="nested")
    assert waiting is not None
    other = Clerk()
    await nested(storage, clerk=other).run(checkpoint_id=waiting.checkpoint_id, responses={"about-hue": "red"})
    assert other.log == ["before", "red"]


async def test_a_new_run_on_used_executors_begins_with_what_they_had_before_any_run(storage: Storage) -> None:
    calls: list[str] = []
    first = watched(storage, calls)
    builder = WorkflowBuilder(start_executor=first.executors["a"], name="watched", checkpoint_storage=storage)
    second = builder.add_edge(first.executors["a"], first.executors["b"]).build()
    assert (await first.run(2)).get_outputs() == [2, 1]
    assert (await second.run(2)).get_outputs() == [2, 1]
    assert first.run_id != second.run_id
    assert (await first.run(2)).get_outputs() == [4, 2]


async def test_a_new_run_of_a_used_sub_workflow_begins_with_what_it_had_before_any_run(storage: Storage) -> None:
    clerk = Clerk()
    first, second = nested(storage, clerk=clerk), nested(storage, clerk=clerk)
    await first.run(["hue"])
    await first.run(responses={"about-hue": "red"})
    await second.run(["hue"])
    await second.run(responses={"about-hue": "blue"})
    assert clerk.log == ["blue"]


async def test_a_state_that_is_no_dict_is_refused_by_name(storage: Storage) -> None:
    class Wrong(Watched):
        @override
        async def on_checkpoint_save(self) -> dict[str, Any]:
            return [1]  # pyright: ignore[reportReturnType]

    workflow = WorkflowBuilder(start_executor=Wrong("w", []), name="wrong", checkpoint_storage=storage).build()
    with pytest.raises(EncodeError, match=r"state of executor 'w' .* on_checkpoint_save returned a list; .* a dict"):
        await workflow.run(1)


async def test_a_state_that_is_no_dict_only_costs_the_checkpoint_if_the_workflow_is_told_to_warn(
    storage: Storage,
) -> None:
    class Wrong(Watched):
        @override
        async def on_checkpoint_save(self) -> dict[str, Any]:
            return [1]  # pyright: ignore[reportReturnType]

    builder = WorkflowBuilder(
        start_executor=Wrong("w", []), name="wrong", checkpoint_storage=storage, on_checkpoint_error="warn"
    )
    result = await builder.build().run(1)
    assert result.get_outputs() == [1]
    warnings = [event.data for event in result if event.type == "warning"]
    assert warnings
    assert all("on_checkpoint_save returned a list" in warning for warning in warnings)


async def test_a_restore_that_raises_is_told_by_executor(storage: Storage) -> None:
    class Picky(Watched):
        @override
        async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
            raise KeyError("colour")

    await watched(storage, []).run(2)
    head = await storage.get_latest(workflow_name="watched")
    assert head is not None
    with pytest.raises(WorkflowCheckpointException, match="executor 'a' could not restore its stored state"):
        await watched(storage, [], Picky).run(checkpoint_id=head.checkpoint_id)


async def warnings_of(workflow: Workflow, message: Any) -> list[str]:
    return [event.data for event in await workflow.run(message) if event.type == "warning"]


class Forgetful(Executor):
    """Changes an attribute, and has no hooks."""

    def __init__(self) -> None:
        super().__init__("forgetful")
        self.total = 0
        self.items: list[int] = []

    @handler
    async def rebind(self, number: int, ctx: WorkflowContext[Never, int]) -> None:
        self.total += number
        await ctx.yield_output(self.total)

    @handler
    async def grow(self, text: str, ctx: WorkflowContext[Never, int]) -> None:
        self.items.append(len(text))
        await ctx.yield_output(len(self.items))


@pytest.mark.parametrize(("message", "attribute"), [(1, "total"), ("x", "items")])
async def test_an_executor_without_hooks_that_changes_is_named_with_its_attribute_once(
    storage: Storage, message: Any, attribute: str
) -> None:
    workflow = WorkflowBuilder(start_executor=Forgetful(), name="forgetful", checkpoint_storage=storage).build()
    (warning,) = await warnings_of(workflow, message)
    assert "'forgetful'" in warning
    assert f"'{attribute}'" in warning
    assert "on_checkpoint_save" in warning
    assert await warnings_of(workflow, message) == []


async def test_an_executor_that_does_not_change_is_not_warned_about(storage: Storage) -> None:
    @executor(id="still")
    async def still(text: str, ctx: WorkflowContext[Never, str]) -> None:
        await ctx.yield_output(text)

    assert (
        await warnings_of(WorkflowBuilder(start_executor=still, name="still", checkpoint_storage=storage).build(), "x")
        == []
    )
    assert await warnings_of(watched(storage, []), 2) == []


async def test_without_a_storage_nothing_would_be_lost_and_nothing_is_warned_about() -> None:
    assert await warnings_of(WorkflowBuilder(start_executor=Forgetful(), name="forgetful").build(), 1) == []


async def test_a_change_inside_a_sub_workflow_is_noticed_too(storage: Storage) -> None:
    inner = WorkflowBuilder(start_executor=Forgetful(), name="inner").build()
    outer = WorkflowExecutor(inner, id="outer", allow_direct_output=True)
    workflow = WorkflowBuilder(start_executor=outer, name="outer", checkpoint_storage=storage).build()
    events = await workflow.run(1)
    told = [event.data for event in events if event.type == "sub_workflow" and event.data.type == "warning"]
    assert len(told) == 1
    again = await workflow.run(1)
    assert not [event for event in again if event.type == "sub_workflow" and event.data.type == "warning"]


class Offline:
    """Has a length that can't be asked for."""

    def __len__(self) -> int:
        raise ConnectionError("not connected")


async def test_an_attribute_whose_length_can_not_be_asked_for_fails_nothing(storage: Storage) -> None:
    class Connected(Executor):
        def __init__(self) -> None:
            super().__init__("connected")
            self.table = Offline()

        @handler
        async def tell(self, text: str, ctx: WorkflowContext[Never, str]) -> None:
            await ctx.yield_output(text)

    workflow = WorkflowBuilder(start_executor=Connected(), name="connected", checkpoint_storage=storage).build()
    assert await warnings_of(workflow, "x") == []


class Heir(Executor):
    """Extends the hooks of the base class, as programs for agent-framework do."""

    def __init__(self) -> None:
        super().__init__("heir")
        self.number = 0

    @handler
    async def add(self, number: int, ctx: WorkflowContext[Never, int]) -> None:
        self.number += number
        await ctx.yield_output(self.number)

    @override
    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {**await super().on_checkpoint_save(), "number": self.number}

    @override
    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        await super().on_checkpoint_restore(state)
        self.number = state["number"]


async def test_overridden_hooks_may_await_those_of_the_base_class(storage: Storage) -> None:
    def build() -> Workflow:
        return WorkflowBuilder(start_executor=Heir(), name="heirs", checkpoint_storage=storage).build()

    await build().run(1, run_id="r")
    again = build()
    await again.run(run_id="r")
    assert (await again.run(2)).get_outputs() == [3]


def test_sync_hooks_may_call_those_of_the_base_class() -> None:
    plain = Heir()
    assert Executor.on_checkpoint_save(plain) == {}
    Executor.on_checkpoint_restore(plain, {})


async def test_an_executor_without_hooks_of_its_own_saves_nothing(storage: Storage) -> None:
    @executor
    async def plain(number: int, ctx: WorkflowContext[Never, int]) -> None:
        await ctx.yield_output(number)

    await WorkflowBuilder(start_executor=plain, name="plain").build().run(1, checkpoint_storage=storage)
    checkpoint = await storage.get_latest(workflow_name="plain")
    assert checkpoint is not None
    assert checkpoint.state["_executor_state"] == {}
