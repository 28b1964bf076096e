"""List runs with the store alone: what each is, how far it has come, and why it stands where it stands."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, cast, get_args

from perdure.data_classes import new_dict
from perdure.errors import RunNotFoundError
from perdure.failures import Failure
from perdure.records import RunQuery, RunRecord, RunStatus
from perdure.storage.hosts import blocked_text, knows_hosts
from perdure.storage.port import Store, lists_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from typing_extensions import Unpack


_STORED_NAMES = {"quarantined": "parked"}
_TAGS_MAX = 32
_TAG_LENGTH_MAX = 256


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The state of a run, as its store knows it.

    Attributes:
        status: running: there is work to do; waiting: for an answer; sleeping: until a time; idle: nothing left to do;
            failed, quarantined, cancelled, exported: the run does not continue by itself; blocked: it could go on, but
            no living host can load it.
        error: The reason, if the run has failed, was quarantined, is blocked, or its record can't be read.
        failure: The traceback and the place, if the run has failed.
        owner: The process that holds the lease. A dead process stays here until another one takes the run.
        attempts: The number of processes that tried to advance the run from its head without progress.
        wake_at: The next time at which the run continues by itself.
        checkpoint_id: The newest checkpoint.
        parent_checkpoint_id: The checkpoint from which the run was forked.
        parent_run_id: The run from which it was forked.
        events: The number of the newest event.
        updated_at: The time of the newest commit.
        finished_at: The time at which the run ended: it is idle, cancelled, failed or quarantined.
        version: The version of the workflow that made the newest commit, if it is known.
        supersteps: The number of committed supersteps, of all turns.
        open_requests: The number of open requests, if it is known.
        spent: What the run has spent, by resource.
        blocked: Why living hosts could not load a blocked run, by host id; empty if no living host serves its workflow.
            None if the run is not blocked.
    """

    run_id: str
    workflow_name: str
    status: RunStatus
    error: str | None
    owner: str | None
    attempts: int
    wake_at: datetime | None
    created_at: datetime
    checkpoint_id: str | None
    parent_checkpoint_id: str | None
    events: int
    parent_run_id: str | None = None
    updated_at: datetime | None = None
    finished_at: datetime | None = None
    version: int | None = None
    supersteps: int = 0
    open_requests: int | None = None
    spent: Mapping[str, float] = field(default_factory=new_dict)
    tags: Mapping[str, str] = field(default_factory=new_dict)
    failure: Failure | None = None
    blocked: Mapping[str, str] | None = None

    @classmethod
    def of(cls, record: RunRecord, blocked: Mapping[str, str] | None = None) -> RunInfo:
        """Make it from a store's record, with the reasons of hosts if the run is blocked."""
        halt = record.halt
        status = record.run_status if blocked is None else "blocked"
        updated_at = None if record.moment is None else datetime.fromtimestamp(record.moment, UTC)
        halted_at = None if halt is None else _time(halt.at)
        return cls(
            run_id=record.run_id,
            workflow_name=record.workflow_name,
            status="quarantined" if status == "parked" else status,
            error=_error(record) if blocked is None else blocked_text(record.workflow_name, blocked),
            owner=None if record.owner is None else str(record.owner),
            attempts=record.attempts,
            wake_at=None if record.wake_at is None else _time(record.wake_at),
            created_at=_time(record.created_at) or _LONG_AGO,
            checkpoint_id=record.head,
            parent_checkpoint_id=record.parent_checkpoint_id,
            events=record.events,
            parent_run_id=record.parent_run_id,
            updated_at=updated_at,
            finished_at=halted_at or (updated_at if status in {"idle", "cancelled"} else None),
            version=record.version,
            supersteps=record.supersteps,
            open_requests=record.requests,
            spent=json.loads(record.spent or "{}"),
            tags=json.loads(record.tags or "{}"),
            failure=Failure.from_json(halt.data, at=halt.at) if halt is not None and halt.kind == "failed" else None,
            blocked=blocked,
        )


_LONG_AGO = datetime.min.replace(tzinfo=UTC)


def _time(text: str) -> datetime | None:
    """Return a stored time; None if it can't be read, as in a run that was damaged or made by hand."""
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def _error(record: RunRecord) -> str | None:
    if record.halt is not None:
        return record.halt.reason
    unreadable = [text for text in (record.created_at, record.wake_at) if text is not None and _time(text) is None]
    return f"a time of the run can't be read: {unreadable[0]!r}" if unreadable else None


class RunFilter(TypedDict, total=False):
    """Further conditions of a listing of runs, in addition to the workflow and the status.

    Attributes:
        tags: The runs have all of these tags.
        created_after: The runs began at this time or later.
        created_before: The runs began before this time.
        updated_after: The newest commit was made at this time or later.
        updated_before: The newest commit was made before this time.
        error: The runs have failed or are quarantined, and the reason contains this text.
        parent: The runs are forks of this run.
    """

    tags: Mapping[str, str] | None
    created_after: datetime | None
    created_before: datetime | None
    updated_after: datetime | None
    updated_before: datetime | None
    error: str | None
    parent: str | None


Order = Literal["oldest", "newest", "updated"]


def run_query(
    workflow: str | None = None,
    status: RunStatus | Sequence[RunStatus] | None = None,
    *,
    order: Order = "oldest",
    limit: int | None = None,
    after: str | None = None,
    **chosen: Unpack[RunFilter],
) -> RunQuery:
    """Return the query of a listing.

    Raises ValueError for an unknown status or order, a limit below 1, or "blocked" with another status.
    """
    statuses = None if status is None else (status,) if isinstance(status, str) else tuple(status)
    for each in statuses or ():
        if each not in get_args(RunStatus):
            raise ValueError(f"unknown status {each!r}; use one of {', '.join(get_args(RunStatus))}")
    if statuses is not None and "blocked" in statuses and len(statuses) > 1:
        raise ValueError('list runs with status "blocked" by themselves: a blocked run also has another status')
    if order not in get_args(Order):
        raise ValueError(f"unknown order {order!r}; use one of {', '.join(get_args(Order))}")
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, not {limit}")
    return RunQuery(
        workflow_name=workflow,
        statuses=None if statuses is None else tuple(_STORED_NAMES.get(each, each) for each in statuses),
        tags=dict(chosen.get("tags") or {}),
        created_after=_text(chosen.get("created_after")),
        created_before=_text(chosen.get("created_before")),
        updated_after=_seconds(chosen.get("updated_after")),
        updated_before=_seconds(chosen.get("updated_before")),
        error=chosen.get("error"),
        parent_run_id=chosen.get("parent"),
        order=order,
        limit=limit,
        after=after,
    )


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.astimezone(UTC).isoformat()


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def tags_text(tags: Mapping[str, str] | None) -> str | None:
    """Return tags as a store keeps them. Raises ValueError for anything but a few short strings."""
    given: Mapping[object, object] = cast("Any", tags or {})
    for name, value in given.items():
        for each in (name, value):
            if not isinstance(each, str) or not each or len(each) > _TAG_LENGTH_MAX:
                raise ValueError(
                    f"the tag {name!r}: {value!r} is not a pair of strings of 1 to {_TAG_LENGTH_MAX} characters"
                )
            try:
                each.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"the tag {name!r}: {value!r} contains a lone surrogate; leave it out") from error
    if len(given) > _TAGS_MAX:
        raise ValueError(f"a run has at most {_TAGS_MAX} tags, not {len(given)}; keep further data in the run's state")
    return json.dumps(dict(given), sort_keys=True) if given else None


async def run_infos(store: Store, records: Sequence[RunRecord]) -> list[RunInfo]:
    """Return the state of runs. If the store knows its hosts, it says which runs are blocked."""
    unhalted = [record.run_id for record in records if record.halt is None]
    blocked: Mapping[str, Mapping[str, str]] = {}
    if unhalted and knows_hosts(store):
        blocked = await store.blocked(unhalted)
    return [RunInfo.of(record, blocked.get(record.run_id)) for record in records]


async def list_runs(store: Store, query: RunQuery) -> Sequence[RunRecord]:
    """Return the runs that a query selects. Raises RunNotFoundError if `query.after` does not exist."""
    if lists_runs(store):
        found = await store.list_runs(query)
        if not found and query.after is not None and await store.run(query.after) is None:
            raise RunNotFoundError(query.after)
        return found
    everything = _ordered(await store.runs(), query.order)
    if query.after is not None:
        ids = [record.run_id for record in everything]
        if query.after not in ids:
            raise RunNotFoundError(query.after)
        everything = everything[ids.index(query.after) + 1 :]
    return [record for record in everything if _selects(query, record)][: query.limit]


async def count_runs(store: Store, query: RunQuery) -> Mapping[str, int]:
    """Return by status how many runs a query selects. The status of a quarantined run is "quarantined"."""
    if lists_runs(store):
        found = await store.count_runs(query)
    else:
        statuses = [record.run_status for record in await list_runs(store, replace(query, limit=None, after=None))]
        found = {status: statuses.count(status) for status in dict.fromkeys(statuses)}
    return {"quarantined" if status == "parked" else status: number for status, number in found.items()}


def _ordered(records: Sequence[RunRecord], order: Order) -> list[RunRecord]:
    if order == "updated":
        places = sorted(range(len(records)), key=lambda place: (records[place].moment or 0, place), reverse=True)
        return [records[place] for place in places]
    return list(reversed(records)) if order == "newest" else list(records)


def _selects(query: RunQuery, record: RunRecord) -> bool:
    tags = json.loads(record.tags or "{}")
    reason = "" if record.halt is None else record.halt.reason
    moment = record.moment or 0
    return (
        query.workflow_name in {None, record.workflow_name}
        and (query.statuses is None or record.run_status in query.statuses)
        and all(tags.get(name) == value for name, value in query.tags.items())
        and (query.created_after is None or record.created_at >= query.created_after)
        and (query.created_before is None or record.created_at < query.created_before)
        and (query.updated_after is None or moment >= query.updated_after)
        and (query.updated_before is None or moment < query.updated_before)
        and (query.error is None or query.error.casefold() in reason.casefold())
        and query.parent_run_id in {None, record.parent_run_id}
        and (not query.has_requests or record.run_status not in {"idle", "exported"})
    )
