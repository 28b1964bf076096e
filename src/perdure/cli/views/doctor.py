"""Checks of an installation and its store."""

from __future__ import annotations

import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal

from perdure.cli.views.text import typed
from perdure.errors import StorageOutdatedError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from perdure.inspector.views import Row
    from perdure.storage import HostInfo, StoreStorage

_SKEW_SECONDS_MAX = 2
_RUNS_MAX = 50
_DRIVERS = ("psycopg", "typer", "rich")


def _row(check: str, state: Literal["ok", "warning", "problem"], detail: str) -> Row:
    return {"check": check, "state": state, "detail": detail}


async def doctor_views(storage: StoreStorage) -> AsyncIterator[Row]:
    """Describe each check: `state` is ok, warning or problem; `detail` says what was found and what to do."""
    yield _row("versions", "ok", _versions())
    try:
        counts = dict(await storage.count_runs())
    except StorageOutdatedError as error:
        yield _row("store", "problem", str(error))
        return
    yield _row("store", "ok", f"{type(storage.store).__name__} with {sum(counts.values())} runs")
    yield await _clock(storage)
    hosts = await storage.hosts()
    if not hosts:
        yield _row("hosts", "ok", "none is alive")
    for host in hosts:
        yield _row("hosts", "ok", f"process {host.process} on {host.machine} serves {_workflows(host)}")
    stopped = {status: counts[status] for status in ("failed", "quarantined") if counts.get(status)}
    told = ", ".join(f"{number} {status}" for status, number in stopped.items())
    yield _row(
        "stopped runs",
        "warning" if stopped else "ok",
        f"{told}; see `perdure runs --status failed`" if told else "none",
    )
    blocked = await storage.runs(status="blocked", limit=_RUNS_MAX)
    if not blocked:
        yield _row("blocked runs", "ok", "none")
    for run in blocked:
        yield _row("blocked runs", "warning", f"{typed(run.run_id)}: {run.error}")


def _workflows(host: HostInfo) -> str:
    return ", ".join(f"{name} version {number}" for name, number in sorted(host.workflows.items()))


def _versions() -> str:
    found = [f"perdure {version('perdure')}", f"Python {platform.python_version()}", f"SQLite {sqlite3.sqlite_version}"]
    for driver in _DRIVERS:
        try:
            found.append(f"{driver} {version(driver)}")
        except PackageNotFoundError:
            found.append(f"no {driver}")
    return ", ".join(found)


async def _clock(storage: StoreStorage) -> Row:
    """Compare the clock of this machine with the newest commit, which has the time of the store."""
    newest = await storage.runs(order="updated", limit=1)
    at = newest[0].updated_at if newest else None
    skew = 0.0 if at is None else (at - storage.clock.now()).total_seconds()
    if skew > _SKEW_SECONDS_MAX:
        return _row("clock", "problem", f"this machine is {skew:.0f} seconds or more behind the newest commit")
    return _row("clock", "ok", "no commit is in the future")
