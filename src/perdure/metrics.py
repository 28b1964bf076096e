"""OpenTelemetry metrics, if the program has set up a meter provider. We never load OpenTelemetry.

Durations come from spans: a span that ends is recorded here, so there is one place for traces and metrics. Attributes
have few values: the id of a run is not among them. Without a meter provider, metrics cost nothing.
"""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

logger = logging.getLogger(__name__)

_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
_BYTES = tuple(4**power for power in range(4, 14))
_TOKENS = tuple(4**power for power in range(14))
_GEN_AI_SECONDS = tuple(0.01 * 2**power for power in range(14))

_GEN_AI_DURATION = "gen_ai.client.operation.duration"
_GEN_AI_TOKENS = "gen_ai.client.token.usage"
_GEN_AI_TOKEN_TYPE = "gen_ai.token.type"  # noqa: S105 - the name of an attribute
_GEN_AI_TOKEN_COUNTS = {"gen_ai.usage.input_tokens": "input", "gen_ai.usage.output_tokens": "output"}
_GEN_AI_ATTRIBUTES = ("gen_ai.operation.name", "gen_ai.provider.name", "gen_ai.request.model", "gen_ai.response.model")
"""The names of OpenTelemetry's GenAI conventions. `agents/client/base.py` has those of the span."""

_COUNTERS = {
    "perdure.run.started": ("{run}", "Runs that were started"),
    "perdure.run.ended": ("{run}", "Calls that left a run finished, waiting, sleeping, cancelled or failed"),
    "perdure.run.takeover": ("{run}", "Runs that were taken over from a process that had died or lost its lease"),
    "perdure.retry": ("{attempt}", "Failed attempts of executors and steps that were followed by another"),
}
_GAUGES = {"perdure.host.queue.depth": ("{run}", "Due runs that the host has not started, at its last look")}
_HISTOGRAMS = {
    "perdure.superstep.duration": ("s", "Duration of a superstep with its commit", _SECONDS),
    "perdure.activation.duration": ("s", "Duration of one attempt of a handler", _SECONDS),
    "perdure.step.duration": ("s", "Duration of one attempt of a step", _SECONDS),
    "perdure.commit.duration": ("s", "Duration of a commit in the store", _SECONDS),
    "perdure.commit.size": ("By", "Bytes of the checkpoint and the new blobs that a commit writes", _BYTES),
    _GEN_AI_DURATION: ("s", "Duration of a model call", _GEN_AI_SECONDS),
    _GEN_AI_TOKENS: ("{token}", "Tokens of a model call", _TOKENS),
}
_DURATIONS = {
    "perdure.superstep": ("perdure.superstep.duration", ("perdure.workflow",)),
    "perdure.activation": ("perdure.activation.duration", ("perdure.workflow", "perdure.executor_id")),
    "perdure.step": ("perdure.step.duration", ("perdure.workflow", "perdure.executor_id")),
    "perdure.commit": ("perdure.commit.duration", ("perdure.workflow",)),
    "chat": (_GEN_AI_DURATION, _GEN_AI_ATTRIBUTES),
}
"""By the first word of a span's name: its metric, and the attributes of the span that the metric has."""

_made: tuple[object, dict[str, Callable[..., None]] | None] | None = None
"""The meter provider, and the instruments that it has made; None if it can't make them."""


def is_measured() -> bool:
    """Return True if the program has set up a meter provider."""
    return _instruments() is not None


def measure(name: str, value: float = 1, **attributes: str | None) -> None:
    """Count or record something. Attributes get our prefix."""
    instruments = _instruments()
    if instruments is not None:
        instruments[name](value, {f"perdure.{key}": each for key, each in attributes.items() if each is not None})


def measure_span(name: str, seconds: float, attributes: Mapping[str, Any], error: BaseException | None) -> None:
    """Record the duration of a span that has ended, and what its attributes count."""
    instruments, found = _instruments(), _DURATIONS.get(name.partition(" ")[0])
    if instruments is None or found is None:
        return
    metric, names = found
    kept = {key: attributes[key] for key in names if key in attributes}
    for key, kind in _GEN_AI_TOKEN_COUNTS.items():
        if key in attributes:
            instruments[_GEN_AI_TOKENS](attributes[key], {**kept, _GEN_AI_TOKEN_TYPE: kind})
    instruments[metric](seconds, kept if error is None else {**kept, "error.type": type(error).__name__})


def _instruments() -> dict[str, Callable[..., None]] | None:
    """Return for each metric the function that records it; None if nobody measures."""
    global _made  # noqa: PLW0603 - a process has one meter provider
    api = sys.modules.get("opentelemetry.metrics")
    if api is None:
        return None
    provider = api.get_meter_provider()
    if _made is not None and _made[0] is provider:
        return _made[1]
    if type(provider).__module__.startswith("opentelemetry.metrics"):
        # The API's own providers record nothing: a library has loaded OpenTelemetry but nobody has set it up.
        return None
    _made = provider, _make_instruments(provider)
    return _made[1]


def _make_instruments(provider: Any) -> dict[str, Callable[..., None]] | None:
    meter = provider.get_meter("perdure")
    try:
        made = {name: meter.create_counter(name, unit, text).add for name, (unit, text) in _COUNTERS.items()}
        made |= {name: meter.create_gauge(name, unit, text).set for name, (unit, text) in _GAUGES.items()}
        for name, (unit, text, bounds) in _HISTOGRAMS.items():
            made[name] = meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=bounds).record
    except (TypeError, AttributeError) as error:
        # Metrics must never fail a run.
        logger.warning("no metrics: this version of OpenTelemetry is too old, install 1.31 or later (%s)", error)
        return None
    return made
