"""The response stream."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, cast

import pytest

from perdure.streams import ResponseStream

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence


class Source:
    """Numbers from 1, and a record of what happened to the generator that gives them."""

    def __init__(self, count: int = 3, *, error: Exception | None = None) -> None:
        self.count = count
        self.error = error
        self.given = 0
        self.closed = asyncio.Event()

    async def numbers(self) -> AsyncIterator[int]:
        try:
            for number in range(1, self.count + 1):
                self.given = number
                yield number
            if self.error is not None:
                raise self.error
        finally:
            await asyncio.sleep(0)
            self.closed.set()


def add(numbers: Sequence[int]) -> int:
    return sum(numbers)


async def add_later(numbers: Sequence[int]) -> int:
    await asyncio.sleep(0)
    return sum(numbers)


def summed(source: Source) -> ResponseStream[int, int]:
    return ResponseStream(source.numbers(), finalizer=add)


async def collected(stream: ResponseStream[Any, Any]) -> list[Any]:
    return [update async for update in stream]


async def test_updates_come_in_order_and_the_final_response_is_made_of_them() -> None:
    stream = summed(Source())
    assert await collected(stream) == [1, 2, 3]
    assert await stream.get_final_response() == 6
    assert stream.updates == [1, 2, 3]


async def test_the_final_response_consumes_what_is_left() -> None:
    stream = summed(Source())
    assert await anext(stream) == 1
    assert await stream.get_final_response() == 6


async def test_without_a_finalizer_the_final_response_is_the_list_of_updates() -> None:
    stream: ResponseStream[int, list[int]] = ResponseStream(Source().numbers())
    assert await stream.get_final_response() == [1, 2, 3]


async def test_the_final_response_is_made_once() -> None:
    made: list[int] = []

    def finalizer(numbers: Sequence[int]) -> list[int]:
        made.append(len(numbers))
        return list(numbers)

    stream = ResponseStream(Source().numbers(), finalizer=finalizer)
    assert await stream.get_final_response() is await stream.get_final_response()
    assert made == [3]


async def test_finalizer_and_hooks_may_be_async() -> None:
    cleaned: list[str] = []

    async def double(value: int) -> int:
        await asyncio.sleep(0)
        return value * 2

    async def clean() -> None:
        await asyncio.sleep(0)
        cleaned.append("up")

    stream = ResponseStream(
        Source().numbers(), finalizer=add_later, transform_hooks=[double], result_hooks=[double], cleanup_hooks=[clean]
    )
    assert await collected(stream) == [2, 4, 6]
    assert await stream.get_final_response() == 24
    assert cleaned == ["up"]


async def test_a_hook_that_returns_none_leaves_the_value_as_it_is() -> None:
    seen: list[int] = []
    stream = summed(Source()).with_transform_hook(seen.append).with_result_hook(seen.append)
    assert await stream.get_final_response() == 6
    assert seen == [1, 2, 3, 6]


async def test_reaching_the_end_cleans_up_and_finalises_without_being_asked() -> None:
    order: list[str] = []

    def finalizer(numbers: Sequence[int]) -> int:
        order.append("finalize")
        return sum(numbers)

    stream = ResponseStream(Source().numbers(), finalizer=finalizer)
    stream.with_cleanup_hook(lambda: order.append("clean")).with_result_hook(lambda _: order.append("result"))
    await collected(stream)
    assert order == ["clean", "finalize", "result"]


async def test_an_error_of_the_source_cleans_up_propagates_and_is_raised_again() -> None:
    cleaned: list[int] = []
    stream = summed(Source(1, error=LookupError("gone"))).with_cleanup_hook(lambda: cleaned.append(1))
    assert await anext(stream) == 1
    with pytest.raises(LookupError, match="gone") as first:
        await anext(stream)
    with pytest.raises(LookupError) as second:
        await stream.get_final_response()
    assert second.value is first.value
    assert cleaned == [1]
    assert await collected(stream) == []


async def test_an_error_of_a_hook_closes_the_source() -> None:
    source = Source()

    def refuse(value: int) -> int:
        raise ValueError(value)

    stream = summed(source).with_transform_hook(refuse)
    with pytest.raises(ValueError, match="1"):
        await anext(stream)
    assert source.closed.is_set()


async def test_an_error_of_the_finalizer_is_raised_at_the_end_and_again() -> None:
    def refuse(numbers: Sequence[int]) -> int:
        raise ValueError(len(numbers))

    stream = ResponseStream(Source().numbers(), finalizer=refuse)
    with pytest.raises(ValueError, match="3"):
        await collected(stream)
    with pytest.raises(ValueError, match="3"):
        await stream.get_final_response()


async def test_every_cleanup_hook_runs_once_though_others_fail_and_the_first_error_stays_in_front() -> None:
    ran: list[str] = []

    def fail() -> None:
        ran.append("fail")
        raise OSError("disk")

    stream = summed(Source(0, error=LookupError("gone")))
    stream.with_cleanup_hook(fail).with_cleanup_hook(lambda: ran.append("other"))
    with pytest.raises(LookupError) as info:
        await anext(stream)
    assert ran == ["fail", "other"]
    assert info.value.__notes__ == ["cleaning up after it failed too: OSError('disk')"]


async def test_a_failing_cleanup_hook_fails_the_stream_at_its_end() -> None:
    def fail() -> None:
        raise OSError("disk")

    stream = summed(Source()).with_cleanup_hook(fail)
    with pytest.raises(OSError, match="disk"):
        await collected(stream)


async def test_nothing_is_pulled_ahead() -> None:
    source = Source()
    stream = summed(source)
    await asyncio.sleep(0)
    assert source.given == 0
    await anext(stream)
    await asyncio.sleep(0)
    assert source.given == 1


async def in_batches(source: Source) -> AsyncIterator[list[int]]:
    """Each number with its double and its square; before them nothing at all."""
    yield []
    async with aclosing(cast("AsyncGenerator[int]", source.numbers())) as numbers:
        async for number in numbers:
            yield [number, number * 2, number * number]


async def test_of_batches_the_next_is_asked_for_when_all_of_one_are_taken() -> None:
    source = Source()
    stream = ResponseStream.of_batches(in_batches(source), finalizer=add)
    taken = [(await anext(stream), source.given) for _ in range(4)]
    assert taken == [(1, 1), (2, 1), (1, 1), (2, 2)]
    assert stream.updates == [1, 2, 1, 2]
    assert await stream.get_final_response() == 1 + 2 + 1 + 2 + 4 + 4 + 3 + 6 + 9


async def test_each_update_of_a_batch_passes_through_the_hooks_when_it_is_taken() -> None:
    seen: list[int] = []

    async def hook(number: int) -> int:
        seen.append(number)
        return -number

    stream = ResponseStream.of_batches(in_batches(Source(2)), finalizer=add).with_transform_hook(hook)
    assert [await anext(stream), await anext(stream)] == [-1, -2]
    assert seen == [1, 2]
    assert await stream.get_final_response() == -(1 + 2 + 1 + 2 + 4 + 4)
    assert stream.updates == [-number for number in seen]


async def test_a_stream_of_batches_that_is_closed_gives_nothing_of_what_was_not_taken() -> None:
    source = Source()
    stream = ResponseStream.of_batches(in_batches(source), finalizer=add)
    assert await anext(stream) == 1
    await stream.aclose()
    assert source.closed.is_set()
    assert await collected(stream) == []
    assert stream.updates == [1]


async def test_an_error_comes_after_all_that_was_given_before_it() -> None:
    stream = ResponseStream.of_batches(in_batches(Source(1, error=ValueError("broken"))), finalizer=add)
    assert [await anext(stream) for _ in range(3)] == [1, 2, 1]
    with pytest.raises(ValueError, match="broken"):
        await anext(stream)
    with pytest.raises(ValueError, match="broken"):
        await stream.get_final_response()


async def test_map_transforms_each_update_and_has_its_own_final_response() -> None:
    async def text(number: int) -> str:
        await asyncio.sleep(0)
        return str(number)

    inner = summed(Source())
    stream = inner.map(text, "+".join)
    assert await collected(stream) == ["1", "2", "3"]
    assert await stream.get_final_response() == "1+2+3"
    assert await inner.get_final_response() == 6
    assert await summed(Source()).map(str).get_final_response() == ["1", "2", "3"]


async def test_flat_map_gives_none_or_several_for_one() -> None:
    async def countdown(number: int) -> AsyncIterator[int]:
        for value in range(number, 0, -1):
            yield value

    def times(number: int) -> list[str]:
        return [str(number)] * (number - 1)

    async def times_later(number: int) -> list[str]:
        return times(number)

    assert await collected(summed(Source()).flat_map(times)) == ["2", "3", "3"]
    assert await collected(summed(Source()).flat_map(times_later)) == ["2", "3", "3"]
    assert await summed(Source()).flat_map(countdown, add).get_final_response() == 1 + 3 + 6


async def test_with_finalizer_keeps_the_updates_and_changes_the_final_response() -> None:
    stream = summed(Source()).with_finalizer(len)
    assert await collected(stream) == [1, 2, 3]
    assert await stream.get_final_response() == 3


async def test_a_stream_from_an_awaitable_is_that_stream() -> None:
    async def make() -> ResponseStream[int, int]:
        await asyncio.sleep(0)
        return summed(Source())

    stream = ResponseStream.from_awaitable(make())
    assert await collected(stream) == [1, 2, 3]
    assert await stream.get_final_response() == 6


async def test_awaiting_the_stream_resolves_its_source_and_gives_the_stream() -> None:
    resolved: list[bool] = []

    async def make() -> AsyncIterator[int]:
        resolved.append(True)
        return Source().numbers()

    stream: ResponseStream[int, list[int]] = ResponseStream(make())
    assert await stream is stream
    assert resolved == [True]
    assert await (await stream).get_final_response() == [1, 2, 3]


async def test_a_source_that_can_not_be_made_fails_the_stream() -> None:
    async def make() -> AsyncIterator[int]:
        raise LookupError("gone")

    cleaned: list[int] = []
    stream: ResponseStream[int, list[int]] = ResponseStream(make(), cleanup_hooks=[lambda: cleaned.append(1)])
    with pytest.raises(LookupError):
        await stream
    with pytest.raises(LookupError):
        await stream.get_final_response()
    assert cleaned == [1]


async def test_after_aclose_the_source_is_closed_hooks_ran_and_iteration_has_ended() -> None:
    source = Source()
    cleaned: list[int] = []
    stream = summed(source).with_cleanup_hook(lambda: cleaned.append(1))
    await anext(stream)
    await stream.aclose()
    await stream.aclose()
    assert source.closed.is_set()
    assert cleaned == [1]
    assert await collected(stream) == []
    with pytest.raises(RuntimeError, match="closed or cancelled before its end"):
        await stream.get_final_response()


async def test_leaving_the_block_of_a_stream_closes_it_whatever_the_reason() -> None:
    left, failed = Source(), Source()
    async with summed(left) as stream:
        await anext(stream)
    assert left.closed.is_set()
    with pytest.raises(ZeroDivisionError):
        async with summed(failed) as stream:
            assert 1 / (await anext(stream) - 1)
    assert failed.closed.is_set()


async def test_the_block_of_a_stream_that_was_consumed_keeps_its_final_response() -> None:
    async with summed(Source()) as stream:
        assert await collected(stream) == [1, 2, 3]
    await stream.close()
    assert await stream.get_final_response() == 6


async def test_transforms_are_another_name_for_hooks() -> None:
    stream = (
        summed(Source()).with_update_transform(lambda number: number * 2).with_result_transform(lambda total: -total)
    )
    assert await stream.get_final_response() == -12
    assert stream.updates == [2, 4, 6]


async def test_aclose_before_the_first_pull_leaves_no_coroutine_behind() -> None:
    async def make() -> AsyncIterator[int]:
        return Source().numbers()

    cleaned: list[int] = []
    stream: ResponseStream[int, list[int]] = ResponseStream(make(), cleanup_hooks=[lambda: cleaned.append(1)])
    await stream.aclose()
    assert cleaned == [1]


async def test_closing_a_derived_stream_closes_all_beneath_it() -> None:
    source = Source()
    cleaned: list[str] = []
    inner = summed(source).with_cleanup_hook(lambda: cleaned.append("inner"))
    outer = inner.map(str).flat_map(list).with_finalizer(len)
    await anext(outer)
    await outer.aclose()
    assert source.closed.is_set()
    assert cleaned == ["inner"]


async def test_aclose_after_the_end_keeps_the_final_response() -> None:
    stream = summed(Source())
    await collected(stream)
    await stream.aclose()
    assert await stream.get_final_response() == 6


def itself(stream: ResponseStream[int, int]) -> ResponseStream[Any, Any]:
    return stream


def mapped(stream: ResponseStream[int, int]) -> ResponseStream[Any, Any]:
    return stream.map(str)


def flat_mapped(stream: ResponseStream[int, int]) -> ResponseStream[Any, Any]:
    return stream.flat_map(lambda number: [number, number])


@pytest.mark.parametrize("derive", [itself, mapped, flat_mapped])
async def test_a_dropped_stream_closes_its_source_without_the_garbage_collector(
    derive: Callable[[ResponseStream[int, int]], ResponseStream[Any, Any]],
) -> None:
    source = Source()
    gc.collect()
    gc.disable()
    try:
        stream = derive(summed(source).with_cleanup_hook(lambda: None))
        await anext(stream)
        del stream
        await asyncio.wait_for(source.closed.wait(), 5)
    finally:
        gc.enable()
    assert source.given == 1


async def test_leaving_a_loop_over_an_unnamed_stream_closes_its_source() -> None:
    source = Source()
    gc.disable()
    try:
        async for _ in summed(source):
            break
        await asyncio.wait_for(source.closed.wait(), 5)
    finally:
        gc.enable()


def test_a_stream_that_outlives_its_loop_is_closed_by_the_loop_without_complaint() -> None:
    complaints: list[dict[str, Any]] = []
    kept: list[ResponseStream[Any, Any]] = []

    async def main() -> Source:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        source = Source()
        kept.append(summed(source).map(str).with_finalizer(len))
        await anext(kept[0])
        return source

    assert asyncio.run(main()).closed.is_set()
    assert complaints == []


async def test_a_cancelled_pull_closes_the_stream() -> None:
    cleaned: list[int] = []
    waiting = asyncio.Event()

    async def never() -> AsyncIterator[int]:
        yield 1
        waiting.set()
        await asyncio.Event().wait()

    stream: ResponseStream[int, list[int]] = ResponseStream(never(), cleanup_hooks=[lambda: cleaned.append(1)])
    task = asyncio.create_task(collected(stream))
    await waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [1]
    assert await collected(stream) == []
    with pytest.raises(RuntimeError, match="cancelled before its end"):
        await stream.get_final_response()


async def test_two_tasks_can_not_pull_at_once_and_the_first_is_not_disturbed() -> None:
    gate = asyncio.Event()

    async def gated() -> AsyncIterator[int]:
        await gate.wait()
        yield 1

    stream: ResponseStream[int, list[int]] = ResponseStream(gated())
    first = asyncio.create_task(collected(stream))
    await asyncio.sleep(0)
    with pytest.raises(RuntimeError, match="being pulled already"):
        await anext(stream)
    with pytest.raises(RuntimeError, match="being pulled already"):
        await stream.aclose()
    gate.set()
    assert await first == [1]


async def test_a_hook_added_after_the_end_is_refused() -> None:
    stream = summed(Source())
    await collected(stream)
    for add_hook in (stream.with_transform_hook, stream.with_result_hook):
        with pytest.raises(RuntimeError, match="add hooks before consuming it"):
            add_hook(lambda _: None)
    with pytest.raises(RuntimeError, match="add hooks before consuming it"):
        stream.with_cleanup_hook(lambda: None)


async def test_the_consumer_is_the_task_that_pulled_last_and_is_not_kept_alive() -> None:
    stream = summed(Source())
    assert stream.consumer is None
    await anext(stream)
    assert stream.consumer is asyncio.current_task()

    async def pull() -> int:
        return await anext(stream)

    task = asyncio.create_task(pull())
    await task
    assert stream.consumer is task
    del task
    await asyncio.sleep(0)
    gc.collect()
    assert stream.consumer is None
