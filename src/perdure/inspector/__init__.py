"""The inspector: look at runs, answer their requests, rewind and fork them, in a browser. Extra `perdure[inspector]`.

`perdure inspect -s runs.db` opens it for one store. A service mounts it with `app(storage, authorize=...)`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.inspector.api import Action, Authorize, Scope, ScopeOf
    from perdure.inspector.application import app
    from perdure.inspector.server import local_app, serve

__all__ = ["Action", "Authorize", "Scope", "ScopeOf", "app", "local_app", "serve"]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: the command line shares `views` and needs no web server."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from perdure.inspector import api, application, server  # noqa: PLC0415 - optional libraries

    return next(getattr(module, name) for module in (api, application, server) if hasattr(module, name))
