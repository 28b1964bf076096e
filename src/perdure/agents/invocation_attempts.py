"""How often and how long a tool is tried."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from perdure.agent_errors import UserInputRequiredException
from perdure.clock import SystemClock
from perdure.engine import OutOfTimeError, within
from perdure.errors import StepTimeoutError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from perdure.graph import Policy


def without_asking(policy: Policy) -> Policy:
    """A tool that asks has not failed: it is not tried again."""
    retry = policy.retry
    if retry is None:
        return policy

    def is_covered(error: Exception) -> bool:
        return not isinstance(error, UserInputRequiredException) and retry.covers(error)

    return replace(policy, retry=replace(retry, on=is_covered))


async def tried_in_place(work: Callable[[], Awaitable[Any]], policy: Policy, name: str) -> Any:
    """Do something as often and as long as a policy says, where no step does that: outside of a workflow."""
    clock, attempt = SystemClock(), 1
    while True:
        try:
            return await _timed(work, policy.timeout, name)
        except Exception as error:
            retry = policy.retry
            if retry is None or attempt >= retry.attempts or not retry.covers(error):
                raise
            await clock.sleep(retry.wait_after(attempt))
            attempt += 1


async def _timed(work: Callable[[], Awaitable[Any]], seconds: float | None, name: str) -> Any:
    if seconds is None:
        return await work()

    async def working() -> Any:
        return await work()

    try:
        return await within(SystemClock(), seconds, working())
    except OutOfTimeError as error:
        raise StepTimeoutError(name, seconds=seconds) from error.__cause__
