"""Why a run stands where it stands, and what to do next."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.views.text import moment, typed
from perdure.inspector.views import Row, request_view, run_view
from perdure.records import Mark

if TYPE_CHECKING:
    from perdure.storage import PendingRequest, RunInfo, StoreStorage

NOWHERE = Mark(head="", events=-1, commands=-1)
"""A mark that no run has, so that `watch` returns at once."""


async def why_view(storage: StoreStorage, run: RunInfo) -> Row:
    """Explain a run: its state, whether its owner is alive, its open requests, and what to do next."""
    mark = await storage.store.watch(run.run_id, seen=NOWHERE)
    requests = await open_requests(storage, run)
    return {
        "run": run_view(run),
        "owner_is_alive": mark.owner is not None,
        "commands_wait": bool(mark.commands),
        "waits_for": [request_view(each) for each in requests],
        "next": _advice(run, requests, is_owned=mark.owner is not None),
    }


async def open_requests(storage: StoreStorage, run: RunInfo) -> list[PendingRequest]:
    """Return the open requests of a run that continues in this store."""
    has_some = run.checkpoint_id is not None and run.open_requests != 0 and run.status not in {"exported", "cancelled"}
    return await storage.requests(run.run_id) if has_some else []


def place(run: RunInfo) -> str | None:
    """Return where and when a run has failed, as one line."""
    failure = run.failure
    if failure is None:
        return None
    where = "/".join([*failure.path, failure.executor_id or "the engine"])
    step = f", step {failure.step}" if failure.step else ""
    return f"{where}{step}, attempt {failure.attempt}, at {moment(failure.at)}"


def _advice(run: RunInfo, requests: list[PendingRequest], *, is_owned: bool) -> list[str]:
    """Return what to do next, as commands where there is one."""
    run_id = typed(run.run_id)
    match run.status:
        case "waiting" if open_ := [each for each in requests if each.answered_by is None]:
            return [f"perdure answer {typed(each.request_id)} VALUE --run {run_id}" for each in open_]
        case "waiting" if requests:
            return [f"start a host that serves {run.workflow_name!r}: it applies the answer"]
        case "failed" | "quarantined":
            return [f"fix the cause, then: perdure recover {run_id}"]
        case "cancelled":
            return [f"continue it with: perdure recover {run_id} --app MODULE:HOST, or leave it"]
        case "running" if is_owned:
            return [f"perdure events {run_id} --follow"]
        case "blocked" if run.blocked:
            return [f"deploy a program that can load {run.workflow_name!r}: then the run continues by itself"]
        case "running" | "blocked":
            return [f"start a host that serves {run.workflow_name!r}: nobody advances this run"]
        case "sleeping":
            return ["nothing: it wakes by itself while a host serves its workflow"]
        case "exported":
            return ["nothing here: it continues in another store"]
        case _:
            return [f"nothing: it has no work left; perdure send {run_id} MESSAGE starts its next turn"]
