"""Commands about runs: list them, show one, explain where it stands, follow its events, wait for it."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, cast, get_args

import typer

from perdure.cli.app import FAILED, OK, STOPPED, TIMEOUT, USAGE, WAITING, Context, app, command, refuse
from perdure.cli.output import moment, safe
from perdure.inspector.views import Row, checkpoint_view, event_view, request_view, run_view
from perdure.records import Mark, RunStatus
from perdure.storage import Order, PendingRequest, RunInfo

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")]

_PAGE = 200
_RUN_COLUMNS = ("run_id", "workflow_name", "status", "updated_at", "tags", "error")
_NOWHERE = Mark(head="", events=-1, commands=-1)
_CODES = {"failed": FAILED, "waiting": WAITING, "cancelled": STOPPED, "quarantined": STOPPED, "exported": STOPPED}
_TRACEBACK_LENGTH_MAX = 4_000
_ENGINE = r"[/\\]perdure[/\\](?:agents|engine|functional|graph|hosting|workflows)[/\\]"
_ENGINE_FRAME = re.compile(rf'^  File "[^"\n]*{_ENGINE}[^\n]*\n(?:    [^\n]*\n)*', re.MULTILINE)
_RUN_EVENTS = {"failed", "executor_failed", "attempt_failed", "warning", "error"}


@command(app, "runs")
async def runs(
    context: Context,
    *,
    status: Annotated[list[str] | None, typer.Option(help="Only these statuses; repeat it for several.")] = None,
    workflow: Annotated[str | None, typer.Option(help="Only runs of this workflow.")] = None,
    tag: Annotated[list[str] | None, typer.Option(help="Only runs with this tag, as name=value.")] = None,
    error: Annotated[str | None, typer.Option(help="Only runs whose error contains this text.")] = None,
    parent: Annotated[str | None, typer.Option(help="Only forks of this run.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only runs created at this time or later.")] = None,
    order: Annotated[Order, typer.Option(help="Which come first.")] = "updated",
    limit: Annotated[int | None, typer.Option(help="At most so many; 0 for all.")] = 50,
    count: Annotated[bool, typer.Option("--count", help="Print how many runs there are, by status.")] = False,
) -> None:
    """List runs."""
    for each in status or ():
        if each not in get_args(RunStatus):
            refuse(f"unknown status {each!r}; use one of {', '.join(get_args(RunStatus))}")
    chosen: dict[str, Any] = {
        "tags": dict(_pair(each) for each in tag or ()),
        "error": error,
        "parent": parent,
        "created_after": since,
    }
    if count:
        found = [
            {"status": name, "runs": number}
            for name, number in sorted((await context.storage.count_runs(workflow, **chosen)).items())
        ]
        await context.output.rows("counts", _each(found), ("status", "runs"))
        return

    async def pages() -> AsyncIterator[Row]:
        left, after = limit or None, None
        while left is None or left > 0:
            size = _PAGE if left is None else min(left, _PAGE)
            page = await context.storage.runs(
                workflow, cast("list[RunStatus] | None", status), order=order, limit=size, after=after, **chosen
            )
            for run in page:
                yield run_view(run)
            if len(page) < size:
                return
            left, after = None if left is None else left - size, page[-1].run_id

    await context.output.rows("runs", pages(), _RUN_COLUMNS)


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        refuse(f"{text!r} is no tag; write it as name=value", code=USAGE)
    return name, value


async def _each(rows: list[dict[str, Any]]) -> AsyncIterator[Row]:
    for row in rows:
        yield row


@command(app, "show")
async def show(context: Context, run_id: RunArgument) -> None:
    """Show a run: status, failure, open requests, times and spending."""
    run = await context.storage.run(run_id)
    requests = await _requests(context, run)
    if not context.output.is_table:
        context.output.record("run", {**run_view(run), "requests": [request_view(each) for each in requests]})
        return
    view, output = run_view(run), context.output
    output.facts(
        (name.replace("_", " "), moment(str(value)) if value and name.endswith("_at") else value)
        for name, value in view.items()
        if name != "failure"
    )
    if run.failure is not None:
        output.facts([("failed in", _place(run))])
    for request in requests:
        output.facts([("request", request.request_id), ("asks", request_view(request)["data"])])


@command(app, "why")
async def why(context: Context, run_id: RunArgument) -> None:
    """Explain on one screen where a run stands, why, and what to do next."""
    run = await context.storage.run(run_id)
    mark = await context.storage.store.watch(run_id, seen=_NOWHERE)
    requests = await _requests(context, run)
    is_owned = mark.owner is not None
    advice = _advice(run, requests, is_owned=is_owned)
    if not context.output.is_table:
        waits = [request_view(each) for each in requests]
        context.output.record(
            "why", {"run": run_view(run), "owner_is_alive": is_owned, "waits_for": waits, "next": advice}
        )
        return
    output = context.output
    owner = None if run.owner is None else f"{run.owner} ({'alive' if is_owned else 'dead'})"
    output.facts(
        [
            ("run", run.run_id),
            ("workflow", run.workflow_name),
            ("status", run.status),
            ("last commit", f"{run.checkpoint_id} at {moment(run.updated_at and run.updated_at.isoformat())}"),
            ("owner", owner or "none"),
            ("wakes at", run.wake_at and moment(run.wake_at.isoformat())),
            ("failed in", _place(run)),
            ("error", run.error),
        ]
    )
    if run.failure is not None and run.failure.traceback:
        output.text("\n" + _shortened(run.failure.traceback))
    for request in requests:
        output.facts(
            [
                ("waits for", f"{request.request_id}, an answer of type {request.response_type}"),
                ("asked by", f"{request.executor_id} at {moment(request.opened_at)}"),
                ("question", request_view(request)["data"]),
                ("answered by", request.answered_by),
            ]
        )
    output.text("\nnext: " + "\n      ".join(advice), style="bold")


def _shortened(traceback: str) -> str:
    """Return a traceback without the frames of the engine, and of a long one the end, where the cause is."""
    own = _ENGINE_FRAME.sub("", traceback).rstrip()
    return own if len(own) <= _TRACEBACK_LENGTH_MAX else f"...\n{own[-_TRACEBACK_LENGTH_MAX:]}"


def _place(run: RunInfo) -> str | None:
    failure = run.failure
    if failure is None:
        return None
    place = "/".join([*failure.path, failure.executor_id or "the engine"])
    step = f", step {failure.step}" if failure.step else ""
    return f"{place}{step}, attempt {failure.attempt}, at {moment(failure.at)}"


def _advice(run: RunInfo, requests: list[PendingRequest], *, is_owned: bool) -> list[str]:
    """Return what to do next, as commands where there is one."""
    match run.status:
        case "waiting" if requests:
            return [f"perdure answer {_typed(each.request_id)} VALUE --run {_typed(run.run_id)}" for each in requests]
        case "failed" | "quarantined":
            return [f"fix the cause, then: perdure recover {_typed(run.run_id)}"]
        case "cancelled":
            return [f"continue it with host.recover({run.run_id!r}), or leave it"]
        case "running" if is_owned:
            return [f"perdure events {_typed(run.run_id)} --follow"]
        case "running" | "blocked":
            return [f"start a host that serves {run.workflow_name!r}: nobody advances this run"]
        case "sleeping":
            return ["nothing: it wakes by itself while a host serves its workflow"]
        case "exported":
            return ["import its file where it should continue"]
        case _:
            return [f"nothing: it has no work left; perdure send {_typed(run.run_id)} MESSAGE starts its next turn"]


def _typed(text: str) -> str:
    """Return an id as it is typed in a shell."""
    return shlex.quote(safe(text))


async def _requests(context: Context, run: RunInfo) -> list[PendingRequest]:
    has_some = run.checkpoint_id is not None and run.open_requests != 0 and run.status != "exported"
    return await context.storage.requests(run.run_id) if has_some else []


@command(app, "events")
async def events(
    context: Context,
    run_id: RunArgument,
    start: Annotated[int, typer.Option("--from", help="The number of the first event.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events.")] = False,
) -> None:
    """Print the committed events of a run."""
    found = context.storage.events(run_id, from_seq=start, follow=follow)
    if not context.output.is_table:
        await context.output.rows("events", (event_view(event) async for event in found), ())
        return
    async for event in found:
        view = event_view(event)
        where = "/".join([*view["path"], view["executor_id"] or ""]).rstrip("/")
        line = f"{view['seq']:>6}  {moment(view['at'])}  {safe(view['type']):<20}  {safe(where):<16}  "
        context.output.text(line + safe(_summary(view), limit=120), style="red" if view["type"] in _RUN_EVENTS else "")


def _summary(view: Row) -> object:
    """Return the data of an event in short."""
    data: Any = view["details"] or view["data"] or view["state"] or ""
    match data:
        case {"error_type": error_type, "message": message}:
            return f"{error_type}: {message}"
        case {"checkpoint_id": checkpoint_id}:
            return checkpoint_id
        case _:
            return data


@command(app, "checkpoints")
async def checkpoints(context: Context, run_id: RunArgument) -> None:
    """List the checkpoints of a run."""
    await context.storage.run(run_id)
    found = await context.storage.list_checkpoints(run_id=run_id)
    columns = ("checkpoint_id", "superstep", "at", "previous_checkpoint_id")
    await context.output.rows("checkpoints", _each([dict(checkpoint_view(each)) for each in found]), columns)


@command(app, "tree")
async def tree(context: Context, run_id: RunArgument) -> None:
    """Show a run and its forks."""

    async def below(run: RunInfo, depth: int, seen: set[str]) -> AsyncIterator[Row]:
        yield {"depth": depth, **run_view(run)}
        for fork in await context.storage.runs(parent=run.run_id):
            if fork.run_id not in seen:
                seen.add(fork.run_id)
                async for row in below(fork, depth + 1, seen):
                    yield row

    found = below(await context.storage.run(run_id), 0, {run_id})
    if not context.output.is_table:
        await context.output.rows("runs", found, ())
        return
    async for row in found:
        origin = f"  from {row['parent_checkpoint_id']}" if row["depth"] else ""
        context.output.text(f"{'  ' * row['depth']}{safe(row['run_id'])}  {row['status']}{safe(origin)}")


@command(app, "wait")
async def wait(
    context: Context,
    run_id: RunArgument,
    timeout: Annotated[float | None, typer.Option(help="Seconds to wait at most.")] = None,  # noqa: ASYNC109
) -> int:
    """Wait until a run is idle, fails, waits for a person or is stopped. The exit code says which."""
    store = context.storage.store
    try:
        async with asyncio.timeout(timeout):
            while True:
                mark = await store.watch(run_id, seen=_NOWHERE)
                run = await context.storage.run(run_id)
                if run.status == "idle" or run.status in _CODES:
                    break
                await store.watch(run_id, seen=mark)
    except TimeoutError:
        context.output.note(f"run {run_id!r} has not ended after {timeout:g} seconds")
        return TIMEOUT
    if context.output.is_table:
        context.output.text(run.status + (f": {run.error}" if run.error else ""))
    else:
        context.output.record("run", run_view(run))
    return _CODES.get(run.status, OK)
