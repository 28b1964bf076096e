"""Values that are large are told of, and those that are too large are refused; a run loses nothing by it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from perdure import (
    EncodeError,
    Executor,
    InMemoryCheckpointStorage,
    Log,
    SizeLimits,
    SqliteCheckpointStorage,
    ValueTooLargeError,
    Workflow,
    WorkflowBuilder,
    WorkflowContext,
    handler,
    response_handler,
)
from perdure.codec import Encoded
from perdure.codec.codec import BLOB_SIZE_MAX
from perdure.records import Blob

if TYPE_CHECKING:
    from pathlib import Path

LIMITS = SizeLimits(soft=1_000, hard=10_000)


class Packer(Executor):
    """Does with a value of so many bytes what `what` says."""

    def __init__(self, what: str, *, size: int) -> None:
        super().__init__(id="packer")
        self.what = what
        self.size = size
        self.saved = ""

    @handler
    async def pack(self, times: int, ctx: WorkflowContext[int | str, str]) -> None:
        load = "x" * self.size
        match self.what:
            case "state":
                ctx.set_state("cart", load)
            case "message":
                await ctx.send_message(load)
            case "output":
                await ctx.yield_output(load)
            case "request":
                await ctx.request_info(load, str)
            case _:
                self.saved = load
        if times > 1:
            await ctx.send_message(times - 1)

    @handler
    async def unpack(self, load: str, ctx: WorkflowContext) -> None:
        assert (len(load), ctx.source_executor_ids) == (self.size, [self.id])

    @response_handler
    async def answered(self, load: str, answer: str, ctx: WorkflowContext[None, str]) -> None:
        await ctx.yield_output(answer[: len(load)])

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"saved": self.saved}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.saved = state["saved"]


def packing(what: str, storage: object, *, size: int) -> Workflow:
    packer = Packer(what, size=size)
    builder = WorkflowBuilder(name="packing", start_executor=packer, checkpoint_storage=storage)  # pyright: ignore[reportArgumentType]
    return builder.add_edge(packer, packer).build()


PLACES = [
    ("state", "state['cart']"),
    ("message", "message of executor 'packer'"),
    ("output", "output of executor 'packer'"),
    ("request", "request of executor 'packer'"),
    ("executor", "state of executor 'packer'"),
]


def warnings(events: Any) -> list[str]:
    return [event.data for event in events if event.type == "warning"]


@pytest.mark.parametrize(("what", "path"), PLACES)
async def test_a_value_above_the_soft_limit_is_kept_and_named_in_a_warning(what: str, path: str) -> None:
    storage = InMemoryCheckpointStorage(size_limits=LIMITS)
    told = await packing(what, storage, size=2_000).run(1, run_id="r")
    [warning] = [text for text in warnings(told) if text.startswith(path)]
    assert warning.startswith(f"{path} takes 2,0")
    kept = [event.data async for event in storage.events("r") if event.type == "warning"]
    assert warning in kept


@pytest.mark.parametrize(("what", "path"), PLACES)
async def test_a_value_above_the_hard_limit_is_refused_with_its_name(what: str, path: str) -> None:
    workflow = packing(what, InMemoryCheckpointStorage(size_limits=LIMITS), size=20_000)
    with pytest.raises(ValueTooLargeError) as caught:
        await workflow.run(1, run_id="r")
    assert (caught.value.path, caught.value.limit) == (path, 10_000)
    assert 20_000 < caught.value.size < 21_000
    assert "object store" in str(caught.value)
    assert "SizeLimits(hard=...)" in str(caught.value)
    assert isinstance(caught.value, EncodeError)


async def test_a_place_is_warned_of_once_in_a_run() -> None:
    storage = InMemoryCheckpointStorage(size_limits=LIMITS)
    workflow = packing("state", storage, size=2_000)
    assert len(warnings(await workflow.run(5, run_id="r1"))) == 1
    assert len(warnings(await workflow.run(5, run_id="r2"))) == 1


async def test_run_gets_no_warnings_of_an_earlier_failed_run() -> None:
    packer = Packer("state", size=2_000)
    storage = InMemoryCheckpointStorage(size_limits=LIMITS)
    workflow = WorkflowBuilder(name="packing", start_executor=packer, checkpoint_storage=storage).build()
    packer.saved = "x" * 20_000
    with pytest.raises(ValueTooLargeError):
        await workflow.run(1, run_id="heavy")
    packer.size, packer.saved = 1, ""
    assert warnings(await workflow.run(1, run_id="light")) == []


class Filling(Executor):
    """Appends three hundred bytes to a log at a time, and fails when it has done so for a while."""

    calls = 0

    @handler
    async def fill(self, times: int, ctx: WorkflowContext[int]) -> None:
        self.calls += 1
        if self.calls > 15:
            raise RuntimeError("tired")
        log: Log[str] = ctx.get_state("log") or Log()
        log.append(f"{times} " + "x" * 300)
        ctx.set_state("log", log)
        await ctx.send_message(times + 1)


async def test_growing_value_reaches_its_limit_in_any_attempt(tmp_path: Path) -> None:
    async def live(*given: int) -> None:
        async with SqliteCheckpointStorage(tmp_path / "runs.db", size_limits=LIMITS) as storage:
            filling = Filling(id="filling")
            builder = WorkflowBuilder(name="filling", start_executor=filling, checkpoint_storage=storage)
            await builder.add_edge(filling, filling).build().run(*given, run_id="r")

    for given in ((1,), ()):
        with pytest.raises(RuntimeError, match="tired"):
            await live(*given)
    with pytest.raises(ValueTooLargeError) as caught:
        await live()
    assert 10_000 < caught.value.size < 10_500


class Sibling(Executor):
    """The heavy one puts much where `what` says; the other one waits for it, and fails once."""

    def __init__(self, id: str, what: str, failures: list[str]) -> None:  # noqa: A002
        super().__init__(id=id)
        self.what = what
        self.failures = failures
        self.saved = ""

    @handler
    async def work(self, text: str, ctx: WorkflowContext) -> None:
        del text
        if self.id == "heavy":
            if self.what == "state":
                ctx.set_state("cart", "x" * 2_000)
            else:
                self.saved = "x" * 2_000
        elif self.failures:
            for _ in range(30):
                await asyncio.sleep(0)
            raise RuntimeError(self.failures.pop())

    async def on_checkpoint_save(self) -> dict[str, Any]:
        return {"saved": self.saved}

    async def on_checkpoint_restore(self, state: dict[str, Any]) -> None:
        self.saved = state["saved"]


class Start(Executor):
    @handler
    async def begin(self, text: str, ctx: WorkflowContext[str]) -> None:
        await ctx.send_message(text)


@pytest.mark.parametrize("what", ["state", "executor"])
async def test_a_warning_is_not_lost_with_the_superstep_in_which_it_was_due(what: str) -> None:
    storage, failures = InMemoryCheckpointStorage(size_limits=LIMITS), ["once"]

    def workflow() -> Workflow:
        start, heavy, light = Start(id="start"), Sibling("heavy", what, failures), Sibling("light", what, failures)
        builder = WorkflowBuilder(name="siblings", start_executor=start, checkpoint_storage=storage)
        return builder.add_fan_out_edges(start, [heavy, light]).build()

    with pytest.raises(RuntimeError, match="once"):
        await workflow().run("go", run_id="r")
    await workflow().run(run_id="r")
    kept = [event.data async for event in storage.events("r") if event.type == "warning"]
    assert [text.split(" takes")[0] for text in kept] == [dict(PLACES)[what].replace("packer", "heavy")]


async def test_a_run_that_was_refused_goes_on_with_a_higher_limit(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    async with SqliteCheckpointStorage(path, size_limits=LIMITS) as storage:
        with pytest.raises(ValueTooLargeError):
            await packing("state", storage, size=20_000).run(2, run_id="r")
        assert await storage.list_checkpoint_ids() == ["r@0"]
    async with SqliteCheckpointStorage(path, size_limits=None) as storage:
        told = await packing("state", storage, size=20_000).run(run_id="r")
        assert warnings(told) == []
        checkpoint = await storage.get_latest(workflow_name="packing")
        assert checkpoint is not None
        assert len(checkpoint.state["cart"]) == 20_000


async def test_an_answer_and_a_message_that_are_too_large_never_come_into_the_inbox() -> None:
    storage = InMemoryCheckpointStorage(size_limits=LIMITS)
    workflow = packing("request", storage, size=1)
    await workflow.run(1, run_id="r")
    [request] = await storage.requests("r")
    with pytest.raises(ValueTooLargeError, match="answer to request"):
        await storage.respond("r", {request.request_id: "x" * 20_000})
    with pytest.raises(ValueTooLargeError, match="message"):
        await storage.send("r", "x" * 20_000, target="packer")
    assert await storage.store.inbox("r") == []


async def test_a_tenant_has_the_limits_of_its_storage() -> None:
    storage = InMemoryCheckpointStorage(size_limits=LIMITS)
    with pytest.raises(ValueTooLargeError):
        await packing("state", storage.tenant("ada"), size=20_000).run(1, run_id="r")


async def test_values_above_eight_mebibytes_cause_a_warning_by_default() -> None:
    told = await packing("output", InMemoryCheckpointStorage(), size=8 * 1024 * 1024).run(1, run_id="r")
    assert [text.partition(" takes")[0] for text in warnings(told)] == ["output of executor 'packer'"]


@pytest.mark.parametrize("limits", [{"soft": 0}, {"hard": -1}])
def test_limits_below_one_byte_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="give 1 or more, or None"):
        SizeLimits(**limits)


def test_no_blob_is_larger_than_what_every_database_takes_whatever_the_limits_say() -> None:
    class Long(bytes):
        """Bytes that say that they are too many, so that a test need not have them."""

        def __len__(self) -> int:
            return BLOB_SIZE_MAX + 1

    encoded = Encoded(b"{}", {"h": Blob("h", Long(), kind="raw")}, ("h",))
    with pytest.raises(ValueTooLargeError, match="is the limit; keep it in a file or an object store and store the"):
        SizeLimits(soft=None, hard=None).require_fit(encoded, "state['film']")
