"""Commands that post to a run's inbox: answer its requests, send it a message, cancel it."""

import getpass
import json
import sys
from collections.abc import AsyncIterator
from typing import Annotated, Any

import typer

from perdure.cli.app import NOT_FOUND, Context, app, command, confirm, refuse
from perdure.cli.form import ask_for
from perdure.cli.runs import RunArgument
from perdure.cli.views import Row, request_view, safe

_PAGE = 200
_COLUMNS = ("request_id", "run_id", "response_type", "opened_at", "deadline", "answered_by", "data")
HOST_NOTE = "a host that serves its workflow applies it"

ByOption = Annotated[str | None, typer.Option(help="Who you are, for the record; your login by default.")]


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


@command(app, "answer", writes=True)
async def answer(
    context: Context,
    *,
    request_id: Annotated[str, typer.Argument(metavar="REQUEST", help="The id of the request.")],
    value: Annotated[str | None, typer.Argument(help="The answer as JSON; other text is a string.")] = None,
    run: Annotated[str | None, typer.Option(help="The run that asks; without it all runs are searched.")] = None,
    form: Annotated[bool, typer.Option("--form", help="Ask for the answer field by field.")] = False,
    by: ByOption = None,
) -> None:
    """Answer a request. The answer is checked against the stored schema."""
    if form == (value is not None):
        refuse("give the answer as JSON, or --form to be asked for it field by field")
    asking = [each async for each in _open(context, run) if each["request_id"] == request_id]
    if not asking:
        refuse(f"no run waits for an answer to {request_id!r}; `perdure requests` lists the open ones", code=NOT_FOUND)
    if len(asking) > 1:
        ids = ", ".join(each["run_id"] for each in asking[:5])
        refuse(f"{len(asking)} runs have a request {request_id!r}; choose one with --run, such as {ids}")
    (request,) = asking
    run_id: str = request["run_id"]
    approves = None
    if form:
        context.output.note(f"{request['executor_id']} of run {run_id} asks:\n{safe(request['data'])}")
        given = ask_for(request["schema"] or {})
        approves = request["approves"] and {request_id: request["approves"]}
        confirm(f"the answer is {json.dumps(given, ensure_ascii=False)}", yes=not sys.stdin.isatty())
    else:
        given = parsed(value)
    await context.storage.respond(run_id, {request_id: given}, by=by or _login(), approves=approves)
    context.output.note(f"the answer to {request_id!r} is stored; {HOST_NOTE}")


@command(app, "send", writes=True)
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
    sent = await context.storage.send(run_id, parsed(message), target=target, by=by or _login())
    context.output.note(f"message {sent!r} is stored; {HOST_NOTE}")


@command(app, "cancel", writes=True)
async def cancel(
    context: Context,
    run_id: RunArgument,
    reason: Annotated[str | None, typer.Option(help="Why, for the record.")] = None,
    by: ByOption = None,
) -> None:
    """Cancel a run. It ends in a checkpoint from which it can continue."""
    await context.storage.run(run_id)
    await context.storage.cancel(run_id, reason=reason, by=by or _login())
    context.output.note(f"the cancellation of {run_id!r} is stored; {HOST_NOTE}")


def _login() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return None


def parsed(text: str | None) -> Any:
    """Return what was typed as JSON; other text as a string."""
    try:
        return json.loads(text or "")
    except ValueError:
        return text
