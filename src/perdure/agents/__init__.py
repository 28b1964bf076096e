"""Agents: what they say and are told, their models, tools and sessions, and the executor that lets one act."""

# Whoever has any of it can store all of it.
from perdure.agents import plain as plain
from perdure.agents import storing as storing
