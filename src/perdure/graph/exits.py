"""Users' code that ends its process. In one that many runs share, it fails its own run instead."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Generator
    from contextlib import AbstractContextManager

_is_shared: ContextVar[bool] = ContextVar("perdure_is_shared", default=False)
_PASSING = (Exception, asyncio.CancelledError, GeneratorExit, KeyboardInterrupt)


@contextmanager
def sharing() -> Generator[None]:
    """Here, and in all tasks and threads that are begun here, the process is not the run's own."""
    token = _is_shared.set(True)
    try:
        yield
    finally:
        _is_shared.reset(token)


class _NoExit:
    """One for all: it keeps nothing."""

    def __enter__(self) -> None:
        """Nothing is set up."""

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None:
            require_no_exit(error)


_NO_EXIT = _NoExit()


def require_no_exit(error: BaseException) -> None:
    """Raise RuntimeError in place of what would end a process that is shared."""
    if isinstance(error, _PASSING) or not _is_shared.get():
        return
    raise RuntimeError(
        f"the run raised {type(error).__name__}({error}), which would have ended the process that it shares with "
        "others; raise an Exception if the run is to fail"
    ) from error


def no_exit() -> AbstractContextManager[None]:
    """Around users' code. What would end a process that is shared is raised as a RuntimeError.

    It has to be as near to that code as can be: a SystemExit that leaves a task ends the event loop, whoever awaits the
    task. An interrupt is the wish of a person, and passes.
    """
    return _NO_EXIT
