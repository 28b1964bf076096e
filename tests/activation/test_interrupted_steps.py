"""Steps that were cut off in the middle: who decides what becomes of them."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.activation.solo import Context, lone

from perdure import InMemoryCheckpointStorage, Workflow, WorkflowBuilder, WorkflowExecutor
from perdure.checkpoint import InterruptedStep, StepDecision
from perdure.engine import NOT_DONE, step_key
from perdure.errors import EncodeError, StepUnsettledError


class Provider:
    """A service that is cut off a number of times, and counts what it was asked to do."""

    def __init__(self, *, cuts: int) -> None:
        self.cuts = cuts
        self.calls = 0
        self.keys: list[str] = []
        self.called = asyncio.Event()

    async def pay(self) -> str:
        self.calls += 1
        self.keys.append(step_key())
        self.called.set()
        if self.calls <= self.cuts:
            await asyncio.get_running_loop().create_future()
        return f"paid {self.calls}"


async def cut_off(provider: Provider, running: asyncio.Future[Any]) -> None:
    await provider.called.wait()
    provider.called.clear()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def paying(provider: Provider, storage: InMemoryCheckpointStorage, if_interrupted: Any) -> Any:
    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("pay", provider.pay, if_interrupted=if_interrupted))

    return lone(do, storage=storage)


async def test_a_step_that_is_interrupted_again_is_asked_about_again() -> None:
    provider, storage = Provider(cuts=2), InMemoryCheckpointStorage()
    await cut_off(provider, asyncio.ensure_future(paying(provider, storage, "ask").run("go", run_id="r")))
    workflow = paying(provider, storage, "ask")
    (first,) = (await workflow.run(run_id="r")).get_request_info_events()
    assert isinstance(first.data, InterruptedStep)
    assert (first.data.name, first.data.executor_id) == ("pay", "node")
    rerun = {first.request_id: StepDecision("rerun")}
    await cut_off(provider, asyncio.ensure_future(workflow.run(responses=rerun)))
    workflow = paying(provider, storage, "ask")
    (second,) = (await workflow.run(run_id="r")).get_request_info_events()
    assert second.request_id != first.request_id
    result = await workflow.run(responses={second.request_id: {"action": "done", "result": "by hand"}})
    assert result.get_outputs() == ["by hand"]
    assert provider.calls == 2


async def test_a_question_of_a_sub_workflow_can_be_passed_on_to_the_outside() -> None:
    provider, storage = Provider(cuts=1), InMemoryCheckpointStorage()

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("pay", provider.pay, if_interrupted="ask"))

    def outer() -> Workflow:
        sub = WorkflowExecutor(lone(do), "sub", allow_direct_output=True, propagate_request=True)
        return WorkflowBuilder(name="outer", start_executor=sub, checkpoint_storage=storage).build()

    await cut_off(provider, asyncio.ensure_future(outer().run("go", run_id="r")))
    workflow = outer()
    (question,) = (await workflow.run(run_id="r")).get_request_info_events()
    result = await workflow.run(responses={question.request_id: StepDecision("rerun")})
    assert result.get_outputs() == ["paid 2"]


async def test_whoever_is_asked_may_let_the_step_fail() -> None:
    provider, storage = Provider(cuts=1), InMemoryCheckpointStorage()
    await cut_off(provider, asyncio.ensure_future(paying(provider, storage, "ask").run("go", run_id="r")))
    workflow = paying(provider, storage, "ask")
    (question,) = (await workflow.run(run_id="r")).get_request_info_events()
    with pytest.raises(StepUnsettledError, match="was to let it fail"):
        await workflow.run(responses={question.request_id: StepDecision("fail")})


async def test_a_step_that_raised_is_simply_run_again() -> None:
    storage, calls = InMemoryCheckpointStorage(), list[int]()

    def work() -> str:
        calls.append(1)
        if len(calls) == 1:
            raise OSError("refused")
        return "done"

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("work", work, if_interrupted="ask"))

    workflow = lone(do, storage=storage)
    with pytest.raises(OSError, match="refused"):
        await workflow.run("go")
    assert (await workflow.run(run_id=workflow.run_id)).get_outputs() == ["done"]


async def test_a_function_that_can_not_find_out_leaves_the_step_unsettled() -> None:
    provider, storage, keys = Provider(cuts=1), InMemoryCheckpointStorage(), list[str]()

    async def find_out(key: str) -> object:
        keys.append(key)
        if len(keys) == 1:
            raise ConnectionError("no answer")
        return NOT_DONE

    await cut_off(provider, asyncio.ensure_future(paying(provider, storage, find_out).run("go", run_id="r")))
    workflow = paying(provider, storage, find_out)
    with pytest.raises(StepUnsettledError, match="ConnectionError: no answer"):
        await workflow.run(run_id="r")
    assert provider.calls == 1
    assert (await workflow.run(run_id="r")).get_outputs() == ["paid 2"]
    assert len(set(keys)) == 1


async def test_without_a_storage_nothing_is_asked() -> None:
    provider = Provider(cuts=0)

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("pay", provider.pay, if_interrupted="ask"))

    assert (await lone(do).run("go")).get_outputs() == ["paid 1"]


async def interrupted(provider: Provider, storage: InMemoryCheckpointStorage, if_interrupted: Any) -> Any:
    """The handle of a run that was cut off and whose question, if there is one, is open."""
    workflow = paying(provider, storage, if_interrupted)
    await cut_off(provider, asyncio.ensure_future(workflow.run("go", run_id="r")))
    return paying(provider, storage, if_interrupted).start(run_id="r")


async def test_a_question_that_a_fork_has_inherited_is_about_the_key_that_was_used_and_is_answered_once() -> None:
    provider, storage = Provider(cuts=1), InMemoryCheckpointStorage()
    handle = await interrupted(provider, storage, "ask")
    await handle.result()
    fork = await handle.fork()
    await fork.result()
    ((request_id, question),) = fork.requests.items()
    assert question.data.key == provider.keys[0]
    await fork.respond({request_id: StepDecision("done", "by hand")})
    assert (await fork.result()).get_outputs() == ["by hand"]
    assert not fork.requests
    assert provider.calls == 1


async def test_what_a_fork_does_again_has_a_key_of_its_own() -> None:
    provider, storage = Provider(cuts=1), InMemoryCheckpointStorage()
    handle = await interrupted(provider, storage, "ask")
    await handle.result()
    fork = await handle.fork()
    await fork.result()
    (request_id,) = fork.requests
    await fork.respond({request_id: StepDecision("rerun")})
    assert (await fork.result()).get_outputs() == ["paid 2"]
    assert len(set(provider.keys)) == 2


async def test_a_function_that_is_to_find_out_is_given_the_key_that_was_used_before_a_fork() -> None:
    provider, storage, keys = Provider(cuts=1), InMemoryCheckpointStorage(), list[str]()

    def find_out(key: str) -> str:
        keys.append(key)
        return "found"

    workflow = paying(provider, storage, find_out)
    handle = workflow.start("go", run_id="r")
    running = asyncio.ensure_future(handle.result())
    await provider.called.wait()
    await handle.cancel()
    await running
    fork = await handle.fork()
    assert (await fork.result()).get_outputs() == ["found"]
    assert keys == provider.keys


async def test_work_whose_result_can_not_be_stored_may_have_been_done_and_is_asked_about() -> None:
    storage, calls = InMemoryCheckpointStorage(), list[int]()

    def work() -> object:
        calls.append(1)
        return object()

    async def do(_: str, ctx: Context) -> None:
        await ctx.yield_output(await ctx.step("work", work, if_interrupted="ask"))

    workflow = lone(do, storage=storage)
    with pytest.raises(EncodeError):
        await workflow.run("go")
    (question,) = (await workflow.run(run_id=workflow.run_id)).get_request_info_events()
    assert isinstance(question.data, InterruptedStep)
    assert calls == [1]
