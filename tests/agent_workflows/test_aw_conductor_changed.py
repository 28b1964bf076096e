"""Executions that resume with a changed definition."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.agent_workflows.conducting import Troupe, defined, node, otherwise, when

from perdure import FailedMessage, InMemoryCheckpointStorage, handler
from perdure.agent_workflows.conductor.conductor import Conductor, Context

if TYPE_CHECKING:
    from perdure.agent_workflows.messages import NodeTask


def boom(_: NodeTask) -> str:
    """Fail."""
    raise ValueError("boom")


async def test_a_condition_that_has_changed_is_told_once() -> None:
    storage = InMemoryCheckpointStorage()

    def choosing(value: str, **says: object) -> Troupe:
        definition = defined("a b c d", "a>b", when("b>c", value), otherwise("b>d"))
        return Troupe(definition, says, storage=storage)  # pyright: ignore[reportArgumentType] - they are what nodes say

    with pytest.raises(ValueError, match="boom"):
        await choosing("b(a(go))", b=boom).workflow().run("go", run_id="r1")
    events = await choosing("never").workflow().run(run_id="r1")
    (warning,) = [event.data for event in events if event.type == "diagnostic"]
    assert warning.level == "warning"
    assert "'b' -> 'c' needs answer == 'never' now, and answer == 'b(a(go))' before" in warning.message
    (result,) = events.get_outputs()
    assert list(result.skipped) == ["c"]


class Deaf(Conductor):
    """Stands for a process that dies when a node has failed."""

    @handler
    async def on_node_failed(self, failed: FailedMessage, ctx: Context) -> None:
        """Die."""
        raise ConnectionResetError(f"{failed.executor_id} for {ctx.run_id}")


async def test_a_failure_that_was_to_be_isolated_is_tried_again_if_it_stops_the_run_now() -> None:
    storage = InMemoryCheckpointStorage()
    first = Troupe(defined([node("a", on_error="isolate")]), {"a": boom}, storage=storage)
    first.conductor = Deaf(first.plan, name="Test")
    with pytest.raises(ConnectionResetError):
        await first.workflow().run("go", run_id="r1")
    with pytest.raises(ValueError, match="boom"):
        await Troupe(defined("a"), {"a": boom}, storage=storage).workflow().run(run_id="r1")
    (result,) = (await Troupe(defined("a"), storage=storage).workflow().run(run_id="r1")).get_outputs()
    assert (result.final_answer, result.failed) == ("a(go)", {})
