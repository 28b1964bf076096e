"""Tracing of agents, under agent-framework's module name. Workflows are traced without any setting."""

from __future__ import annotations

from perdure.agents import ChatTelemetryLayer

__all__ = ["ChatTelemetryLayer"]
