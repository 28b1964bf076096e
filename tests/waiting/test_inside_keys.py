"""Idempotency keys inside sub-workflows: one for each message of the parent, and the same however often it is tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.waiting.scenes import HOUR, RUN_ID, alone
from tests.workflow.nodes import Context, node, sending

from perdure import FailedMessage, Retry, Workflow, WorkflowBuilder, WorkflowExecutor, step_key
from perdure.kernel import scope_of
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from tests.waiting.scenes import Storage
    from tests.workflow.nodes import Doing


class Paying:
    """Pays for each message, and keeps the keys that it had by message, of the handler and of its step."""

    def __init__(self, *, failures: int = 0, sleeps: tuple[str, ...] = ()) -> None:
        self.keys: dict[str, list[str]] = {}
        self.paid: dict[str, list[str]] = {}
        self._failures_left = failures
        self._sleeps = sleeps

    async def __call__(self, message: str, ctx: Context) -> None:
        self.keys.setdefault(message, []).append(ctx.idempotency_key)
        await ctx.step("pay", self._pay, message)
        if message in self._sleeps:
            await ctx.sleep(HOUR)
        if self._failures_left:
            self._failures_left -= 1
            raise ValueError("after it was paid")
        await ctx.yield_output(message)

    def _pay(self, message: str) -> str:
        self.paid.setdefault(message, []).append(step_key())
        return message


def inside(do: Doing, clock: ManualClock, *, levels: int) -> Workflow:
    """A workflow of one executor, inside one less than so many others."""
    workflow = alone(do, clock)
    for _ in range(levels - 1):
        workflow = WorkflowBuilder(name="w", start_executor=WorkflowExecutor(workflow, "sub"), clock=clock).build()
    return workflow


@pytest.mark.parametrize("levels", [1, 2])
async def test_the_message_after_one_that_failed_has_keys_of_its_own(storage: Storage, levels: int) -> None:
    clock, paying = ManualClock(), Paying(failures=1)

    async def lead(message: Any, ctx: Context) -> None:
        await ctx.send_message("second" if isinstance(message, FailedMessage) else "first", "sub")

    start = node("start", lead)
    sub = WorkflowExecutor(inside(paying, clock, levels=levels), "sub", on_error="start")
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
    await builder.add_edge(start, sub).add_edge(sub, start, condition=_is_failure).build().run("go")
    assert [len(keys) for keys in (*paying.keys.values(), *paying.paid.values())] == [1, 1, 1, 1]
    assert paying.keys["first"] != paying.keys["second"]
    assert paying.paid["first"] != paying.paid["second"]


def _is_failure(message: Any) -> bool:
    return isinstance(message, FailedMessage)


@pytest.mark.parametrize("levels", [1, 2])
async def test_messages_of_one_superstep_have_keys_of_their_own(storage: Storage, levels: int) -> None:
    clock, paying = ManualClock(), Paying()
    start, sub = sending("start", "a", "b"), WorkflowExecutor(inside(paying, clock, levels=levels), "sub")
    builder = WorkflowBuilder(name="w", start_executor=start, checkpoint_storage=storage, clock=clock)
    workflow = builder.add_edge(start, sub).build()
    await workflow.run("go")
    await workflow.run("go")
    assert len({*paying.keys["a"], *paying.keys["b"]}) == 4


@pytest.mark.parametrize("levels", [1, 2])
async def test_another_attempt_has_the_same_keys_and_finds_what_was_paid(storage: Storage, levels: int) -> None:
    clock, paying = ManualClock(skips=True), Paying(failures=3)

    def built() -> Workflow:
        sub = WorkflowExecutor(inside(paying, clock, levels=levels), "sub", retry=Retry(attempts=2))
        return WorkflowBuilder(name="w", start_executor=sub, checkpoint_storage=storage, clock=clock).build()

    with pytest.raises(ValueError, match="after it was paid"):
        await built().run("go", run_id=RUN_ID)
    await built().run(run_id=RUN_ID)
    assert len(paying.keys["go"]) == 4
    assert len(set(paying.keys["go"])) == 1
    assert len(paying.paid["go"]) == 1


@pytest.mark.parametrize("levels", [1, 2])
async def test_one_that_slept_while_others_came_goes_on_with_its_own_keys(storage: Storage, levels: int) -> None:
    clock, paying = ManualClock(), Paying(sleeps=("slow",))

    def built() -> Workflow:
        sub = WorkflowExecutor(inside(paying, clock, levels=levels), "sub")
        return WorkflowBuilder(name="w", start_executor=sub, checkpoint_storage=storage, clock=clock).build()

    workflow = built()
    await workflow.run("slow", run_id=RUN_ID, wait_for_timers=False)
    await storage.send(RUN_ID, "quick")
    await workflow.run(run_id=RUN_ID, wait_for_timers=False)
    clock.advance(HOUR)
    await built().run(run_id=RUN_ID)
    assert len(paying.keys["slow"]) == 2
    assert len(set(paying.keys["slow"])) == 1
    assert len(paying.paid["slow"]) == 1
    assert paying.keys["quick"] != paying.keys["slow"][:1]


@pytest.mark.parametrize(
    ("home", "scope"), [("1.0/sub#0", "1.0#0"), ("2.13/a/b#c#7", "2.13#7"), ("1.0#2:3.1/sub#0", "1.0#2:3.1#0")]
)
def test_a_scope_is_a_home_without_the_name_that_may_change(home: str, scope: str) -> None:
    assert scope_of(home) == scope
