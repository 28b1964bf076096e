"""A stream of updates that ends in a final response."""

from __future__ import annotations

import asyncio
import inspect
import weakref
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, Protocol, Self, TypeAlias, cast, runtime_checkable

from typing_extensions import TypeVar

UpdateT = TypeVar("UpdateT")
FinalT = TypeVar("FinalT")
T = TypeVar("T")
OtherUpdateT = TypeVar("OtherUpdateT")
OtherFinalT = TypeVar("OtherFinalT", default=list[OtherUpdateT])

MaybeAwaitable: TypeAlias = T | Awaitable[T]
Finalizer: TypeAlias = Callable[[Sequence[UpdateT]], MaybeAwaitable[FinalT]]
Hook: TypeAlias = Callable[[T], MaybeAwaitable[T | None]]
CleanupHook: TypeAlias = Callable[[], MaybeAwaitable[object]]


@runtime_checkable
class ToldInPieces(Protocol):
    """A value that stream readers receive as updates."""

    def to_updates(self) -> Sequence[Any]:
        """Return the updates that form the value."""
        ...


def has_pieces(value: object) -> bool:
    """Return True if a value is a `ToldInPieces`. Its class is checked, because a class object has the method too."""
    return hasattr(type(value), "to_updates")


def pieces_of(value: object) -> Sequence[Any]:
    """Return the updates of a value that was made earlier; the value itself if it has none."""
    return cast("ToldInPieces", value).to_updates() if has_pieces(value) else (value,)


def without_discarded(items: Iterable[T]) -> list[T]:
    """Return the items of a stream without those that a later item discards, and without the items that say so.

    An item that discards others has them in its attribute `discards`.
    """
    found = list(items)
    gone = {id(each) for item in found for each in getattr(item, "discards", ())}
    if not gone:
        return found
    kept = [item for item in found if id(getattr(item, "innermost", item)) not in gone]
    return [item for item in kept if not getattr(item, "discards", ())]


class _End(Enum):
    """Marks the end of the source."""

    TOKEN = 0


@dataclass(frozen=True, slots=True)
class _Finished(Generic[FinalT]):
    final: FinalT


@dataclass(frozen=True, slots=True)
class _Failed:
    error: Exception


@dataclass(frozen=True, slots=True)
class _Closed:
    """The stream was closed before its end."""


class ResponseStream(Generic[UpdateT, FinalT]):
    """A stream of updates, to be iterated once, and a final response made of them.

    The source is an async iterable, or an awaitable of one. It advances only when it is pulled: no task runs in the
    background. At the end the cleanup hooks run, then the finalizer, then the result hooks; all may be sync or async. A
    hook that returns None keeps the value. Without a finalizer the final response is that of the source, if it is a
    ResponseStream, else the list of updates.

    `async with` closes the stream at the end of the block; closing the stream of a run cancels the run. A dropped
    stream releases its source, and the event loop closes the source if it is an async generator. Hooks don't run then;
    `aclose` runs them.
    """

    def __init__(
        self,
        stream: AsyncIterable[UpdateT] | Awaitable[AsyncIterable[UpdateT]],
        *,
        finalizer: Finalizer[UpdateT, FinalT] | None = None,
        transform_hooks: Iterable[Hook[UpdateT]] | None = None,
        cleanup_hooks: Iterable[CleanupHook] | None = None,
        result_hooks: Iterable[Hook[FinalT]] | None = None,
        keeps_updates: bool = True,
    ) -> None:
        self._source: Any = stream
        self._gives_batches = False
        self._ahead: deque[UpdateT] = deque()
        """Updates from the source that nobody has taken yet."""
        self._keeps_updates = keeps_updates
        self._iterator: AsyncIterator[Any] | None = None
        self._finalizer = finalizer
        self._transform_hooks = list(transform_hooks or ())
        self._cleanup_hooks = list(cleanup_hooks or ())
        self._result_hooks = list(result_hooks or ())
        self._updates: list[UpdateT] = []
        self._outcome: _Finished[FinalT] | _Failed | _Closed | None = None
        self._is_being_pulled = False
        self._consumer: weakref.ref[asyncio.Task[Any]] | None = None

    @staticmethod
    def from_awaitable(
        awaitable: Awaitable[ResponseStream[OtherUpdateT, OtherFinalT]],
    ) -> ResponseStream[OtherUpdateT, OtherFinalT]:
        """Return a stream at once; its first pull awaits `awaitable`."""
        return ResponseStream(awaitable)

    @staticmethod
    def of_batches(
        batches: AsyncIterable[Sequence[OtherUpdateT]],
        *,
        finalizer: Finalizer[OtherUpdateT, OtherFinalT],
        cleanup_hooks: Iterable[CleanupHook] = (),
        keeps_updates: bool = True,
    ) -> ResponseStream[OtherUpdateT, OtherFinalT]:
        """Return a stream over a source of batches. The source is pulled again when a batch is used up."""
        source = cast("AsyncIterable[OtherUpdateT]", batches)
        stream = ResponseStream(source, finalizer=finalizer, cleanup_hooks=cleanup_hooks, keeps_updates=keeps_updates)
        stream._gives_batches = True
        return stream

    @property
    def updates(self) -> list[UpdateT]:
        """The updates so far; empty if the stream keeps none."""
        return list(self._updates)

    @property
    def consumer(self) -> asyncio.Task[Any] | None:
        """The task that pulled last; None before the first pull, or when that task is gone.

        A stream whose consumer ended or is busy elsewhere waits for a pull that may never come.
        """
        return self._consumer() if self._consumer is not None else None

    def __aiter__(self) -> ResponseStream[UpdateT, FinalT]:
        return self

    async def __anext__(self) -> UpdateT:
        if self._outcome is not None or (update := await self._pull(1)) is _End.TOKEN:
            raise StopAsyncIteration
        return update

    def __await__(self) -> Generator[Any, Any, ResponseStream[UpdateT, FinalT]]:
        if self._outcome is None:
            yield from self._pull(0).__await__()
        return self

    async def get_final_response(self) -> FinalT:
        """Consume the rest and return the final response.

        Raises the error that ended the stream, or RuntimeError if it was closed before its end.
        """
        if self._outcome is None:
            await self._pull(None)
        match self._outcome:
            case _Finished(final):
                return final
            case _Failed(error):
                raise error
            case _:
                raise RuntimeError(
                    "the stream was closed or cancelled before its end, so there is no final response; "
                    "consume it to the end, or look at its updates"
                )

    async def aclose(self) -> None:
        """Close the source and run the cleanup hooks. Does nothing if the stream has ended."""
        if self._outcome is None:
            self._require_idle()
            self._outcome = _Closed()
            await self._clean_up()

    close = aclose

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def map(
        self,
        transform: Callable[[UpdateT], MaybeAwaitable[OtherUpdateT]],
        finalizer: Finalizer[OtherUpdateT, OtherFinalT] | None = None,
    ) -> ResponseStream[OtherUpdateT, OtherFinalT]:
        """Return a stream of transformed updates, which replaces this one."""

        async def one(update: UpdateT) -> tuple[OtherUpdateT]:
            return (await _settled(transform(update)),)

        return ResponseStream(_FlatMapped(self, one), finalizer=finalizer)

    def flat_map(
        self,
        transform: Callable[[UpdateT], MaybeAwaitable[Iterable[OtherUpdateT] | AsyncIterable[OtherUpdateT]]],
        finalizer: Finalizer[OtherUpdateT, OtherFinalT] | None = None,
    ) -> ResponseStream[OtherUpdateT, OtherFinalT]:
        """Return a stream of the updates that `transform` makes of each update, which replaces this one."""
        return ResponseStream(_FlatMapped(self, transform), finalizer=finalizer)

    def with_finalizer(self, finalizer: Finalizer[UpdateT, T]) -> ResponseStream[UpdateT, T]:
        """Return a stream of the same updates with another final response, which replaces this one."""
        return ResponseStream(self, finalizer=finalizer)

    def with_transform_hook(self, hook: Hook[UpdateT]) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that sees each update and may replace it."""
        self._require_unfinished()
        self._transform_hooks.append(hook)
        return self

    def with_result_hook(self, hook: Hook[FinalT]) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that sees the final response and may replace it."""
        self._require_unfinished()
        self._result_hooks.append(hook)
        return self

    with_update_transform = with_transform_hook
    with_result_transform = with_result_hook

    def with_cleanup_hook(self, hook: CleanupHook) -> ResponseStream[UpdateT, FinalT]:
        """Add a hook that runs once, when the stream ends, fails or is closed."""
        self._require_unfinished()
        self._cleanup_hooks.append(hook)
        return self

    def _require_idle(self) -> None:
        if self._is_being_pulled:
            raise RuntimeError(
                "the stream is being pulled already; let one task consume it, and cancel that task to stop it"
            )

    def _require_unfinished(self) -> None:
        if self._outcome is not None:
            raise RuntimeError("the stream has ended, the hook would never run; add hooks before consuming it")

    async def _pull(self, count: int | None) -> UpdateT | _End:
        """Take one update and return it; with 0, only open the source; with None, take all that are left.

        Returns `_End.TOKEN` if the source has ended. The final response is ready then. If anything fails, the stream
        has failed.
        """
        if self._is_being_pulled:
            self._require_idle()
        task = asyncio.current_task()
        self._consumer = None if task is None else weakref.ref(task)
        self._is_being_pulled = True
        try:
            return await self._take(count)
        except BaseException as error:
            self._outcome = _Failed(error) if isinstance(error, Exception) else _Closed()
            # After KeyboardInterrupt, SystemExit and GeneratorExit nothing can be awaited.
            if isinstance(error, Exception | asyncio.CancelledError):
                try:
                    await self._clean_up()
                except Exception as second:  # noqa: BLE001
                    error.add_note(f"cleaning up after it failed too: {second!r}")
            raise
        finally:
            self._is_being_pulled = False

    async def _take(self, count: int | None) -> UpdateT | _End:
        if self._iterator is None:
            source = self._source
            # A ResponseStream is awaitable too, but it is itself the iterable.
            self._source = source if isinstance(source, AsyncIterable) else await source
            self._iterator = aiter(self._source)
        while count != 0:
            while self._ahead:
                update = self._ahead.popleft()
                if self._transform_hooks:
                    update = await _passed_through(self._transform_hooks, update)
                if self._keeps_updates:
                    self._updates.append(update)
                if count is not None:
                    return update
            given = await anext(self._iterator, _End.TOKEN)
            if given is _End.TOKEN:
                await self._finish()
                break
            self._ahead.extend(given if self._gives_batches else (given,))
        return _End.TOKEN

    async def _finish(self) -> None:
        await self._clean_up()
        if self._finalizer is not None:
            final = await _settled(self._finalizer(list(self._updates)))
        elif isinstance(self._source, ResponseStream):
            final = await cast("ResponseStream[UpdateT, FinalT]", self._source).get_final_response()
        else:
            final = cast("FinalT", list(self._updates))
        self._outcome = _Finished(await _passed_through(self._result_hooks, final) if self._result_hooks else final)

    async def _clean_up(self) -> None:
        """Close the source, then run every hook once, even if others fail. Raises the first error."""
        failures: list[Exception] = []
        source = self._iterator or self._source
        close = getattr(source, "close" if inspect.iscoroutine(source) else "aclose", None)
        hooks: list[CleanupHook] = [*([close] if close is not None else ()), *self._cleanup_hooks]
        self._cleanup_hooks = []
        for hook in hooks:
            try:
                await _settled(hook())
            except Exception as error:  # noqa: BLE001
                failures.append(error)
        if failures:
            raise failures[0]


class _FlatMapped(Generic[UpdateT, OtherUpdateT]):
    """The iterator behind `map` and `flat_map`.

    Not an async generator: a loop that shuts down closes all generators at once, and the inner of two nested ones would
    be closed twice.
    """

    def __init__(
        self,
        inner: ResponseStream[UpdateT, Any],
        transform: Callable[[UpdateT], MaybeAwaitable[Iterable[OtherUpdateT] | AsyncIterable[OtherUpdateT]]],
    ) -> None:
        self._inner = inner
        self._transform = transform
        self._group: Iterator[OtherUpdateT] | AsyncIterator[OtherUpdateT] = iter(())

    def __aiter__(self) -> AsyncIterator[OtherUpdateT]:
        return self

    async def __anext__(self) -> OtherUpdateT:
        while True:
            group = self._group
            item = next(group, _End.TOKEN) if isinstance(group, Iterator) else await anext(group, _End.TOKEN)
            if item is not _End.TOKEN:
                return item
            made = await _settled(self._transform(await anext(self._inner)))
            self._group = aiter(made) if isinstance(made, AsyncIterable) else iter(made)

    async def aclose(self) -> None:
        try:
            if hasattr(self._group, "aclose"):
                await cast("Any", self._group).aclose()
        finally:
            await self._inner.aclose()


async def _settled(value: MaybeAwaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else cast("T", value)


async def _passed_through(hooks: Iterable[Hook[T]], value: T) -> T:
    for hook in hooks:
        replaced = await _settled(hook(value))
        value = value if replaced is None else replaced
    return value
