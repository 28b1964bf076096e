"""The command that looks for problems of an installation and its store."""

from collections.abc import AsyncIterator

from perdure.cli.app import ERROR, OK, Context, app, command
from perdure.cli.views import Row, doctor_views


@command(app, "doctor")
async def doctor(context: Context) -> int:
    """Check versions, the store, its schema and clock, and runs that need a person. A problem is exit code 1."""
    has_problem = False

    async def rows() -> AsyncIterator[Row]:
        nonlocal has_problem
        async for row in doctor_views(context.storage):
            has_problem = has_problem or row["state"] == "problem"
            yield row

    if context.output.is_table and not context.output.fields:
        async for row in rows():
            style = {"warning": "yellow", "problem": "bold red"}.get(row["state"], "")
            context.output.text(f"{row['state']:<7}  {row['check']:<12}  {row['detail']}", style=style)
    else:
        await context.output.rows("doctor", rows(), ("check", "state", "detail"))
    return ERROR if has_problem else OK
