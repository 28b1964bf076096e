"""LangGraph as a peer."""

from __future__ import annotations

import operator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING, Annotated, Literal, TypedDict

from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph

from bench.peer import Durability, Interruption, Place, Run, Store

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.graph.state import CompiledStateGraph

_MARGIN = 10
"""LangGraph counts its own first and last steps too."""


@dataclass(frozen=True, slots=True)
class LangGraph:
    """Asynchronous nodes and savers, and `durability="sync"`, which its documentation names for high durability.

    `"async"` is what it does if nothing is said: the next superstep begins while the checkpoint is being written.
    """

    mode: Literal["sync", "async"] = "sync"

    imports = "from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver; from langgraph.graph import StateGraph"

    @property
    def name(self) -> str:
        """What the table calls it."""
        return "langgraph" if self.mode == "sync" else f"langgraph {self.mode}"
