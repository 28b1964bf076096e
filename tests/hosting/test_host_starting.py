"""Starting runs on a host: durable at once, the same run for the same id and message, whoever asks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import pytest
from tests.hosting.flows import Clerk, Gate, fail, office, pass_on, row, shout, until

from perdure import (
    Host,
    RunBlockedError,
    RunExistsError,
    RunNotFoundError,
    Secret,
    UnknownWorkflowError,
    Workflow,
    WorkflowBuilder,
    WorkflowExecutor,
    WorkflowRunState,
)
from perdure.errors import EncodeError, RunFailedError

if TYPE_CHECKING:
    from tests.hosting.places import Storage
    from tests.workflow.nodes import Context


def host_of(storage: Storage, *doings: Any, **options: Any) -> Host:
    host = Host(storage, **options)
    host.register(row("w", *(doings or (pass_on, shout))))
    return host


async def test_a_started_run_gives_its_result(storage: Storage) -> None:
    async with host_of(storage) as host:
        run = await host.start("w", "hi", run_id="r")
        result = await run.result()
    assert result.get_outputs() == ["hi!"]
    assert result.get_final_state() is WorkflowRunState.IDLE


async def test_a_started_run_is_durable_even_if_no_host_serves(storage: Storage) -> None:
    host = host_of(storage)
    run = await host.start("w", "hi")
    info = await run.info()
    assert (info.status, info.owner, info.attempts, info.workflow_name) == ("blocked", None, 0, "w")
    assert info.blocked == {}
    async with host_of(storage):
        assert (await run.result()).get_outputs() == ["hi!"]


async def test_the_same_id_and_message_is_the_same_run_while_it_runs(storage: Storage) -> None:
    gate = Gate()
    async with host_of(storage, gate) as host:
        await host.start("w", "hi", run_id="r")
        await gate.holds(1)
        again = await host.start("w", "hi", run_id="r")
        gate.open()
        assert (await again.result()).get_outputs() == ["hi"]
    assert gate.came == ["hi"]


async def test_starting_a_finished_run_again_returns_its_outputs_and_runs_nothing(storage: Storage) -> None:
    gate = Gate()
    gate.open()
    async with host_of(storage, gate) as host:
        await (await host.start("w", "hi", run_id="r")).result()
        before = await until(host, "r", "idle")
        again = await host.start("w", "hi", run_id="r")
        assert (await again.result()).get_outputs() == ["hi"]
        assert await host.info("r") == before
    assert gate.came == ["hi"]


async def test_the_same_id_with_another_message_or_workflow_is_refused(storage: Storage) -> None:
    host = host_of(storage)
    host.register(row("other", shout))
    await host.start("w", "hi", run_id="r")
    with pytest.raises(RunExistsError):
        await host.start("w", "ho", run_id="r")
    with pytest.raises(RunExistsError):
        await host.start("other", "hi", run_id="r")


async def test_starting_a_failed_run_again_does_not_restart_it(storage: Storage) -> None:
    async with host_of(storage, fail) as host:
        run = await host.start("w", "hi", run_id="r")
        with pytest.raises(RunFailedError):
            await run.result()
        again = await host.start("w", "hi", run_id="r")
        with pytest.raises(RunFailedError, match="LookupError: no hi"):
            await again.result()


async def test_only_one_of_many_simultaneous_starts_starts_the_run(storage: Storage) -> None:
    gate = Gate()
    gate.open()
    async with host_of(storage, gate) as one, host_of(storage, gate) as other:
        starts = [host.start("w", "hi", run_id="r") for _ in range(5) for host in (one, other)]
        runs = await asyncio.gather(*starts)
        results = await asyncio.gather(*(run.result() for run in runs))
    assert [result.get_outputs() for result in results] == [["hi"]] * 10
    assert gate.came == ["hi"]


async def test_all_but_one_of_simultaneous_starts_with_different_messages_are_refused(storage: Storage) -> None:
    host = host_of(storage)
    ended = await asyncio.gather(
        *(host.start("w", f"hi {number}", run_id="r") for number in range(5)), return_exceptions=True
    )
    refused = [error for error in ended if isinstance(error, RunExistsError)]
    assert len(refused) == 4
    assert len(await host.runs()) == 1


async def test_a_refused_start_leaves_nothing_behind(storage: Storage) -> None:
    host = Host(storage)
    host.register(office)
    with pytest.raises(RuntimeError, match="can't handle"):
        await host.start("office", 3.5)
    with pytest.raises(UnknownWorkflowError, match="'office'"):
        await host.start("nowhere", "hi")
    host.register(row("any", shout))
    with pytest.raises(EncodeError):
        await host.start("any", object())
    assert await host.runs() == []


async def test_every_host_uses_the_kwargs_of_the_run(storage: Storage) -> None:
    async def tell(message: Any, ctx: Context) -> None:
        await ctx.yield_output((message, ctx.get_state("_workflow_run_kwargs")))

    run = await host_of(storage, tell).start("w", "hi", function_invocation_kwargs={"user": "ann"})
    async with host_of(storage, tell):
        outputs = (await run.result()).get_outputs()
    assert outputs == [("hi", {"function_invocation_kwargs": {"__global__": {"user": "ann"}}})]


async def test_kwargs_that_cannot_be_stored_are_refused_by_name(storage: Storage) -> None:
    host = host_of(storage)
    with pytest.raises(ValueError, match=r"function_invocation_kwargs\.key") as refused:
        await host.start("w", "hi", function_invocation_kwargs={"key": Secret("hush")})
    assert "hush" not in str(refused.value)
    assert await host.runs() == []


async def test_a_run_without_its_secret_kwargs_is_blocked_and_the_reason_names_them(storage: Storage) -> None:
    gate = Gate()
    workflow = row("w", gate)()
    stream = workflow.run(
        "hi", run_id="r", stream=True, checkpoint_storage=storage, function_invocation_kwargs={"key": Secret("hush")}
    )
    async for event in stream:
        if event.type == "checkpoint":
            break
    await stream.aclose()
    async with host_of(storage, gate, blocked_seconds=0) as host:
        run = await host.run("r")
        await until(host, "r", "blocked")
        with pytest.raises(RunBlockedError, match=r"MissingRunKwargsError.*function_invocation_kwargs\.key"):
            await run.result()
    assert gate.came == []


async def test_deadline_and_budget_apply_on_a_host(storage: Storage) -> None:
    async with host_of(storage) as host:
        run = await host.start("w", "hi", budget={"supersteps": 1})
        with pytest.raises(RunFailedError, match="1 supersteps"):
            await run.result()
    with pytest.raises(TypeError, match="number"):
        await host.start("w", "hi", budget={"supersteps": "many"})  # pyright: ignore[reportArgumentType]


async def test_an_unknown_run_is_not_found(storage: Storage) -> None:
    host = host_of(storage)
    with pytest.raises(RunNotFoundError):
        await host.run("nobody")
    with pytest.raises(RunNotFoundError):
        await host.info("nobody")
    with pytest.raises(RunNotFoundError):
        await host.send("nobody", "hi")
    with pytest.raises(RunNotFoundError):
        await host.cancel("nobody")
    with pytest.raises(RunNotFoundError):
        await host.recover("nobody")
    with pytest.raises(RunNotFoundError):
        await host.fork("nobody")
    assert not await host.delete("nobody")


async def test_each_run_has_its_own_executors(storage: Storage) -> None:
    host = Host(storage)
    host.register(office)
    async with host:
        runs = [await host.start("office", text) for text in ("tea", "milk")]
        for run in runs:
            (request,) = (await run.result()).get_request_info_events()
            await run.respond({request.request_id: "yes"})
        told = [(await run.result()).get_outputs() for run in runs]
    assert told == [["tea: yes (1)"], ["milk: yes (1)"]]


def test_a_factory_that_shares_its_executors_is_refused(storage: Storage) -> None:
    clerk = Clerk()

    def shared() -> Workflow:
        return WorkflowBuilder(name="shared", start_executor=clerk).build()

    same = office()
    host = Host(storage)
    with pytest.raises(ValueError, match="'clerk' each time"):
        host.register(shared)
    with pytest.raises(ValueError, match="inside the factory"):
        host.register(lambda: same)
    assert host.workflow_names == ()


async def test_functions_inside_sub_workflows_may_be_shared(storage: Storage) -> None:
    gate = Gate()
    shared = row("inner", gate)().executors

    def build() -> Workflow:
        inner = WorkflowBuilder(name="inner", start_executor=shared["n0"]).build()
        middle = WorkflowBuilder(name="middle", start_executor=WorkflowExecutor(inner, "inner")).build()
        return WorkflowBuilder(name="outer", start_executor=WorkflowExecutor(middle, "middle")).build()

    host = Host(storage)
    host.register(build)
    async with host:
        runs = [await host.start("outer", number) for number in range(2)]
        await gate.holds(2)
        gate.open()
        for run in runs:
            assert (await run.result()).get_final_state() is WorkflowRunState.IDLE


def test_shared_stateful_executors_inside_sub_workflows_are_refused(storage: Storage) -> None:
    clerk = Clerk()

    def build() -> Workflow:
        inner = WorkflowBuilder(name="inner", start_executor=clerk).build()
        return WorkflowBuilder(name="outer", start_executor=WorkflowExecutor(inner, "inner")).build()

    with pytest.raises(ValueError, match="the same executor 'clerk' each time"):
        Host(storage).register(build)


def test_an_object_that_is_no_factory_is_refused(storage: Storage) -> None:
    host = Host(storage)
    with pytest.raises(TypeError, match="not a Workflow"):
        host.register(cast("Any", lambda: "a workflow"))
    with pytest.raises(TypeError, match="must be a function"):
        host.register(cast("Any", office()))
    host.register(office)
    with pytest.raises(ValueError, match="already"):
        host.register(office)


async def test_a_workflow_can_be_registered_under_another_name_and_by_a_decorator(storage: Storage) -> None:
    host = Host(storage)
    host.register(row("w", shout), name="loud")

    @host.register
    def quiet() -> Workflow:
        return row("quiet", pass_on)()

    assert (host.workflow_names, quiet().name) == (("loud", "quiet"), "quiet")
    async with host:
        run = await host.start("loud", "hi")
        await run.result()
        with pytest.raises(RuntimeError, match="before"):
            host.register(office)
    assert (await run.info()).workflow_name == "loud"


def test_a_host_needs_a_storage_that_ships_with_perdure() -> None:
    with pytest.raises(TypeError, match="ships with perdure"):
        Host(object())  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="max_runs"):
        Host("memory:few", max_runs=0)
    with pytest.raises(ValueError, match="max_attempts"):
        Host("memory:few", max_attempts=0)


async def test_hosts_on_one_url_share_a_storage() -> None:
    one, other = Host("memory:shared-by-hosts"), Host("memory:shared-by-hosts")
    one.register(row("w", shout))
    run = await one.start("w", "hi")
    assert [info.run_id for info in await other.runs()] == [run.run_id]
