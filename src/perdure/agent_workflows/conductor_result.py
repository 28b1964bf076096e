"""What an execution has come to, once nobody acts any more."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.agent_workflows.definition import END
from perdure.agent_workflows.reasons import denied_in_words
from perdure.agent_workflows.result import AgentWorkflowResult
from perdure.agent_workflows.timing import seconds_since

if TYPE_CHECKING:
    from collections.abc import Collection

    from perdure import Clock
    from perdure.agent_workflows.conductor_state import Book
    from perdure.agent_workflows.plan import Plan


def result_of(plan: Plan, book: Book, clock: Clock) -> AgentWorkflowResult:
    """The result of an execution that has ended."""
    progress, record = book.progress, book.record
    ends = [node_id for node_id in plan.ends if progress.decision(node_id, END) == "taken"]
    said = [said.text for node_id in ends if (said := book.said(node_id)) is not None and said.text]
    # One that has failed lets all go on, also to END, and says nothing there.
    is_reached = any(progress.nodes.get(node_id) != "isolated" for node_id in ends)
    error = progress.halted or (None if is_reached else _why_no_end(book))
    return AgentWorkflowResult(
        execution_id=record.execution_id,
        success=error is None,
        final_answer="\n\n".join(said) if said else None,
        outputs={f"{node_id}.{key}": value for node_id, key, value in _outputs(plan, book)},
        failed=dict(record.failed),
        skipped=dict(progress.skipped),
        error=error,
        duration=seconds_since(clock, record.begun_at),
    )


def _outputs(plan: Plan, book: Book) -> list[tuple[str, str, object]]:
    """The outputs of all nodes, in the order of the plan."""
    nodes = [(node_id, book.said(node_id)) for layer in plan.layers for node_id in layer]
    return [(node_id, key, value) for node_id, said in nodes if said for key, value in said.outputs.items()]


def _why_no_end(book: Book) -> str:
    denied = set(book.progress.denied.values())
    failed = "; ".join(_how_failed(actor, error, denied) for actor, error in book.record.failed.items())
    return f"no end was reached: {failed}" if failed else "no end was reached: no edge to END was taken"


def _how_failed(actor: str, error: str, denied: Collection[str]) -> str:
    words = denied_in_words(actor, error)
    return words if words in denied else f"{actor!r} has failed: {error}"
