"""Definitions with all that a definition can have, for tests of what is written down and read back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, Field

from perdure import BaseAgent, Retry
from perdure.agent_workflows import (
    AgentConfig,
    Approval,
    AtLeast,
    Contains,
    Conversation,
    Definition,
    Edge,
    Equals,
    Exists,
    Handoffs,
    Iterations,
    Matches,
    Node,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.agent_workflows import EdgeContext


class Invoice(BaseModel):
    total: float = Field(alias="Total")
    lines: list[str] = []


class Refund(BaseModel):
    reason: str


class RateLimitedError(Exception):
    """One that no definition can name."""


class Known(BaseAgent):
    """An agent that was made before, and never runs here."""

    default_options: Mapping[str, Any] = {"instructions": "Write.", "api_key": "sk-secret"}

    async def run(self, *_: Any, **__: Any) -> Any:
        raise NotImplementedError


def is_urgent(edge: EdgeContext) -> bool:
    return edge.source == "triage"


def is_costly(outputs: Mapping[str, Any]) -> bool:
    return outputs["total"] > 100


def longer(attempt: int) -> float:
    return attempt * 2.0


def is_passing(error: Exception) -> bool:
    return isinstance(error, TimeoutError)


SCHEMA = {"type": "object", "title": "Note", "properties": {"note": {"type": "string"}}, "required": ["note"]}
HOWEVER_NESTED = (
    AtLeast("score", 3) & (Exists("a.b") | ~Contains("tags", "x")) & Matches("note", "^a", ignore_case=True)
)


def plain() -> Definition:
    """One that JSON can hold as a whole, with every key that there is."""
    config = AgentConfig(
        name="writer", instructions="Write.", description="writes", model="m", options={"temperature": 0.5}
    )
    note = StructuredOutput(SCHEMA, "tool")
    retry = Retry(5, 0.5, (TimeoutError, ConnectionError), factor=3.0, longest=9.0)
    return Definition(
        name="review",
        description="reviews",
        version="2",
        nodes=(
            Node(id="triage", agent=AgentConfig(), output=Handoffs({"draft": "to write", "note": ""}, "draft")),
            Node(id="draft", agent=config, output=TextOutput("draft"), template="{{input}}", instructions="Be short."),
            Node(
                id="note",
                agent=AgentConfig(),
                output=note,
                input_key="input.topic",
                retry=retry,
                timeout=2.5,
                on_error=OnError("fallback", "spare"),
                approval=Approval("May it?", Equals("note", "risky"), timedelta(minutes=5)),
            ),
            Node(
                id="either",
                agent=AgentConfig(),
                output=UnionOutput((SCHEMA, {**SCHEMA, "title": "B"})),
                reads="upstream",
            ),
            Node(id="spare", agent=AgentConfig(), reads="request"),
        ),
        edges=(
            Edge("START", "triage"),
            Edge("triage", "draft", Equals("handoff_target", "draft")),
            Edge("triage", "note", is_default=True),
            Edge("draft", "either", HOWEVER_NESTED),
            Edge("either", "draft", Equals("matched_type", "B")),
        ),
        timeout=timedelta(seconds=90),
        iterations=Iterations(3, "leave", converges=False, ignored_keys=frozenset({"b", "a"}), change_aware=True),
        conversation=Conversation("shared", "s1", "t1", ""),
    )


@dataclass(frozen=True)
class Live:
    """A definition with objects that JSON cannot hold, and the objects to give again."""

    definition: Definition
    agents: Mapping[str, Any]
    types: Mapping[str, Any]
    predicates: Mapping[str, Any]

    def given(self) -> dict[str, Any]:
        return {"agents": self.agents, "types": self.types, "predicates": self.predicates}


def live() -> Live:
    agent = Known(id="a1", name="known", description="knows")
    definition = Definition(
        name="live",
        nodes=(
            Node(
                id="triage",
                agent=agent,
                output=StructuredOutput(Invoice),
                retry=Retry(backoff=longer, on=is_passing),
                approval=Approval(when=is_costly),
            ),
            Node(
                id="next",
                agent=AgentConfig(tools=("search",), options={"temperature": 1, "hook": longer}),
                output=UnionOutput((Invoice, Refund, SCHEMA)),
                retry=Retry(on=(ValueError, RateLimitedError)),
                reads="upstream",
            ),
            Node(id="last", agent=AgentConfig(), reads="upstream"),
        ),
        edges=(Edge("triage", "next", predicate=is_urgent), Edge("triage", "last", predicate=lambda _: False)),
    )
    return Live(
        definition,
        {"triage": agent, "next": agent},
        {"Invoice": Invoice, "Refund": Refund, "RateLimitedError": RateLimitedError},
        {
            "longer": longer,
            "agents.triage.retry.on": is_passing,
            "agents.triage.approval.when": is_costly,
            "is_urgent": is_urgent,
            "edges[1].when": definition.edges[1].predicate,
        },
    )
