"""Tracing of agents, under the name that the reference has for it. Workflows are traced without any setting."""

from __future__ import annotations

from perdure.agents import ChatTelemetryLayer

__all__ = ["ChatTelemetryLayer"]
