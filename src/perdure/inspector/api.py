"""The JSON API of the inspector. Its shapes are those of `perdure ... -o json`; every body has a `schema` number.

Runs and checkpoints are named by query parameters, since their ids may hold any character.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args

from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from perdure.errors import (
    AlreadyAnsweredError,
    AnswerTypeError,
    BlobDamagedError,
    CheckpointDamagedError,
    CheckpointNotFoundError,
    RunBusyError,
    RunNotFoundError,
    UnknownRequestError,
    WorkflowException,
)
from perdure.inspector.conversation import conversations
from perdure.inspector.values import Place, search
from perdure.inspector.views import SCHEMA, Row, checkpoint_view, event_view, plain, request_view, run_view
from perdure.records import Mark, RunStatus

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from starlette.requests import Request

    from perdure.storage import CheckpointView, RunInfo, StoreStorage

Action: TypeAlias = Literal["read", "answer", "send", "cancel", "recover", "restore", "fork", "delete"]
"""The purpose of a request. "read" covers lists and everything that is shown of a run."""

Authorize: TypeAlias = "Callable[[Request, Action, str | None], bool | Awaitable[bool]]"
"""Decides whether a request may do something, to a run or in a list of all (None)."""


@dataclass(frozen=True, slots=True)
class Scope:
    """The part of a storage that a request may see.

    Attributes:
        tenant: The tenant whose data it is; None for the storage itself.
        tags: Every run must have these tags.
        workflow: Every run must be of this workflow.
    """

    tenant: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    workflow: str | None = None


ScopeOf: TypeAlias = "Callable[[Request], Scope]"
Handler: TypeAlias = "Callable[[Visit], Awaitable[Row | Response]]"

_NOWHERE = Mark(head="", events=-1, commands=-1)
_PAGE_MAX = 500
_CHANGES_MAX = 500
_VALUE_SIZE_MAX = 4_000
_KEPT_VIEWS = 8
_BODY_SIZE_MAX = 10_000_000
_BUSY_SECONDS = 15.0
_STATUSES: tuple[tuple[type[Exception], HTTPStatus], ...] = (
    (RunNotFoundError, HTTPStatus.NOT_FOUND),
    (CheckpointNotFoundError, HTTPStatus.NOT_FOUND),
    (UnknownRequestError, HTTPStatus.NOT_FOUND),
    (AlreadyAnsweredError, HTTPStatus.CONFLICT),
    (RunBusyError, HTTPStatus.CONFLICT),
    (AnswerTypeError, HTTPStatus.UNPROCESSABLE_ENTITY),
    (CheckpointDamagedError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (BlobDamagedError, HTTPStatus.INTERNAL_SERVER_ERROR),
    (WorkflowException, HTTPStatus.CONFLICT),
    (ValueError, HTTPStatus.BAD_REQUEST),
)


class Visit:
    """One request: its parameters, its body, and the storage that it may see."""

    def __init__(
        self,
        request: Request,
        storage: StoreStorage,
        scope: Scope,
        body: Mapping[str, Any],
        allows: Callable[[str | None], Awaitable[bool]],
    ) -> None:
        self.request = request
        self.allows = allows
        self.storage = storage
        self.scope = scope
        self.body = body

    def text(self, name: str) -> str | None:
        """Return a parameter of the address; None if it is missing or empty."""
        return self.request.query_params.get(name) or None

    def number(self, name: str, default: int, most: int = _PAGE_MAX) -> int:
        """Return a number from the address. Raises ValueError."""
        text = self.text(name)
        if text is None:
            return default
        if not text.isascii() or not text.isdigit():
            raise ValueError(f"{name}={text!r} is no whole number")
        return min(int(text), most)

    def required(self, name: str) -> str:
        """Return a text from the body or the address that must be there. Raises ValueError."""
        value = self.body.get(name, self.text(name))
        if not isinstance(value, str) or not value:
            raise ValueError(f"{name!r} is missing; give it as a text")
        return value

    def moment(self, name: str) -> datetime | None:
        """Return a time from the address. Raises ValueError."""
        text = self.text(name)
        return None if text is None else datetime.fromisoformat(text).astimezone()

    async def run(self) -> RunInfo:
        """Return the run that the request names, if it may see it. Raises RunNotFoundError."""
        return await self.seen(self.required("run"))

    async def seen(self, run_id: str) -> RunInfo:
        """Return a run that the request may see. Raises RunNotFoundError."""
        run = await self.storage.run(run_id)
        is_seen = self.scope.tags.items() <= run.tags.items() and self.scope.workflow in {None, run.workflow_name}
        # A checkpoint names a run too, so asking about the run in the address is not enough.
        if not is_seen or not await self.allows(run_id):
            raise RunNotFoundError(run_id)
        return run


class Api:
    """The handlers. Each returns the body of its response as a dict."""

    def __init__(
        self, storage: StoreStorage, *, authorize: Authorize, scope_of: ScopeOf | None, read_only: bool
    ) -> None:
        self._storage = storage
        self._authorize = authorize
        self._scope_of = scope_of
        self._read_only = read_only
        self._views: dict[tuple[str, str], CheckpointView] = {}

    def routes(self) -> list[Route]:
        """Return the routes. In a read-only inspector those that change something do not exist."""
        reading: dict[str, Handler] = {
            "info": self.info,
            "runs": self.runs,
            "counts": self.counts,
            "run": self.run,
            "checkpoints": self.checkpoints,
            "events": self.events,
            "forks": self.forks,
            "size": self.size,
            "graph": self.graph,
            "value": self.value,
            "search": self.search,
            "conversation": self.conversation,
            "diff": self.diff,
            "requests": self.requests,
            "hosts": self.hosts,
        }
        acting: dict[Action, Handler] = {
            "answer": self.answer,
            "send": self.send,
            "cancel": self.cancel,
            "recover": self.recover,
            "restore": self.restore,
            "fork": self.fork,
            "delete": self.delete,
        }
        routes = [Route(f"/{name}", self._endpoint("read", each), methods=["GET"]) for name, each in reading.items()]
        if not self._read_only:
            routes += [Route(f"/{name}", self._endpoint(name, each), methods=["POST"]) for name, each in acting.items()]
        return routes

    def _endpoint(self, action: Action, handle: Handler) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            try:
                body: Mapping[str, Any] = await _body(request) if action != "read" else {}
                scope = Scope() if self._scope_of is None else self._scope_of(request)
                storage = self._storage if scope.tenant is None else self._storage.tenant(scope.tenant)

                async def allows(run_id: str | None) -> bool:
                    allowed = self._authorize(request, action, run_id)
                    return await allowed if inspect.isawaitable(allowed) else allowed

                visit = Visit(request, storage, scope, body, allows)
                if not await allows(body.get("run") or visit.text("run")):
                    return _refused(HTTPStatus.FORBIDDEN, "Forbidden", f"you may not {action} here")
                found = await handle(visit)
            except (WorkflowException, ValueError) as error:
                status = next(status for kind, status in _STATUSES if isinstance(error, kind))
                return _refused(status, type(error).__name__, str(error))
            return found if isinstance(found, Response) else JSONResponse({"schema": SCHEMA, **found})

        return endpoint

    async def info(self, visit: Visit) -> Row:
        """Describe the store, and what this inspector may do."""
        return {"store": visit.storage.store.place, "tenant": visit.scope.tenant, "read_only": self._read_only}

    async def runs(self, visit: Visit) -> Row:
        """List a page of runs. `next` is the id to give as `after` for the next page."""
        limit = visit.number("limit", 50)
        order: Any = visit.text("order") or "updated"
        found = await visit.storage.runs(
            _workflow(visit), _statuses(visit), order=order, limit=limit, after=visit.text("after"), **_filter(visit)
        )
        return {"runs": [run_view(run) for run in found], "next": found[-1].run_id if len(found) == limit else None}

    async def counts(self, visit: Visit) -> Row:
        """Count the runs by status."""
        return {"counts": dict(await visit.storage.count_runs(_workflow(visit), **_filter(visit)))}

    async def run(self, visit: Visit) -> Row:
        """Describe a run with its open requests, and whether its owner is alive."""
        run = await visit.run()
        mark = await visit.storage.store.watch(run.run_id, seen=_NOWHERE)
        has_requests = run.checkpoint_id is not None and run.open_requests != 0 and run.status != "exported"
        requests = await visit.storage.requests(run.run_id) if has_requests else []
        return {
            "run": run_view(run),
            "owner_is_alive": mark.owner is not None,
            "requests": [request_view(each) for each in requests],
        }

    async def checkpoints(self, visit: Visit) -> Row:
        """List the checkpoints of a run."""
        run = await visit.run()
        found = await visit.storage.list_checkpoints(run_id=run.run_id)
        return {"checkpoints": [checkpoint_view(each) for each in found]}

    async def events(self, visit: Visit) -> Row | Response:
        """Return a page of committed events, or stream them all and those to come."""
        run = await visit.run()
        if "text/event-stream" in visit.request.headers.get("accept", ""):
            last = visit.request.headers.get("last-event-id")
            start = int(last) + 1 if last is not None and last.isdigit() else visit.number("from", 1, most=10**12)
            return StreamingResponse(_stream(visit.storage, run.run_id, start), media_type="text/event-stream")
        start, limit = max(visit.number("from", 1, most=10**12), 1), visit.number("limit", 200)
        found: list[Row] = []
        async for event in visit.storage.events(run.run_id, from_seq=start):
            found.append(event_view(event))
            if len(found) >= limit:
                break
        return {"events": found, "newest": run.events}

    async def forks(self, visit: Visit) -> Row:
        """List the forks of a run."""
        run = await visit.run()
        found = await visit.storage.runs(parent=run.run_id, limit=_PAGE_MAX, tags=visit.scope.tags)
        return {"runs": [run_view(each) for each in found]}

    async def size(self, visit: Visit) -> Row:
        """Report the size of a run and its largest values."""
        report = await visit.storage.size_report((await visit.run()).run_id)
        return {"size": asdict(report)}

    async def graph(self, visit: Visit) -> Row:
        """Return the stored signature of the graph, and where the run stands in it."""
        view = await self._view(visit)
        return {"graph": dict(view.graph), "position": await asyncio.to_thread(_position, view)}

    async def value(self, visit: Visit) -> Row:
        """Return one place of a checkpoint: a scalar, or a page of its members, each shortened."""
        view = await self._view(visit)
        keys = cast("list[str | int]", json.loads(visit.text("at") or "[]"))
        place = await asyncio.to_thread(Place.find, view, keys)
        start, limit = visit.number("from", 0, most=10**9), visit.number("limit", 100)
        return {"value": await asyncio.to_thread(place.page, start, limit)}

    async def search(self, visit: Visit) -> Row:
        """Return the places of a checkpoint whose key or text contains something."""
        view, wanted = await self._view(visit), visit.required("q")
        return {"found": await asyncio.to_thread(search, view, wanted)}

    async def conversation(self, visit: Visit) -> Row:
        """Return the messages that agents have stored, by agent."""
        view = await self._view(visit)
        return {"conversations": await asyncio.to_thread(conversations, view)}

    async def diff(self, visit: Visit) -> Row:
        """Compare two checkpoints, or two runs: the first superstep at which they differ."""
        before, after, storage = visit.required("before"), visit.required("after"), visit.storage
        if visit.text("kind") == "runs":
            for each in (before, after):
                await visit.seen(each)
            summary = await storage.diff_runs(before, after, value_size_max=_VALUE_SIZE_MAX)
            found, place = summary.diff, {"turn": summary.turn, "superstep": summary.superstep}
        else:
            for each in (before, after):
                await visit.seen((await storage.load(each)).run_id)
            found, place = await storage.diff(before, after, value_size_max=_VALUE_SIZE_MAX), {}
        changes = [] if found is None else [asdict(each) for each in found.changes[:_CHANGES_MAX]]
        ends = (before, after) if found is None else (found.before, found.after)
        count = 0 if found is None else len(found.changes)
        return {"diff": {"before": ends[0], "after": ends[1], **place, "changes": changes, "count": count}}

    async def requests(self, visit: Visit) -> Row:
        """List open requests of all runs, or of one."""
        run_id, limit = visit.text("run"), visit.number("limit", 100)
        if run_id is not None:
            await visit.seen(run_id)
        found = await visit.storage.requests(
            run_id, workflow_name=_workflow(visit), tags=dict(visit.scope.tags), limit=limit
        )
        return {"requests": [request_view(each) for each in found], "is_cut": len(found) == limit}

    async def hosts(self, visit: Visit) -> Row:
        """List the living hosts, with the workflows that each serves."""
        return {"hosts": [plain(each) for each in await visit.storage.hosts()]}

    async def answer(self, visit: Visit) -> Row:
        """Answer a request. The answer is checked against the stored schema."""
        run, request_id = await visit.run(), visit.required("request")
        if "answer" not in visit.body:
            raise ValueError("'answer' is missing; give it as JSON")
        digest = visit.body.get("approves")
        approves = {request_id: str(digest)} if digest is not None else None
        await visit.storage.respond(run.run_id, {request_id: visit.body["answer"]}, by=_by(visit), approves=approves)
        return {"answered": request_id}

    async def send(self, visit: Visit) -> Row:
        """Send a message to a run."""
        run = await visit.run()
        if "message" not in visit.body:
            raise ValueError("'message' is missing; give it as JSON")
        target = visit.body.get("target") or None
        return {"sent": await visit.storage.send(run.run_id, visit.body["message"], target=target, by=_by(visit))}

    async def cancel(self, visit: Visit) -> Row:
        """Cancel a run."""
        run = await visit.run()
        await visit.storage.cancel(run.run_id, reason=visit.body.get("reason"), by=_by(visit))
        return {"cancelled": run.run_id}

    async def recover(self, visit: Visit) -> Row:
        """Let a failed or quarantined run continue."""
        run = await visit.run()
        return {"recovered": await visit.storage.recover(run.run_id)}

    async def restore(self, visit: Visit) -> Row:
        """Move a run back to one of its checkpoints."""
        run, checkpoint_id = await visit.run(), visit.required("checkpoint")
        await visit.storage.restore(run.run_id, checkpoint_id)
        return {"restored": checkpoint_id}

    async def fork(self, visit: Visit) -> Row:
        """Start a new run at a checkpoint. The source stays as it is."""
        await visit.run()
        checkpoint_id = visit.required("checkpoint")
        await visit.seen((await visit.storage.load(checkpoint_id)).run_id)
        return {"forked": await visit.storage.fork(checkpoint_id, run_id=visit.body.get("new_run") or None)}

    async def delete(self, visit: Visit) -> Row:
        """Delete a run."""
        run = await visit.run()
        return {"deleted": await visit.storage.delete_run(run.run_id)}

    async def _view(self, visit: Visit) -> CheckpointView:
        """Return a checkpoint, or the newest one of a run. The last few that were looked at are kept."""
        checkpoint_id = visit.text("checkpoint")
        if checkpoint_id is None:
            run = await visit.run()
            if run.checkpoint_id is None:
                raise CheckpointNotFoundError(f"{run.run_id}@0")
            checkpoint_id = run.checkpoint_id
        key = (visit.storage.store.place, checkpoint_id)
        if key not in self._views:
            view = await visit.storage.view(checkpoint_id)
            while len(self._views) >= _KEPT_VIEWS:
                self._views.pop(next(iter(self._views)))
            self._views[key] = view
        found = self._views[key]
        await visit.seen(found.run_id)
        return found


async def _body(request: Request) -> Mapping[str, Any]:
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > _BODY_SIZE_MAX:
            raise ValueError("the body is too large")
    body: object = json.loads(data or b"{}")
    if not isinstance(body, dict):
        raise ValueError("the body must be a JSON object")
    return cast("dict[str, Any]", body)


def _refused(status: HTTPStatus, kind: str, message: str) -> Response:
    return JSONResponse({"schema": SCHEMA, "error": {"type": kind, "message": message}}, status)


def _workflow(visit: Visit) -> str | None:
    return visit.scope.workflow or visit.text("workflow")


def _statuses(visit: Visit) -> Any:
    given = [each for each in visit.request.query_params.getlist("status") if each]
    for each in given:
        if each not in get_args(RunStatus):
            raise ValueError(f"unknown status {each!r}")
    return given or None


def _filter(visit: Visit) -> dict[str, Any]:
    given = [each.partition("=") for each in visit.request.query_params.getlist("tag")]
    tags = {name: value for name, equals, value in given if equals}
    return {
        "tags": {**tags, **visit.scope.tags},
        "error": visit.text("error"),
        "parent": visit.text("parent"),
        "created_after": visit.moment("since"),
        "created_before": visit.moment("until"),
    }


def _by(visit: Visit) -> str | None:
    by = visit.body.get("by")
    return by if isinstance(by, str) and by else None


def _position(view: CheckpointView) -> Row:
    """Return which executors have messages, wait for an answer, or sleep, also in sub-workflows."""
    return {
        "messages": [{"sources": list(each.sources), "target": each.target} for each in view.messages],
        "waiting": [str(each.get("executor", "")) for each in view.requests.values()],
        "suspended": [str(each.get("delivery", {}).get("target", "")) for each in view.suspended],
        "outputs": [str(each.get("executor", "")) for each in view.outputs],
        "sub_workflows": {name: _position(cast("CheckpointView", child)) for name, child in view.sub_workflows.items()},
    }


async def _stream(storage: StoreStorage, run_id: str, start: int) -> AsyncIterator[str]:
    """Yield events as server-sent events, and a comment now and then, so that a dead connection is noticed."""
    events = storage.events(run_id, from_seq=max(start, 1), follow=True)
    pending: asyncio.Future[Any] = asyncio.ensure_future(anext(events))
    try:
        while True:
            done, _ = await asyncio.wait([pending], timeout=_BUSY_SECONDS)
            if not done:
                yield ": alive\n\n"
                continue
            try:
                event = event_view(pending.result())
            except (StopAsyncIteration, WorkflowException):
                return
            yield f"id: {event['seq']}\ndata: {json.dumps(event)}\n\n"
            pending = asyncio.ensure_future(anext(events))
    finally:
        pending.cancel()
        await asyncio.gather(pending, return_exceptions=True)
        await events.aclose()
