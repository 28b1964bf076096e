"""What an executor is told about failing: how it is given, what is refused, and where it is kept."""

from collections.abc import Callable
from dataclasses import FrozenInstanceError
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from perdure import (
    Executor,
    FailedMessage,
    Retry,
    WorkflowBuilder,
    WorkflowContext,
    WorkflowExecutor,
    executor,
    handler,
)
from perdure.clock import seconds_of
from perdure.graph import Policy, wiring


class Worker(Executor):
    @handler
    async def work(self, message: int, ctx: WorkflowContext) -> None: ...


class Timed(Executor):
    """Has attributes of its own that are called like the policy's."""

    def __init__(self, id: str, timeout: str, retry: int) -> None:  # noqa: A002 - as the base class has it
        super().__init__(id)
        self.timeout = timeout
        self.retry = retry
        self.on_error = "mine"
        self.policy = "mine too"

    @handler
    async def work(self, message: int, ctx: WorkflowContext) -> None: ...


def is_misspelled(error: Exception) -> bool:
    return "spell" in str(error)


@executor
async def mourner(failure: FailedMessage) -> None: ...


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    retry = Retry(5, backoff=2, factor=3, longest=timedelta(seconds=30))
    assert [retry.wait_after(attempt) for attempt in (1, 2, 3, 4)] == [2, 6, 18, 30]


def test_a_backoff_may_be_a_timedelta_or_a_function_of_the_attempt() -> None:
    assert Retry(backoff=timedelta(milliseconds=250)).wait_after(2) == 0.5
    assert [Retry(backoff=lambda attempt: attempt * 10).wait_after(n) for n in (1, 2, 9)] == [10, 20, 60]


def test_a_backoff_of_nothing_never_waits() -> None:
    assert Retry(backoff=0, factor=10).wait_after(5000) == 0


@given(
    attempt=st.integers(1, 10**6), backoff=st.floats(0, 1e300), factor=st.floats(0, 1e300), longest=st.floats(0, 1e300)
)
def test_no_wait_is_negative_or_longer_than_the_longest(
    attempt: int, backoff: float, factor: float, longest: float
) -> None:
    assert 0 <= Retry(backoff=backoff, factor=factor, longest=longest).wait_after(attempt) <= longest


def test_a_function_that_returns_no_time_is_named() -> None:
    with pytest.raises(ValueError, match="what backoff returns must be finite and not negative, not -1"):
        Retry(backoff=lambda _: -1).wait_after(1)


@pytest.mark.parametrize(
    ("on", "covered"),
    [
        (Exception, [True, True, True]),
        (LookupError, [True, False, False]),
        ((KeyError, OSError), [True, False, True]),
        (is_misspelled, [False, True, False]),
        ((), [False, False, False]),
    ],
)
def test_errors_are_covered_by_class_or_by_a_function(on: Any, covered: list[bool]) -> None:
    errors = [KeyError("lost"), ValueError("spelled wrong"), TimeoutError("late")]
    assert [Retry(on=on).covers(error) for error in errors] == covered


@pytest.mark.parametrize(
    ("make", "refused", "reason"),
    [
        (lambda: Retry(0), ValueError, "attempts must be 1 or more"),
        (lambda: Retry(attempts=True), TypeError, "attempts must be a whole number"),
        (lambda: Retry("3"), TypeError, "attempts must be a whole number"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Retry(backoff=-1), ValueError, "backoff must be finite and not negative"),
        (lambda: Retry(backoff=float("nan")), ValueError, "backoff must be finite"),
        (lambda: Retry(backoff="1s"), TypeError, "backoff must be a number or a timedelta"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Retry(factor=float("inf")), ValueError, "factor must be finite"),
        (lambda: Retry(longest=timedelta(seconds=-1)), ValueError, "longest must be finite and not negative"),
        (lambda: Retry(on=KeyboardInterrupt), TypeError, "on must be an Exception class"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Retry(on="TimeoutError"), TypeError, "on must be an Exception class"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Worker("w", retry=3), TypeError, "retry must be a Retry, as in"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Worker("w", timeout=0), ValueError, "leave it out for no limit"),
        (lambda: Worker("w", timeout=-1), ValueError, "timeout must be finite and not negative"),
        (lambda: Worker("w", timeout="5s"), TypeError, "timeout must be a number or a timedelta"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Worker("w", on_error=print), TypeError, "an executor or the id of one"),  # pyright: ignore[reportArgumentType] - refused
        (lambda: Worker("w", on_error=""), TypeError, "an executor or the id of one"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused_at_once(
    make: Callable[[], object], refused: type[Exception], reason: str
) -> None:
    with pytest.raises(refused, match=reason):
        make()


def test_a_retry_is_a_value() -> None:
    assert Retry(2) == Retry(2)
    with pytest.raises(FrozenInstanceError):
        Retry().attempts = 4  # pyright: ignore[reportAttributeAccessIssue] - what is refused


def test_a_class_an_instance_and_a_function_are_given_a_policy_alike() -> None:
    retry = Retry(2)

    @executor(retry=retry, timeout=timedelta(minutes=1), on_error="mourner")
    async def worker(message: int) -> None: ...

    worked = Worker("w", retry=retry, timeout=60, on_error=mourner)
    child = WorkflowBuilder(start_executor=Worker("inner")).build()
    nested = WorkflowExecutor(child, "nested", retry=retry, timeout=60.0, on_error=mourner)
    expected = Policy(retry, 60.0, "mourner")
    assert [wiring(node).policy for node in (worker, worked, nested)] == [expected] * 3


def test_an_executor_without_a_policy_is_tried_once_for_ever_and_tells_nobody() -> None:
    assert wiring(Worker("w")).policy == Policy(retry=None, timeout=None, on_error=None)


def test_attributes_of_the_same_names_are_the_users_own() -> None:
    timed = Timed("t", timeout="never", retry=7)
    assert (timed.timeout, timed.retry, timed.on_error, timed.policy) == ("never", 7, "mine", "mine too")
    assert wiring(timed).policy == Policy()
    assert not vars(Worker("w", retry=Retry(), timeout=1, on_error="m")).keys() & {"retry", "timeout", "on_error"}


def test_a_clone_keeps_the_policy_and_tells_the_same_executor() -> None:
    worked = Worker("w", retry=Retry(2), on_error=mourner)
    cloned = wiring(worked.clone())
    assert cloned.policy == wiring(worked).policy
    assert cloned.fallback is mourner


def test_seconds_are_taken_from_numbers_and_timedeltas() -> None:
    assert (seconds_of("wait", 2), seconds_of("wait", timedelta(hours=1))) == (2.0, 3600.0)
