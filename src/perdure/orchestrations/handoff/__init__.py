"""Handoff: agents pass the conversation to one another with tool calls."""
