"""OpenTelemetry spans, if the program has loaded OpenTelemetry. We never load it. Their durations are metrics too.

Parents of spans are set explicitly. Only inside a handler is the span the current one, so that the handler's own spans
belong to its activation. Without OpenTelemetry, tracing costs nothing.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, nullcontext
from time import perf_counter  # noqa: TID251 - durations for operators; no run depends on them
from typing import TYPE_CHECKING, Any

from perdure.metrics import is_measured, measure_span

if TYPE_CHECKING:
    from collections.abc import Mapping

    Attributes = Mapping[str, str | int | float | bool | None]

_NAME = "perdure"
_INHERITED = ("run_id", "checkpoint_id")
"""The attributes of every span of a run."""
_WORKFLOW = "perdure.workflow"
"""The attribute of every metric of a run."""


class Span:
    """Traced work. This class does nothing: it stands for work that nobody traces."""

    @property
    def traceparent(self) -> str | None:
        """The span as W3C trace context, so that a later attempt can link to it."""
        return None

    def child(self, name: str, **attributes: str | float | bool | None) -> Span:
        """Start a nested span."""
        del name, attributes
        return self

    def set_checkpoint(self, checkpoint_id: str) -> None:
        """Set the checkpoint that later nested spans report."""

    def say(self, **attributes: str | float | bool | None) -> None:
        """Add attributes. A name with a dot is used as it is; others get our prefix."""

    def link(self, traceparent: str) -> None:
        """Link to the span of an earlier attempt."""

    def end(self, error: BaseException | None = None) -> None:
        """End the span, with an error if it failed."""


NO_SPAN = Span()
_NOTHING = nullcontext()


def begin(name: str, *, linked: str | None, **attributes: str | float | bool | None) -> Span:
    """Start a span under the caller's current one, linked to the span of an earlier attempt."""
    trace = sys.modules.get("opentelemetry.trace")
    if trace is None:
        return NO_SPAN
    links = [link] if (link := _link(trace, linked)) is not None else []
    tracer = trace.get_tracer(_NAME)
    begun = tracer.start_span(name, links=links, attributes=_told(attributes))
    if not begun.get_span_context().is_valid and not is_measured():
        # A library loaded OpenTelemetry but nobody configured it, so spans would go nowhere.
        return NO_SPAN
    inherited = {key: attributes.get(key) for key in _INHERITED}
    return _OtelSpan(trace, tracer, begun, inherited, name=name, attributes=_told(attributes))


class traced:  # noqa: N801 - it is used like a function
    """End the span with the block. A class instead of a generator, because every activation makes one."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def __enter__(self) -> Span:
        return self._span

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        self._span.end(error)


def current(span: Span) -> AbstractContextManager[Any]:
    """Make the span the current one in this block, which must run in one task."""
    return span.as_current() if isinstance(span, _OtelSpan) else _NOTHING


class _OtelSpan(Span):
    def __init__(
        self, trace: Any, tracer: Any, span: Any, inherited: dict[str, Any], *, name: str, attributes: dict[str, Any]
    ) -> None:
        self._trace = trace
        self._tracer = tracer
        self._span = span
        self._inherited = inherited
        self._name = name
        self._attributes = attributes
        self._begun = perf_counter()
        self._is_over = False

    @property
    def traceparent(self) -> str | None:
        context = self._span.get_span_context()
        if not context.is_valid or not context.trace_flags.sampled:
            # It is not sampled, so nobody would see it.
            return None
        return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"

    def child(self, name: str, **attributes: str | float | bool | None) -> Span:
        context = self._trace.set_span_in_context(self._span)
        every = {**self._inherited, **attributes}
        begun = self._tracer.start_span(name, context=context, attributes=_told(every))
        measured = _told({"workflow": self._attributes.get(_WORKFLOW), **attributes})
        return _OtelSpan(self._trace, self._tracer, begun, self._inherited, name=name, attributes=measured)

    def set_checkpoint(self, checkpoint_id: str) -> None:
        self._inherited["checkpoint_id"] = checkpoint_id

    def say(self, **attributes: str | float | bool | None) -> None:
        told = _told(attributes)
        self._attributes |= told
        self._span.set_attributes(told)

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
        measure_span(self._name, perf_counter() - self._begun, self._attributes, error)
        if error is not None:
            self._span.record_exception(error)
            self._span.set_status(self._trace.StatusCode.ERROR, type(error).__name__)
        self._span.end()


def _told(attributes: Attributes) -> dict[str, str | int | float | bool]:
    told = ((name if "." in name else f"{_NAME}.{name}", value) for name, value in attributes.items())
    return {name: value for name, value in told if value is not None}


def _link(trace: Any, traceparent: str | None) -> Any:
    """Return a link to the span of an earlier attempt; None if it can't be read."""
    parts = (traceparent or "").split("-")
    try:
        _, trace_id, span_id, flags = parts
        context = trace.SpanContext(
            int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16))
        )
    except ValueError:
        return None
    return trace.Link(context) if context.is_valid else None
