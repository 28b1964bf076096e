"""Traces: a span for each piece of a run, and links from one life to the next."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from tests.tracing.collected import EXPORTER, SAMPLER

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowContext, WorkflowExecutor, executor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    from perdure import Workflow


@pytest.fixture(autouse=True)
def spans() -> Iterator[InMemorySpanExporter]:
    EXPORTER.clear()
    SAMPLER.is_asked = True
    yield EXPORTER
    SAMPLER.is_asked = False


def told(name: str) -> list[ReadableSpan]:
    return [span for span in EXPORTER.get_finished_spans() if span.name == name]


def of(span: ReadableSpan, attribute: str) -> Any:
    return (span.attributes or {})[f"perdure.{attribute}"]


def parent_of(span: ReadableSpan) -> int:
    assert span.parent is not None
    return span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


@executor(id="begin")
async def begin(number: int, ctx: WorkflowContext[int]) -> None:
    with trace.get_tracer("user").start_as_current_span("user's own"):
        await ctx.send_message(await ctx.step("double", lambda: 2 * number))


@executor(id="end")
async def end(number: int, ctx: WorkflowContext[Any, int]) -> None:
    if number < 0:
        raise ValueError("negative")
    await ctx.yield_output(number)


def build() -> Workflow:
    storage = InMemoryCheckpointStorage()
    return WorkflowBuilder(name="traced", start_executor=begin, checkpoint_storage=storage).add_edge(begin, end).build()


async def test_run_superstep_activation_step_and_commit_are_spans_inside_each_other() -> None:
    await build().run(1, run_id="r")
    (run,) = told("perdure.run")
    supersteps = told("perdure.superstep")
    activations = told("perdure.activation")
    (step,) = told("perdure.step")
    commits = told("perdure.commit")
    assert of(run, "run_id") == "r"
    assert of(run, "workflow") == "traced"
    assert [of(span, "superstep") for span in supersteps] == [1, 2]
    assert {parent_of(span) for span in (*supersteps, *commits)} == {id_of(run)}
    assert [of(span, "executor_id") for span in activations] == ["begin", "end"]
    assert [parent_of(span) for span in activations] == [id_of(span) for span in supersteps]
    assert (of(step, "step"), parent_of(step)) == ("double", id_of(activations[0]))
    assert [of(span, "checkpoint_id") for span in commits] == ["r@0", "r@1", "r@2"]
    assert {of(span, "run_id") for span in EXPORTER.get_finished_spans() if span.name.startswith("perdure.")} == {"r"}
    assert [of(span, "checkpoint_id") for span in (*supersteps, *activations, step)] == [
        "r@0",
        "r@1",
        "r@0",
        "r@1",
        "r@0",
    ]


async def test_what_a_handler_traces_itself_belongs_to_its_activation() -> None:
    await build().run(1)
    (own,) = told("user's own")
    assert parent_of(own) == id_of(told("perdure.activation")[0])


async def test_a_run_belongs_to_what_its_caller_traces() -> None:
    with trace.get_tracer("user").start_as_current_span("caller") as caller:
        await build().run(1)
    (run,) = told("perdure.run")
    assert parent_of(run) == caller.get_span_context().span_id


async def test_a_resumed_run_is_linked_to_the_life_before() -> None:
    workflow = build()
    with pytest.raises(ValueError, match="negative"):
        await workflow.run(-1, run_id="r")
    (first,) = told("perdure.run")
    assert not first.status.is_ok
    EXPORTER.clear()
    with pytest.raises(ValueError, match="negative"):
        await workflow.run(run_id="r")
    (second,) = told("perdure.run")
    assert [link.context.span_id for link in second.links] == [id_of(first)]
    assert of(second, "checkpoint_id") == "r@1"


async def test_a_life_that_committed_nothing_is_linked_by_the_next_one_too() -> None:
    workflow = build()
    lives: list[int] = []
    linked: list[int] = []
    for message in (-1, None, None):
        EXPORTER.clear()
        with pytest.raises(ValueError, match="negative"):
            await workflow.run(message, run_id="r")
        (run,) = told("perdure.run")
        lives.append(id_of(run))
        linked = [link.context.span_id for link in run.links]
    first, second, _ = lives
    assert linked == [first, second]


async def test_what_happens_in_a_sub_workflow_is_traced_too() -> None:
    sub = WorkflowExecutor(build(), "sub")
    await WorkflowBuilder(name="outer", start_executor=sub).build().run(1)
    assert [of(span, "executor_id") for span in told("perdure.activation")] == ["begin", "end", "sub"]


def test_without_opentelemetry_nothing_of_it_is_loaded() -> None:
    program = "import sys, perdure; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_where_opentelemetry_is_loaded_and_nobody_has_set_it_up_nothing_is_traced() -> None:
    assert _printed("print(begin('perdure.run', linked=None) is NO_SPAN)") == "True"


def test_what_a_caller_traces_elsewhere_is_followed_also_where_nobody_has_set_it_up() -> None:
    program = """
context = trace.SpanContext(1, 2, is_remote=True, trace_flags=trace.TraceFlags(1))
with trace.use_span(trace.NonRecordingSpan(context)):
    print(begin("perdure.run", linked=None).traceparent)
"""
    assert _printed(program) == f"00-{1:032x}-{2:016x}-01"


def _printed(program: str) -> str:
    """What a new process prints, in which OpenTelemetry is only loaded."""
    script = f"from opentelemetry import trace\nfrom perdure.tracing import NO_SPAN, begin\n{program}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return done.stdout.strip()
