"""The ASGI application: the page, and its JSON API below `api/v1/`. All addresses are relative, for any prefix."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from perdure.inspector.api import Api
from perdure.inspector.guard import Guard

if TYPE_CHECKING:
    from collections.abc import Collection

    from starlette.requests import Request
    from starlette.responses import Response

    from perdure.inspector.api import Authorize, ScopeOf
    from perdure.storage import StoreStorage

STATIC = Path(__file__).with_name("static")


def app(
    storage: StoreStorage,
    *,
    authorize: Authorize,
    scope: ScopeOf | None = None,
    read_only: bool = False,
    token: str | None = None,
    hosts: Collection[str] | None = None,
) -> Starlette:
    """Make the inspector as an ASGI application. A service mounts it, as in `Mount("/inspector", inspector)`.

    Args:
        storage: The storage to look at.
        authorize: Decides whether a request may do an `Action`: `authorize(request, action, run_id)`. It may be async.
            `run_id` is None for lists.
        scope: Chooses the tenant, and the tags and workflow that every run must have, for a request. Runs outside of
            it do not exist for that request.
        read_only: Leave out everything that changes a run.
        token: A bearer token that requests for data must carry, beside `authorize`.
        hosts: The host names under which it may be opened; by default any, which the service is expected to check.
    """

    async def page(_: Request) -> Response:
        return FileResponse(STATIC / "index.html", media_type="text/html")

    api = Api(storage, authorize=authorize, scope_of=scope, read_only=read_only)
    assets = StaticFiles(directory=STATIC / "assets", check_dir=False)
    routes = [Route("/", page), Mount("/api/v1", routes=api.routes()), Mount("/assets", assets)]
    return Starlette(routes=routes, middleware=[Middleware(Guard, token=token, hosts=hosts)])
