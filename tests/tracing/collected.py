"""The spans that a process has told: a process has one provider for all its tests, and it traces those that ask."""

from __future__ import annotations

from typing import Any

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler, SamplingResult
from typing_extensions import override


class WhenAsked(Sampler):
    """Traces while a test asks for it."""

    is_asked = False

    @override
    def should_sample(self, *args: Any, **kwargs: Any) -> SamplingResult:
        return (ALWAYS_ON if self.is_asked else ALWAYS_OFF).should_sample(*args, **kwargs)

    @override
    def get_description(self) -> str:
        return "when asked"


EXPORTER = InMemorySpanExporter()
SAMPLER = WhenAsked()
_provider = TracerProvider(sampler=SAMPLER)
_provider.add_span_processor(SimpleSpanProcessor(EXPORTER))
trace.set_tracer_provider(_provider)
