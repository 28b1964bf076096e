"""Commands that move runs to another store, or copy them."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, cast

import typer

from perdure.checkpoint import closing_note
from perdure.cli.app import ERROR, OK, Context, app, command, confirm, open_chosen
from perdure.cli.runs import RunArgument
from perdure.clock import now
from perdure.errors import WorkflowException
from perdure.records import Halt
from perdure.storage import StoreStorage, TenantStore

_PAGE = 100


@command(app, "export", writes=True)
async def export(
    context: Context,
    run_id: RunArgument,
    file: Annotated[Path, typer.Argument(help="The file to write.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Write a run to a file and close it here. `perdure import` continues it in any store."""
    await context.storage.run(run_id)
    confirm(f"run {run_id!r} will be closed here and go on where {str(file)!r} is imported", yes=yes)
    with context.output.progress("exporting"):
        await context.storage.export_run(run_id, file)
    context.output.note(f"run {run_id!r} is in {str(file)!r} and is closed here")


@command(app, "import", writes=True)
async def import_(context: Context, file: Annotated[Path, typer.Argument(help="A file of `perdure export`.")]) -> None:
    """Store a run that was exported. It goes on here."""
    with context.output.progress("importing"):
        run_id = await context.storage.import_run(file)
    if context.output.is_table:
        context.output.text(run_id)
    else:
        context.output.record("run", {"run_id": run_id})


# A copy locks each run for a moment, so that it is of one moment; it changes nothing in the source.
@command(app, "copy", writes=True)
async def copy(
    context: Context,
    *,
    source: Annotated[str, typer.Argument(metavar="SRC", help="URL or path of a store.")],
    target: Annotated[str, typer.Argument(metavar="DST", help="URL or path of another store; it may be new.")],
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN]...", help="Only these runs.")] = None,
) -> int:
    """Copy runs with their history into another store, to look at them. A copy does not continue there.

    Copying again brings the copies up to date. To move a run, use export and import.
    """
    del source
    chosen = list(run_ids or [])
    while run_ids is None and (page := await _page(context.storage, chosen)):
        chosen += page
    refused = 0
    async with open_chosen(target, read_only=False, must_exist=False) as there:
        into = there.tenant(context.tenant) if context.tenant else there
        with context.output.progress("copying runs", len(chosen)) as count_one:
            for run_id in chosen:
                try:
                    await _copy(context.storage, into, run_id)
                except WorkflowException as error:
                    refused += 1
                    context.output.note(f"not copied: {error}")
                count_one()
    context.output.note(f"{len(chosen) - refused} runs copied")
    if not context.output.is_table:
        context.output.record("copied", {"runs": len(chosen) - refused, "refused": refused})
    return ERROR if refused else OK


async def _page(storage: StoreStorage, before: list[str]) -> list[str]:
    """Return the ids that follow, parents before their forks."""
    after = before[-1] if before else None
    return [each.run_id for each in await storage.runs(order="oldest", limit=_PAGE, after=after)]


async def _copy(source: StoreStorage, target: StoreStorage, run_id: str) -> None:
    here, there = cast("TenantStore", source.store), cast("TenantStore", target.store)
    run = await source.run(run_id)
    archive = await here.archive(run_id)
    # Two stores must not continue one run: its steps have the same idempotency keys in both.
    halt = Halt(
        "exported",
        at=now(source.clock),
        reason=f"it is a copy of a run that was {run.status}" + (f": {run.error}" if run.error else ""),
        data=closing_note(source.clock.new_id(), archive.record.halt),
    )
    await there.restore(replace(archive, record=replace(archive.record, halt=halt)))
