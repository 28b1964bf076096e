"""Commands about the store itself, and the version."""

import dataclasses
import sys
from collections.abc import AsyncIterator
from importlib.metadata import version as installed
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli.app import DAMAGED, OK, Context, app, command, store_app
from perdure.cli.runs import RunArgument
from perdure.cli.views import Row, plain


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


@command(store_app, "collect", writes=True)
async def collect(context: Context) -> None:
    """Remove blobs that nothing refers to."""
    with context.output.progress("collecting"):
        removed = await context.storage.collect()
    if context.output.is_table:
        context.output.text(f"{removed} blobs removed")
    else:
        context.output.record("collected", {"blobs": removed})


@command(store_app, "check")
async def check(context: Context) -> int:
    """Verify the checksums of everything that is stored, and list what is damaged."""
    found = 0
    runs = sum((await context.storage.count_runs()).values())

    async def damage() -> AsyncIterator[Row]:
        nonlocal found
        async for each in context.storage.check():
            found += 1
            yield plain(dataclasses.asdict(each))

    with context.output.progress("checking"):
        await context.output.rows("damage", damage(), ("run_id", "kind", "name", "reason"))
    context.output.note(f"{runs} runs checked, {found} places damaged")
    return DAMAGED if found else OK


@command(store_app, "migrate", writes=True)
async def migrate(context: Context) -> None:
    """Bring the store to the schema of this release. Processes of the previous release can go on."""
    made = list(await context.storage.migrate())
    if context.output.is_table:
        context.output.text("\n".join(made) or "nothing to do: the store has the schema of this release")
    else:
        context.output.record("migrated", {"migrations": made})


@command(store_app, "backup")
async def backup(
    context: Context, path: Annotated[Path, typer.Argument(help="The new file, or directory, to write.")]
) -> None:
    """Write a consistent copy of the store while hosts run. On PostgreSQL use pg_dump."""
    with context.output.progress("copying"):
        await context.storage.backup(path)
    context.output.note(f"the copy is {str(path)!r}")


@app.command("version")
def version() -> None:
    """Print the version of perdure."""
    sys.stdout.write(f"perdure {installed('perdure')}\n")
