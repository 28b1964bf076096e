"""The service: a host behind HTTP. It keeps nothing of a run in memory; the store has everything."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import get_args

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from perdure import AlreadyAnsweredError, Host, RunStatus

from .claims import NAME, Bank, Claim, build_workflow
from .following import told
from .wire import (
    ERROR_REPLIES,
    body_of,
    fields_of,
    first_seq_of,
    in_order,
    is_short_for,
    new_run_id,
    optional_text,
    reply,
    run_id_of,
    text_of,
    unfit,
)

STATUSES: tuple[RunStatus, ...] = get_args(RunStatus)


class Service:
    def __init__(self, host: Host) -> None:
        self._host = host
        self.closing = asyncio.Event()

    async def live(self, _: Request) -> Response:
        """Tell a supervisor whether to restart this process: not while the store is the problem."""
        health = self._host.health()
        return reply({"health": health}, HTTPStatus.OK if health.is_serving else HTTPStatus.SERVICE_UNAVAILABLE)

    async def ready(self, _: Request) -> Response:
        """Tell a load balancer whether to send requests here."""
        health = self._host.health()
        is_ready = health.is_serving and health.is_store_reachable
        return reply({"health": health}, HTTPStatus.OK if is_ready else HTTPStatus.SERVICE_UNAVAILABLE)

    async def start(self, request: Request) -> Response:
        """Start a run. The same run_id and input again return the same run, so a client may repeat the call."""
        body = fields_of(await body_of(request), "the body", "input", "run_id")
        given = fields_of(body.get("input"), "'input'", "employee", "text")
        claim = Claim(text_of(given, "employee"), text_of(given, "text"))
        run = await self._host.start(NAME, claim, run_id=new_run_id(body))
        return reply({"run_id": run.run_id}, HTTPStatus.ACCEPTED)

    async def runs(self, request: Request) -> Response:
        status = request.query_params.get("status")
        if status is not None and status not in STATUSES:
            raise unfit(f"there is no status {status!r}; there are {', '.join(STATUSES)}")
        return reply({"runs": await self._host.runs(workflow=NAME, status=status)})

    async def run(self, request: Request) -> Response:
        run = await self._host.run(run_id_of(request))
        return reply({"run": await run.info(), "outputs": await run.outputs()})

    async def events(self, request: Request) -> Response:
        run = await self._host.run(run_id_of(request))
        events = told(run, first_seq_of(request), self.closing)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})

    async def requests(self, _: Request) -> Response:
        return reply({"requests": await self._host.requests(workflow=NAME)})

    async def respond(self, request: Request) -> Response:
        body = fields_of(await body_of(request), "the body", "answer", "by", "approves")
        run_id, request_id = run_id_of(request), request.path_params["request_id"]
        if "answer" not in body:
            raise unfit("'answer' is missing; GET /requests has the schema of an answer")
        answer, by, digest = in_order(body["answer"]), text_of(body, "by"), optional_text(body, "approves")
        approves = None if digest is None else {request_id: digest}
        try:
            await self._host.respond(run_id, {request_id: answer}, by=by, approves=approves)
        except AlreadyAnsweredError as error:
            # A client that missed our reply repeats its answer.
            if error.by != by or not is_short_for(error.what, answer):
                raise
        return reply({"run_id": run_id, "request_id": request_id, "answered_by": by}, HTTPStatus.ACCEPTED)

    async def cancel(self, request: Request) -> Response:
        body = fields_of(await body_of(request), "the body", "reason", "by")
        run = await self._host.run(run_id_of(request))
        await run.cancel(reason=optional_text(body, "reason"), by=optional_text(body, "by"))
        return reply({"run_id": run.run_id}, HTTPStatus.ACCEPTED)

    async def recover(self, request: Request) -> Response:
        """Continue a failed run where it failed, after the cause is fixed."""
        fields_of(await body_of(request), "the body")
        run_id = run_id_of(request)
        return reply({"recovered": await self._host.recover(run_id)}, HTTPStatus.ACCEPTED)

    async def delete(self, request: Request) -> Response:
        run = await self._host.run(run_id_of(request))
        await self._host.delete(run.run_id)
        return Response(status_code=HTTPStatus.NO_CONTENT)


def make_app(storage: str, bank: str) -> Starlette:
    host = Host(storage)
    host.register(lambda: build_workflow(Bank(bank)))
    service = Service(host)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncGenerator[None]:
        # Continue runs that an earlier process has left. On shutdown ours stop where another process can continue them.
        async with host:
            yield

    routes = [
        Route("/healthz", service.live),
        Route("/readyz", service.ready),
        Route("/runs", service.start, methods=["POST"]),
        Route("/runs", service.runs),
        Route("/runs/{run_id}", service.run),
        Route("/runs/{run_id}", service.delete, methods=["DELETE"]),
        Route("/runs/{run_id}/events", service.events),
        Route("/runs/{run_id}/cancel", service.cancel, methods=["POST"]),
        Route("/runs/{run_id}/recover", service.recover, methods=["POST"]),
        Route("/runs/{run_id}/requests/{request_id}", service.respond, methods=["POST"]),
        Route("/requests", service.requests),
    ]
    app = Starlette(routes=routes, exception_handlers=ERROR_REPLIES, lifespan=lifespan)
    app.state.closing = service.closing
    return app
