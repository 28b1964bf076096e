"""Commands that let runs continue: with `--app` they execute them, otherwise a running host does; and the worker."""

import asyncio
import contextlib
import json
import logging
import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from perdure.cli.app import ERROR, OK, Context, app, command, refuse
from perdure.cli.checkpoints import AtOption, checkpoint_of
from perdure.cli.requests import parsed
from perdure.cli.runs import CONTINUES, RunArgument, TimeoutOption, await_rest
from perdure.hosting import Host
from perdure.inspector.views import SCHEMA, plain
from perdure.workflows import Edit

_REQUEST_SECONDS_MAX = 5
_SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Set a key of the shared state, as path=JSON; repeat it for several.")
]


_BudgetOption = Annotated[
    list[str] | None, typer.Option("--budget", help="A larger budget, as resource=number; repeat it for several.")
]


@command(app, "recover", writes=True, executes=True)
async def recover(
    context: Context,
    *,
    run_id: RunArgument,
    budget: _BudgetOption = None,
    timeout: TimeoutOption = None,  # noqa: ASYNC109
) -> int:
    """Let a failed or quarantined run continue from its newest checkpoint. With --app, execute it here."""
    raised = _budget(budget)
    if context.host is not None:
        await context.storage.run(run_id)
        async with context.host:
            await context.host.recover(run_id, budget=raised)
            return await await_rest(context, run_id, timeout)
    if await context.storage.recover(run_id, budget=raised):
        context.output.note(f"run {run_id!r} may continue; {CONTINUES}")
    else:
        context.output.note(f"run {run_id!r} has neither failed nor been quarantined; nothing to recover")
    return 0


@command(app, "fork", writes=True, executes=True)
async def fork(
    context: Context,
    *,
    run_id: RunArgument,
    at: AtOption = None,
    change: _SetOption = None,
    budget: _BudgetOption = None,
    edit: Annotated[bool, typer.Option("--edit", help="Change the shared state in $EDITOR, as JSON.")] = False,
    timeout: TimeoutOption = None,  # noqa: ASYNC109
) -> int:
    """Start a new run at a checkpoint of a run, with a changed state if you like. The run itself does not change."""
    chosen, raised = checkpoint_of(await context.storage.run(run_id), at), _budget(budget)
    if context.host is None:
        if edit or change:
            refuse("a changed state needs the types of the program: give --app module:host")
        fork_id = await context.storage.fork(chosen, budget=raised)
        context.output.note(f"run {fork_id!r} is a fork of {chosen!r}; {CONTINUES}")
        _print_id(context, fork_id)
        return OK
    before: dict[str, Any] = dict((await context.storage.view(chosen)).state)
    after = _edited(before) if edit else json.loads(json.dumps(before))
    for each in change or ():
        _set(after, each)
    made = Edit(
        state={key: value for key, value in after.items() if key not in before or before[key] != value},
        delete=[key for key in before if key not in after],
    )
    async with context.host:
        started = await context.host.fork(run_id, chosen, edit=made, budget=raised)
        context.output.note(f"run {started.run_id!r} is a fork of {chosen!r}")
        return await await_rest(context, started.run_id, timeout)


def _print_id(context: Context, run_id: str) -> None:
    if context.output.is_table:
        context.output.text(run_id)
    else:
        context.output.record("run", {"run_id": run_id})


def _budget(given: list[str] | None) -> dict[str, float] | None:
    """Return budgets by resource."""
    found: dict[str, float] = {}
    for each in given or ():
        resource, _, number = each.partition("=")
        try:
            found[resource] = float(number)
        except ValueError:
            refuse(f"{each!r} is no budget; write resource=number, such as total_tokens=50000")
    return found or None


def _edited(state: Mapping[str, Any]) -> dict[str, Any]:
    """Let a person change the state in an editor."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    with tempfile.TemporaryDirectory(prefix="perdure-") as directory:
        file = Path(directory) / "state.json"
        file.write_text(json.dumps(state, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        if subprocess.run([*shlex.split(editor), str(file)], check=False).returncode != 0:  # noqa: S603 - their editor
            refuse(f"the editor {editor!r} has failed; nothing is forked", code=ERROR)
        try:
            found: object = json.loads(file.read_text(encoding="utf-8"))
        except ValueError as error:
            refuse(f"this is not JSON: {error}; nothing is forked", code=ERROR)
    if not isinstance(found, dict):
        refuse("the state must be a JSON object; nothing is forked", code=ERROR)
    return cast("dict[str, Any]", found)


def _set(state: dict[str, Any], text: str) -> None:
    """Set a value in a state. The path is a key, and further keys or positions after slashes."""
    path, equals, value = text.partition("=")
    if not equals or not path:
        refuse(f"{text!r} sets nothing; write path=JSON, such as cart/items/0=3")
    *places, last = path.split("/")
    inner: Any = state
    try:
        for place in places:
            inner = inner[int(place) if isinstance(inner, list) else place]
        inner[int(last) if isinstance(inner, list) else last] = parsed(value)
    except (LookupError, TypeError, ValueError):
        refuse(f"there is no place {path!r} in the state; `perdure state` shows it")


@command(app, "serve", writes=True, executes=True)
async def serve(
    context: Context,
    health_port: Annotated[
        int | None, typer.Option(help="Report the health of the host as JSON on this port of 127.0.0.1.")
    ] = None,
) -> None:
    """Advance the runs of a program until SIGTERM or Ctrl-C, which let supersteps in progress end."""
    host = context.host
    if host is None:
        refuse("give the program to serve: --app module:host")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    if health_port is None:
        await host.serve()
        return
    async with await asyncio.start_server(partial(_report, host), "127.0.0.1", health_port):
        await host.serve()


async def _report(host: Host, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer one HTTP request with the health of a host: 200 if it takes runs, 503 otherwise."""
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.LimitOverrunError):
        async with asyncio.timeout(_REQUEST_SECONDS_MAX):
            await reader.readuntil(b"\r\n\r\n")
            health = host.health()
            is_well = health.is_serving and not health.is_draining and health.is_store_reachable is not False
            body = json.dumps({"schema": SCHEMA, "health": plain(health)}).encode()
            status = b"200 OK" if is_well else b"503 Service Unavailable"
            head = b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n"
            writer.write(head % (status, len(body)) + body)
            await writer.drain()
    writer.close()
