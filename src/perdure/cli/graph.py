"""Commands that show the work of a run: its graph with its position, and its model and tool calls."""

import sys
from typing import Annotated, Literal

import typer

from perdure.cli.app import Context, app, command, refuse
from perdure.cli.checkpoints import AtOption, checkpoint_of
from perdure.cli.runs import RunArgument
from perdure.cli.views import Row, call_views, graph_view, picture, safe
from perdure.viz import render

_MARKS = {"": " ", "failed": "!", "waiting": "?", "sleeping": "~", "next": ">"}
_STYLES = {"": "", "failed": "bold red", "waiting": "yellow", "sleeping": "cyan", "next": "green"}
_GROUPS = {"FanInEdgeGroup": "joined with others", "SwitchCaseEdgeGroup": "in one case"}
_CALL_COLUMNS = ("at", "executor_id", "call", "outcome", "seconds", "tokens")


@command(app, "graph")
async def graph(
    context: Context,
    run_id: RunArgument,
    at: AtOption = None,
    picture_format: Annotated[
        Literal["mermaid", "dot", "svg"] | None, typer.Option("--as", help="Print a picture; svg needs Graphviz.")
    ] = None,
) -> None:
    """Show the graph of a run as stored, and where the run stands in it."""
    run = await context.storage.run(run_id)
    view = await graph_view(context.storage, run, checkpoint_of(run, at))
    if not view["executors"]:
        refuse(f"checkpoint {view['checkpoint_id']!r} was made by hand and has no graph", code=1)
    if picture_format is not None:
        drawn = picture(view, "mermaid" if picture_format == "mermaid" else "dot")
        sys.stdout.write(render(drawn, "svg").decode() if picture_format == "svg" else f"{drawn}\n")
    elif not context.output.is_table:
        context.output.record("graph", view)
    else:
        place = f"{view['checkpoint_id']}, superstep {view['superstep']}"
        context.output.facts([("workflow", view["workflow_name"]), ("at", place), ("status", run.status)])
        context.output.text("")
        for each in view["executors"]:
            _print_executor(context, each, view["edges"])


def _print_executor(context: Context, executor: Row, edges: list[Row]) -> None:
    indent = "    " * len(executor["path"])
    position = executor["position"] or ""
    told = [] if not position else [f"{position}: {safe(executor['because'], limit=200)}"]
    notes = ", ".join((["start"] if executor["is_start"] else []) + told)
    line = f"{_MARKS[position]} {indent}{safe(executor['executor_id'])}" + (f"  ({notes})" if notes else "")
    context.output.text(line, style=_STYLES[position])
    own = [each for each in edges if (each["path"], each["source"]) == (executor["path"], executor["executor_id"])]
    for edge in own:
        condition = edge["condition"] or edge["selection"]
        why = f"if {safe(condition)}" if condition else _GROUPS.get(edge["group_type"], "")
        context.output.text(f"  {indent}  -> {safe(edge['target'])}" + (f"  ({why})" if why else ""))


@command(app, "calls")
async def calls(
    context: Context,
    run_id: RunArgument,
    steps: Annotated[bool, typer.Option("--steps", help="Also show steps of handlers.")] = False,
) -> None:
    """List the model and tool calls of a run, with tokens and durations."""
    await context.storage.run(run_id)
    found = call_views(context.storage, run_id, has_steps=steps)
    if context.output.is_table and not context.output.fields:
        found = (_short(each) async for each in found)
    await context.output.rows("calls", found, _CALL_COLUMNS)


def _short(call: Row) -> Row:
    """Return a call with fewer columns, so that a narrow terminal can show it."""
    name = f"model {call['model'] or ''}".rstrip() if call["kind"] == "model" else f"{call['kind']} {call['name']}"
    spent = [call["spent"].get(each) for each in ("input_tokens", "output_tokens")]
    tokens = None if spent == [None, None] else f"{spent[0] or 0:g} in, {spent[1] or 0:g} out"
    seconds = None if call["seconds"] is None else f"{call['seconds']:.3f}"
    return {**call, "call": name, "tokens": tokens, "seconds": seconds}
