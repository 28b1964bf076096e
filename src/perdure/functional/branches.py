"""Where in a function a step or a question is. Sleeps and turns of agents count as well, so the engine does it."""

from __future__ import annotations

from perdure.engine import branch_place, trunk

__all__ = ["branch_place", "trunk"]
