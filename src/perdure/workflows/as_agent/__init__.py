"""Workflows as agents: `WorkflowAgent`, the runs behind its sessions, and the translation of events and messages."""
