"""Commands that post to a run's inbox: answer its requests, send it a message, cancel it."""

import json
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from perdure.cli.app import NOT_FOUND, Context, app, command, refuse
from perdure.cli.runs import RunArgument
from perdure.inspector.views import Row, request_view

_PAGE = 200
_COLUMNS = ("request_id", "run_id", "executor_id", "response_type", "opened_at", "deadline", "data")
_HOST_NOTE = "a host that serves its workflow applies it"

ByOption = Annotated[str | None, typer.Option(help="Who you are, for the record.")]


@command(app, "requests")
async def requests(
    context: Context,
    run: Annotated[str | None, typer.Option(help="Only requests of this run.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only requests of this workflow's runs.")] = None,
) -> None:
    """List the requests that wait for an answer."""
    await context.output.rows("requests", _open(context, run, workflow), _COLUMNS)


async def _open(context: Context, run: str | None = None, workflow: str | None = None) -> AsyncIterator[Row]:
    page = await context.storage.requests(run, workflow_name=workflow, limit=_PAGE)
    while True:
        for request in page:
            yield request_view(request)
        if run is not None or len(page) < _PAGE:
            return
        page = await context.storage.requests(None, workflow_name=workflow, limit=_PAGE, after=page[-1])


@command(app, "answer")
async def answer(
    context: Context,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request.")],
    value: Annotated[str, typer.Argument(help="The answer as JSON; other text is a string.")],
    run: Annotated[str | None, typer.Option(help="The run that asks; without it all runs are searched.")] = None,
    by: ByOption = None,
) -> None:
    """Answer a request. The answer is checked against the stored schema."""
    asking = (
        [run]
        if run is not None
        else [each["run_id"] async for each in _open(context) if each["request_id"] == request_id]
    )
    if not asking:
        refuse(f"no run waits for an answer to {request_id!r}; `perdure requests` lists the open ones", code=NOT_FOUND)
    if len(asking) > 1:
        refuse(f"{len(asking)} runs have a request {request_id!r}; choose one with --run, such as --run {asking[0]}")
    run_id: str = asking[0]
    await context.storage.respond(run_id, {request_id: _value(value)}, by=by)
    context.output.note(f"the answer to {request_id!r} is stored; {_HOST_NOTE}")


@command(app, "send")
async def send(
    context: Context,
    run_id: RunArgument,
    message: Annotated[str, typer.Argument(help="The message as JSON; other text is a string.")],
    target: Annotated[
        str | None, typer.Option(help="The executor that gets it; otherwise it is the next turn.")
    ] = None,
    by: ByOption = None,
) -> None:
    """Send a message to a run."""
    await context.storage.run(run_id)
    sent = await context.storage.send(run_id, _value(message), target=target, by=by)
    context.output.note(f"message {sent!r} is stored; {_HOST_NOTE}")


@command(app, "cancel")
async def cancel(
    context: Context,
    run_id: RunArgument,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    by: ByOption = None,
) -> None:
    """Cancel a run. It ends in a checkpoint from which it can continue."""
    await context.storage.run(run_id)
    await context.storage.cancel(run_id, reason=reason, by=by)
    context.output.note(f"the cancellation of {run_id!r} is stored; {_HOST_NOTE}")


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
