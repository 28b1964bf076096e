"""Commands about the store, moving runs between stores, and the version."""

import dataclasses
import sys
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.app import Context, app, command, confirm, store_app
from perdure.cli.runs import RunArgument
from perdure.inspector.views import plain


@command(store_app, "info")
async def info(context: Context) -> None:
    """Show which store this is and how many runs it has, by status."""
    counts = dict(await context.storage.count_runs())
    if context.output.is_table:
        shown = [(status, str(number)) for status, number in sorted(counts.items())]
        context.output.facts([("kind", type(context.storage.store).__name__), *(shown or [("runs", "0")])])
    else:
        context.output.record("store", {"kind": type(context.storage.store).__name__, "runs": counts})


@command(store_app, "size")
async def size(context: Context, run_id: RunArgument) -> None:
    """Report how large a run is, and which of its values are large or grow."""
    report = await context.storage.size_report(run_id)
    if context.output.is_table:
        context.output.text(str(report))
    else:
        context.output.record("size", {**plain(dataclasses.asdict(report)), "stored": report.stored})


@command(store_app, "collect")
async def collect(context: Context) -> None:
    """Remove blobs that nothing refers to."""
    removed = await context.storage.collect()
    if context.output.is_table:
        context.output.text(f"{removed} blobs removed")
    else:
        context.output.record("collected", {"blobs": removed})


@command(app, "export")
async def export(
    context: Context,
    run_id: RunArgument,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Write a run to a file and close it here. `perdure import` continues it in any store."""
    await context.storage.run(run_id)
    confirm(f"run {run_id!r} will be closed here and go on where {str(file)!r} is imported", yes=yes)
    await context.storage.export_run(run_id, file)
    context.output.note(f"run {run_id!r} is in {str(file)!r} and is closed here")


@command(app, "import")
async def import_(context: Context, file: Annotated[Path, typer.Argument(help="A file of `perdure export`.")]) -> None:
    """Store a run that was exported. It goes on here."""
    run_id = await context.storage.import_run(file)
    if context.output.is_table:
        context.output.text(run_id)
    else:
        context.output.record("run", {"run_id": run_id})


@app.command("version")
def version() -> None:
    """Print the version of perdure."""
    sys.stdout.write(f"perdure {installed('perdure')}\n")
