"""What JSON can't hold and a caller gives anew: agents by node, classes and functions by their path or name."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict, cast

from perdure import SupportsAgentRun
from perdure.agent_workflows.agents import AgentConfig
from perdure.agent_workflows.node_agent import given_agent

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure import Clock, SupportsChatGetResponse
    from perdure.agent_workflows.conditions import Condition
    from perdure.agent_workflows.config_entries import Entry, Problems
    from perdure.agent_workflows.workflow import AgentWorkflow


class GivenOptions(TypedDict, total=False):
    """What is given with a definition: what it can't hold, and what its agents are made with."""

    agents: Mapping[str, SupportsAgentRun | AgentConfig | AgentWorkflow] | None
    types: Mapping[str, type[Any]] | None
    predicates: Mapping[str, Callable[..., Any] | Condition] | None
    client: SupportsChatGetResponse | None
    tools: Mapping[str, Any] | None
    clock: Clock | None


def require_known(method: str, given: GivenOptions) -> None:
    """Raise TypeError for a name that there is not, with the one that is meant."""
    known = list(GivenOptions.__annotations__)
    for name in cast("Mapping[str, object]", given):
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            instead = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
            raise TypeError(f"{method}() is given {name!r}, which there is not; {instead}")


@dataclass(slots=True)
class Given:
    """What a caller has given, and what of it was used."""

    agents: Mapping[str, Any]
    types: Mapping[str, Any]
    functions: Mapping[str, Any]
    problems: Problems
    _used: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def agent(self, node_id: str) -> SupportsAgentRun | AgentConfig | None:
        """The agent for a node, in place of what the JSON says of it."""
        found = given_agent(self._found("agents", self.agents, (node_id,)))
        if found is None or isinstance(found, AgentConfig | SupportsAgentRun):
            return found
        return self.problems.note(f"agents[{node_id!r}]", f"it is a {type(found).__name__}; give an agent")

    def type(self, path: str, name: object) -> type[Any] | None:
        """The class for a path, or of a name."""
        found = self._found("types", self.types, (path, name))
        if found is None or isinstance(found, type):
            return cast("type[Any] | None", found)
        return self.problems.note(path, f"what types= has for it is a {type(found).__name__}; give a class")

    def function(self, entry: Entry) -> Any:
        """The function that stands for a mark, or None if it was not given, which is noted."""
        entry.only("type", "name")
        name = entry.name("name")
        found = self._found("predicates", self.functions, (entry.path, name))
        if found is None:
            other = "" if name is None else f", or as predicates[{name!r}]"
            return self.problems.note(
                entry.path, f"it is a function, which JSON can't hold; give it as predicates[{entry.path!r}]{other}"
            )
        if not callable(found) and not hasattr(found, "holds"):
            kind = type(found).__name__
            return self.problems.note(entry.path, f"what predicates= has for it is a {kind}; give a function")
        return found

    def note_unused(self) -> None:
        """Note what was given for nothing: a slip in a path would otherwise go unseen."""
        kinds = (("agents", self.agents), ("types", self.types), ("predicates", self.functions))
        for kind, given in kinds:
            for key in given:
                if (kind, key) not in self._used:
                    self.problems.note("", f"{kind}[{key!r}] was given, and nothing in the definition asks for it")

    def _found(self, kind: str, given: Mapping[str, Any], keys: tuple[object, ...]) -> Any:
        for key in keys:
            if isinstance(key, str) and key in given:
                self._used.add((kind, key))
                return given[key]
        return None


def is_function_mark(value: object) -> bool:
    """Whether a value stands for a function that was left out."""
    return isinstance(value, Mapping) and cast("Mapping[str, Any]", value).get("type") == "function"
