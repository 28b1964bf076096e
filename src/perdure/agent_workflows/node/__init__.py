"""Nodes: agents that get tasks from the conductor, and how their answers become outputs."""
