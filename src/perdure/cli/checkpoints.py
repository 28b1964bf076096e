"""Commands about checkpoints and the history of runs: look into one, compare, go back, continue, delete."""

import dataclasses
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from perdure.cli.app import BUSY, Context, app, command, confirm, refuse
from perdure.cli.runs import CONTINUES, RunArgument, require_statuses
from perdure.cli.views import Row, safe
from perdure.errors import RunBusyError, RunNotFoundError
from perdure.storage import CheckpointDiff, RunInfo

if TYPE_CHECKING:
    from perdure.records import RunStatus

AtOption = Annotated[str | None, typer.Option("--at", help="A checkpoint, or its number; the newest by default.")]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

_VALUE_SIZE_MAX = 1_500
_PAGE = 200
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


def checkpoint_of(run: RunInfo, at: str | None) -> str:
    """Return the checkpoint that `--at` means: a number, an id, or the newest one of the run."""
    if at is not None:
        return f"{run.run_id}@{at}" if at.isdigit() else at
    if run.checkpoint_id is None:
        refuse(f"run {run.run_id!r} has no checkpoint yet")
    return run.checkpoint_id


@command(app, "state")
async def state(context: Context, run_id: RunArgument, at: AtOption = None) -> None:
    """Show what a checkpoint holds: state, executors, messages, requests, outputs. Your code is not needed."""
    chosen = checkpoint_of(await context.storage.run(run_id), at)
    view = await context.storage.view(chosen, value_size_max=_VALUE_SIZE_MAX if context.output.is_table else None)
    if not context.output.is_table:
        context.output.record("checkpoint", view.to_dict())
        return
    output = context.output
    output.facts([("checkpoint", view.checkpoint_id), ("superstep", str(view.iteration)), ("kind", view.kind)])
    sections = [("state", view.state), *view.scopes.items(), ("executors", view.executors), ("requests", view.requests)]
    for name, values in sections:
        if values:
            output.text(f"\n{name}", style="bold")
            output.facts((f"  {key}", value) for key, value in values.items())
    if view.messages:
        output.text("\nmessages", style="bold")
        output.facts((f"  {', '.join(each.sources)} -> {each.target}", each.value) for each in view.messages)
    if view.outputs:
        output.text("\noutputs", style="bold")
        output.facts((f"  {each['executor']}", each["data"]) for each in view.outputs)


@command(app, "diff")
async def diff(
    context: Context,
    before: Annotated[str, typer.Argument(metavar="A", help="A run, or a checkpoint.")],
    after: Annotated[str, typer.Argument(metavar="B", help="Another one of the same kind.")],
) -> None:
    """Compare two checkpoints, or two runs: the first superstep at which they differ, and how.

    Lists are compared by position, so an element that is inserted changes all those after it.
    """
    try:
        await context.storage.run(before)
    except RunNotFoundError:
        found, summary = await context.storage.diff(before, after), None
    else:
        summary = await context.storage.diff_runs(before, after)
        found = summary.diff
    changes = [] if found is None else [dataclasses.asdict(each) for each in found.changes]
    if not context.output.is_table:
        compared = {"before": before, "after": after} if found is None else _ends(found)
        place = {} if summary is None else {"turn": summary.turn, "superstep": summary.superstep}
        context.output.record("diff", {**compared, **place, "changes": changes})
        return
    if summary is not None and summary.superstep is not None:
        context.output.text(f"the runs differ from superstep {summary.superstep} of turn {summary.turn} on")
    if not changes:
        context.output.text("no difference")
        return
    for change in changes:
        before_text, after_text = safe(change["before"], limit=200), safe(change["after"], limit=200)
        match change["kind"]:
            case "added":
                context.output.text(f"+ {change['path']}: {after_text}", style="green")
            case "removed":
                context.output.text(f"- {change['path']}: {before_text}", style="red")
            case _:
                context.output.text(f"~ {change['path']}: {before_text} -> {after_text}", style="yellow")


def _ends(found: CheckpointDiff) -> dict[str, str]:
    return {"before": found.before, "after": found.after}


async def _each(rows: list[dict[str, Any]]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


@command(app, "restore", writes=True)
async def restore(
    context: Context,
    run_id: RunArgument,
    at: Annotated[str, typer.Option("--at", help="A checkpoint of the run, or its number.")],
    yes: YesOption = False,
) -> None:
    """Move a run back to one of its checkpoints. Later checkpoints stay readable."""
    run = await context.storage.run(run_id)
    chosen = checkpoint_of(run, at)
    view = await context.storage.view(chosen)
    confirm(f"run {run_id!r} goes back from {run.checkpoint_id!r} to {chosen!r} (superstep {view.iteration})", yes=yes)
    await context.storage.restore(run_id, chosen)
    context.output.note(f"run {run_id!r} is at {chosen!r}; {CONTINUES}")


@command(app, "delete", writes=True)
async def delete(
    context: Context,
    *,
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="The ids of runs.")] = None,
    status: Annotated[list[str] | None, typer.Option(help="Runs of this status; repeat it for several.")] = None,
    older_than: Annotated[str | None, typer.Option(help="Runs not updated for so long, such as 30d or 12h.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list what would be deleted.")] = False,
    yes: YesOption = False,
) -> int:
    """Delete runs with everything that is stored of them."""
    if bool(run_ids) == bool(status or older_than):
        refuse("name the runs, or choose them with --status and --older-than")
    found = [await context.storage.run(each) for each in run_ids or ()]
    if not run_ids:
        found = await _chosen(context, status, older_than, workflow)
    shown = [{"run_id": each.run_id, "workflow_name": each.workflow_name, "status": each.status} for each in found]
    if dry_run or context.output.is_table:
        await context.output.rows("runs", _each(shown), ("run_id", "workflow_name", "status"))
    if dry_run or not found:
        context.output.note(f"{len(found)} runs would be deleted")
        return 0
    confirm(f"{len(found)} runs will be deleted for good", yes=yes)
    busy = 0
    for run in found:
        try:
            await context.storage.delete_run(run.run_id)
        except RunBusyError as error:
            busy += 1
            context.output.note(f"not deleted: {error}")
    await context.storage.collect()
    context.output.note(f"{len(found) - busy} runs deleted")
    return BUSY if busy else 0


async def _chosen(
    context: Context, status: list[str] | None, older_than: str | None, workflow: str | None
) -> list[RunInfo]:
    require_statuses(status)
    chosen: dict[str, Any] = {}
    if older_than is not None:
        match = re.fullmatch(r"(\d{1,6})([smhdw])", older_than)
        if match is None:
            refuse(f"{older_than!r} is no duration; write a number and s, m, h, d or w, such as 30d")
        age = timedelta(**{_UNITS[match[2]]: int(match[1])})
        chosen["updated_before"] = context.storage.clock.now() - age
    statuses = cast("list[RunStatus] | None", status)
    found: list[RunInfo] = []
    while True:
        after = found[-1].run_id if found else None
        page = await context.storage.runs(workflow, statuses, limit=_PAGE, after=after, **chosen)
        found += page
        if len(page) < _PAGE:
            return found
