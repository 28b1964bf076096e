"""Spans for OpenTelemetry, if the program uses it: found when it is loaded, never loaded by us.

A span is the parent of others explicitly; only inside of a handler is it the current one, so that what the handler
traces itself belongs to its activation. Without OpenTelemetry, or where it is only installed, nothing of this costs
anything.
"""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager

    Attributes = Mapping[str, str | int | float | bool | None]

_NAME = "perdure"
_INHERITED = ("run_id", "checkpoint_id")
"""What every span of a run says: which run, and at which checkpoint it stood."""


class Span(Protocol):
    """A piece of work that is traced."""

    @property
    def traceparent(self) -> str | None:
        """The span as W3C trace context has it, so that a later life can link to it."""
        ...

    def child(self, name: str, **attributes: str | float | bool | None) -> Span:
        """A piece of this work."""
        ...

    def stands_at(self, checkpoint_id: str) -> None:
        """From now on what begins inside of it follows this checkpoint."""
        ...

    def say(self, **attributes: str | float | bool | None) -> None:
        """Say more of it. A name with a dot in it is told as it is: it is one that others have given."""
        ...

    def link(self, traceparent: str) -> None:
        """Link it to the span of an earlier life."""
        ...

    def end(self, error: BaseException | None = None) -> None:
        """It is over, well or with an error."""
        ...


class _NoSpan:
    """Where nobody traces."""

    @property
    def traceparent(self) -> str | None:
        """There is none."""
        return None

    def child(self, name: str, **attributes: str | float | bool | None) -> Span:
        """The same again."""
        del name, attributes
        return self

    def stands_at(self, checkpoint_id: str) -> None:
        """Nobody listens."""

    def say(self, **attributes: str | float | bool | None) -> None:
        """Nobody listens."""

    def link(self, traceparent: str) -> None:
        """Nobody follows it."""

    def end(self, error: BaseException | None = None) -> None:
        """Nothing was begun."""


NO_SPAN: Span = _NoSpan()
_NOTHING = nullcontext()


def begin(name: str, *, linked: str | None, **attributes: str | float | bool | None) -> Span:
    """A span under whatever the caller traces now, linked to the span of an earlier life."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return NO_SPAN
    links = [link] if (link := _link(trace, linked)) is not None else []
    tracer = trace.get_tracer(_NAME)
    begun = tracer.start_span(name, links=links, attributes=_told(attributes))
    if not begun.get_span_context().is_valid:
        # Some library has loaded OpenTelemetry, but nobody has set it up, and nothing would be told.
        return NO_SPAN
    return _OtelSpan(trace, tracer, begun, {key: attributes.get(key) for key in _INHERITED})


class traced:  # noqa: N801 - it is used like a function
    """End the span with the block, well or with its error. It is made for every activation: no generator."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._span.end(error)


def current(span: Span) -> AbstractContextManager[Any]:
    """Let the span be the current one in this block, which must run in one task."""
    return span.as_current() if isinstance(span, _OtelSpan) else _NOTHING


class _OtelSpan:
    def __init__(self, trace: Any, tracer: Any, span: Any, inherited: dict[str, Any]) -> None:
        self._trace = trace
        self._tracer = tracer
        self._span = span
        self._inherited = inherited
        self._is_over = False

    @property
    def traceparent(self) -> str | None:
        context = self._span.get_span_context()
        if not context.is_valid or not context.trace_flags.sampled:
            # Nobody will ever see it.
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def child(self, name: str, **attributes: str | float | bool | None) -> Span:
        context = self._trace.set_span_in_context(self._span)
        every = {**self._inherited, **attributes}
        begun = self._tracer.start_span(name, context=context, attributes=_told(every))
        return _OtelSpan(self._trace, self._tracer, begun, self._inherited)

    def stands_at(self, checkpoint_id: str) -> None:
        self._inherited["checkpoint_id"] = checkpoint_id

    def say(self, **attributes: str | float | bool | None) -> None:
        self._span.set_attributes(_told(attributes))

    def link(self, traceparent: str) -> None:
        link = _link(self._trace, traceparent)
        if link is not None:
            self._span.add_link(link.context)

    def as_current(self) -> Any:
        return self._trace.use_span(
            self._span, end_on_exit=False, record_exception=False, set_status_on_exception=False
        )

    def end(self, error: BaseException | None = None) -> None:
        if self._is_over:
            return
        self._is_over = True
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
        self._span.end()


def _told(attributes: Attributes) -> dict[str, str | int | float | bool]:
    told = ((name if "." in name else f"{_NAME}.{name}", value) for name, value in attributes.items())
    return {name: value for name, value in told if value is not None}


def _link(trace: Any, traceparent: str | None) -> Any:
    """A link to the span of an earlier life; None if there is none or it can't be read."""
    parts = (traceparent or "").split("-")
    try:
        _, trace_id, span_id, flags = parts
        context = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
        )
    except ValueError:
        return None
    return trace.Link(context) if context.is_valid else None
