"""The events of a run as Server-Sent Events: replayed from a number, then followed until the run has ended."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from perdure import HostedRun, RunError, WorkflowEvent

from .wire import as_json, what_happened

QUIET_SECONDS = 5.0
"""After this time without an event a comment is sent, so that proxies keep the connection."""


async def told(run: HostedRun, from_seq: int, closing: asyncio.Event) -> AsyncGenerator[str]:
    """Yield the messages for a follower. The last one has the type `end`. Without it, the client should reconnect."""
    async with aclosing(_paced(run.events(from_seq=from_seq, until_end=True), closing)) as events:
        try:
            async for event in events:
                if event is None:
                    yield ": keep-alive\n\n"
                else:
                    yield f"id: {event.seq}\ndata: {as_json(_shown(event))}\n\n"
            if not closing.is_set():
                info = await run.info()
                yield f"event: end\ndata: {as_json({'status': info.status, 'error': info.error})}\n\n"
        except RunError as error:
            # The run was deleted, or its first events were removed.
            yield f"event: end\ndata: {as_json({'status': None, 'error': what_happened(error)})}\n\n"


def _shown(event: WorkflowEvent[Any]) -> dict[str, Any]:
    request_id = event.request_id if event.type in {"request_info", "answered"} else None
    shown = {
        "type": event.type,
        "iteration": event.iteration,
        "executor_id": event.executor_id,
        "request_id": request_id,
        "data": event.data,
    }
    return {name: value for name, value in shown.items() if value is not None}


async def _paced(
    events: AsyncGenerator[WorkflowEvent[Any]], closing: asyncio.Event
) -> AsyncGenerator[WorkflowEvent[Any] | None]:
    """Yield events until the service closes; None at first, and whenever nothing has come for a while."""
    yield None
    closes = asyncio.ensure_future(closing.wait())
    coming = asyncio.ensure_future(anext(events, None))
    try:
        while not closing.is_set():
            await asyncio.wait({closes, coming}, timeout=QUIET_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                yield None
            elif (event := coming.result()) is not None:
                yield event
                coming = asyncio.ensure_future(anext(events, None))
            else:
                return
    finally:
        for task in (closes, coming):
            task.cancel()
        await asyncio.gather(closes, coming, return_exceptions=True)
        await events.aclose()
