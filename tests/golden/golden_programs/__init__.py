"""Programs of every package whose runs are kept as golden stores. They import public names only.

A program that golden stores were made with stays as it is. For more cases, add programs.
"""

from __future__ import annotations

from . import agents, functions, graphs, nodes, orchestrations, threads

SCENARIOS = [
    *graphs.SCENARIOS,
    *agents.SCENARIOS,
    *orchestrations.SCENARIOS,
    *functions.SCENARIOS,
    *nodes.SCENARIOS,
    *threads.SCENARIOS,
]
