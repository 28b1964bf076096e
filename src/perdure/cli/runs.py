"""Commands about runs: list them, show one, explain where it stands, follow its events, wait for it."""

import asyncio
import re
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Annotated, Any, cast, get_args

import typer

from perdure.cli.app import FAILED, OK, STOPPED, TIMEOUT, USAGE, WAITING, Context, app, command, refuse
from perdure.cli.views import (
    NOWHERE,
    Row,
    checkpoint_view,
    event_view,
    moment,
    open_requests,
    place,
    request_view,
    run_view,
    safe,
    why_view,
)
from perdure.records import RunStatus
from perdure.storage import Order, RunInfo

RunArgument = Annotated[str, typer.Argument(metavar="RUN", help="The id of a run.")]

CONTINUES = "a host that serves its workflow continues it"
_PAGE = 200
_RUN_COLUMNS = ("run_id", "workflow_name", "status", "updated_at", "tags", "error")
_CODES = {
    "idle": OK,
    "failed": FAILED,
    "waiting": WAITING,
    "cancelled": STOPPED,
    "quarantined": STOPPED,
    "exported": STOPPED,
}
_FACTS = (
    *("run_id", "workflow_name", "version", "status", "error", "tags", "created_at", "updated_at", "finished_at"),
    *("wake_at", "owner", "attempts", "checkpoint_id", "supersteps", "events", "open_requests", "spent"),
)
_WATCH_SECONDS = 2
_SUMMARY_LENGTH_MAX = 500
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
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Draw the list again and again.")] = False,
) -> None:
    """List runs."""
    require_statuses(status)
    if watch and (count or not context.output.is_live):
        refuse("--watch needs a terminal and the format table")
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

    if not watch:
        await context.output.rows("runs", pages(), _RUN_COLUMNS)
        return
    with context.output.live() as show_rows:
        while True:
            counts = await context.storage.count_runs(workflow, **chosen)
            note = "  ".join(f"{number} {name}" for name, number in sorted(counts.items()))
            show_rows([row async for row in pages()], _RUN_COLUMNS, f"{note}\nCtrl-C ends this list")
            await context.storage.clock.sleep(_WATCH_SECONDS)


def require_statuses(given: list[str] | None) -> None:
    """Refuse words that are no statuses."""
    for each in given or ():
        if each not in get_args(RunStatus):
            refuse(f"unknown status {each!r}; use one of {', '.join(get_args(RunStatus))}")


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
    requests = await open_requests(context.storage, run)
    if not context.output.is_table:
        context.output.record("run", {**run_view(run), "requests": [request_view(each) for each in requests]})
        return
    view = run_view(run)
    shown: list[tuple[str, object]] = [
        (name.replace("_", " "), moment(str(view[name])) if view[name] and name.endswith("_at") else view[name])
        for name in (*_FACTS, *sorted(view.keys() - {*_FACTS, "failure", "blocked"}))
    ]
    shown.append(("failed in", place(run)))
    for request in requests:
        shown += [("request", request.request_id), ("asks", request_view(request)["data"])]
    context.output.facts(shown)


@command(app, "why")
async def why(context: Context, run_id: RunArgument) -> None:
    """Explain on one screen where a run stands, why, and what to do next."""
    run = await context.storage.run(run_id)
    view = await why_view(context.storage, run)
    if not context.output.is_table:
        context.output.record("why", view)
        return
    output = context.output
    owner = None if run.owner is None else f"{run.owner} ({'alive' if view['owner_is_alive'] else 'dead'})"
    output.facts(
        [
            ("run", run.run_id),
            ("workflow", run.workflow_name),
            ("status", run.status),
            ("last commit", run.updated_at and f"{run.checkpoint_id} at {moment(run.updated_at.isoformat())}"),
            ("owner", owner or "none"),
            ("wakes at", run.wake_at and moment(run.wake_at.isoformat())),
            ("failed in", place(run)),
            ("error", None if run.blocked else run.error),
        ]
    )
    reasons = run.blocked or {}
    for reason in dict.fromkeys(reasons.values()):
        hosts = [name for name, each in reasons.items() if each == reason]
        output.text(f"\n{len(hosts)} of {len(reasons)} hosts can't load it:\n{reason}")
    if run.failure is not None and run.failure.traceback:
        output.text("\n" + _shortened(run.failure.traceback))
    for request in view["waits_for"]:
        output.text("")
        output.facts(
            [
                ("waits for", f"{request['request_id']}, an answer of type {request['response_type']}"),
                ("asked by", f"{request['executor_id']} at {moment(request['opened_at'])}"),
                ("question", request["data"]),
                ("refused", "; ".join(request["refusals"])),
                ("answered by", request["answered_by"]),
            ]
        )
    output.text("\nnext: " + "\n      ".join(view["next"]), style="bold")


def _shortened(traceback: str) -> str:
    """Return a traceback without the frames of the engine, and of a long one the end, where the cause is."""
    own = _ENGINE_FRAME.sub("", traceback).rstrip()
    return own if len(own) <= _TRACEBACK_LENGTH_MAX else f"...\n{own[-_TRACEBACK_LENGTH_MAX:]}"


@command(app, "events")
async def events(
    context: Context,
    run_id: RunArgument,
    start: Annotated[int, typer.Option("--from", help="The number of the first event.")] = 1,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events.")] = False,
) -> None:
    """Print the committed events of a run."""
    if follow and context.output.format == "json":
        refuse("--follow never ends, so its JSON document would never close; use -o jsonl")
    found = context.storage.events(run_id, from_seq=start, follow=follow)
    if not context.output.is_table:
        await context.output.rows("events", (event_view(event) async for event in found), ())
        return
    async for event in found:
        view = event_view(event)
        where = "/".join([*view["path"], view["executor_id"] or ""]).rstrip("/")
        line = f"{view['seq']:>6}  {moment(view['at'])}  {safe(view['type']):<19}  {safe(where):<12}  "
        style = "red" if view["type"] in _RUN_EVENTS else ""
        context.output.line(line + safe(_summary(view), limit=_SUMMARY_LENGTH_MAX), style=style)


def _summary(view: Row) -> object:
    """Return the data of an event in short."""
    data: Any = view["details"] or view["data"] or view["state"] or ""
    match data:
        case {"error_type": error_type, "message": message}:
            return f"{error_type}: {message}"
        case {"checkpoint_id": checkpoint_id}:
            return checkpoint_id
        case {"commit_duration": _, "duration": float() | int() as seconds}:
            return f"{seconds:.3f} s"
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


TimeoutOption = Annotated[float | None, typer.Option(help="Seconds to wait at most.")]


@command(app, "wait")
async def wait(context: Context, run_id: RunArgument, timeout: TimeoutOption = None) -> int:  # noqa: ASYNC109
    """Wait until a run is idle, fails, waits for a person or is stopped. The exit code says which."""
    return await await_rest(context, run_id, timeout)


async def await_rest(context: Context, run_id: str, seconds: float | None) -> int:
    """Wait until a run needs something from outside, print its state, and return the exit code."""
    store = context.storage.store
    try:
        async with asyncio.timeout(seconds):
            while True:
                mark = await store.watch(run_id, seen=NOWHERE)
                run = await context.storage.run(run_id)
                # A command in the inbox, such as an answer, moves a run that is idle or waits.
                if run.status in _CODES and not (run.status in {"idle", "waiting"} and mark.commands):
                    break
                await store.watch(run_id, seen=mark)
    except TimeoutError:
        context.output.note(f"run {run_id!r} has not ended after {seconds:g} seconds")
        return TIMEOUT
    if context.output.is_table:
        context.output.text(run.status + (f": {run.error}" if run.error else ""))
    else:
        context.output.record("run", run_view(run))
    return _CODES[run.status]
