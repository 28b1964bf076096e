"""Edges between executors, and the messages that pass along them. The edges of a group are decided upon together."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from perdure.events import WorkflowEvent  # noqa: TC001 - the codec follows the fields at run time
from perdure.records import digest

if TYPE_CHECKING:
    import builtins


EdgeCondition: TypeAlias = Callable[[Any], bool | Awaitable[bool]]
SelectionFunc: TypeAlias = Callable[[Any, list[str]], Any]

_PAIR = 2


class MessageType(str, Enum):
    """A message of an executor, or the answer to a request."""

    STANDARD = "standard"
    RESPONSE = "response"


@dataclass
class WorkflowMessage:
    """A message between executors, as it appears in a checkpoint."""

    data: Any
    source_id: str
    target_id: str | None = None
    type: MessageType = MessageType.STANDARD
    trace_contexts: list[dict[str, str]] | None = None
    source_span_ids: list[str] | None = None
    original_request_info_event: WorkflowEvent[Any] | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields by name. The payload is the object itself."""
        return {each.name: getattr(self, each.name) for each in fields(self)} | {"type": self.type.value}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> WorkflowMessage:
        """Create a message from `to_dict`. Raises KeyError if payload or source are missing."""
        optional: dict[str, Any] = {each.name: data[each.name] for each in fields(cls)[2:] if each.name in data}
        optional["type"] = MessageType(data.get("type", MessageType.STANDARD))
        return cls(data["data"], data["source_id"], **optional)


@dataclass(frozen=True, slots=True)
class TimersDue:
    """Tells a sub-workflow that its timers up to this moment are due."""

    moment: str


def INTERNAL_SOURCE_ID(executor_id: str) -> str:  # noqa: N802 - the documented name
    """Return the source id of inputs and answers from outside."""
    return f"internal:{executor_id}"


@dataclass
class Case:
    """A case of a switch: messages that fulfil the condition go to the target, an executor or an agent."""

    condition: EdgeCondition
    target: Any


@dataclass
class Default:
    """The target, an executor or an agent, of messages that no case of a switch takes."""

    target: Any


@dataclass(frozen=True, slots=True)
class Edge:
    """A directed edge, with an optional condition on the message."""

    ID_SEPARATOR: ClassVar[str] = "->"

    source_id: str
    target_id: str
    condition: EdgeCondition | None = field(default=None, compare=False)
    condition_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.source_id or not self.target_id:
            raise ValueError("an edge needs the ids of two executors")
        if self.condition is not None and self.condition_name is None:
            object.__setattr__(self, "condition_name", callable_name(self.condition))

    @property
    def id(self) -> str:
        """Both ends."""
        return f"{self.source_id}{self.ID_SEPARATOR}{self.target_id}"

    @property
    def has_condition(self) -> bool:
        """True if messages may be held back."""
        return self.condition is not None

    async def should_route(self, data: Any) -> bool:
        """Return True if the condition, if any, holds for a message."""
        return True if self.condition is None else bool(await ask(self.condition, data))

    def to_dict(self) -> dict[str, Any]:
        """Return the edge as plain data. The condition is reduced to its name."""
        name = {} if self.condition_name is None else {"condition_name": self.condition_name}
        return {"source_id": self.source_id, "target_id": self.target_id, **name}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Edge:
        """Create an edge from `to_dict`, without its condition."""
        return cls(data["source_id"], data["target_id"], condition_name=data.get("condition_name"))


class EdgeGroup:
    """Edges that are decided upon together. `type` is the kind of group: the name of its class."""

    type: ClassVar[str] = "EdgeGroup"
    _kinds: ClassVar[dict[str, builtins.type[EdgeGroup]]] = {}

    def __init__(self, edges: Sequence[Edge], *, id: str | None = None) -> None:
        self.edges: list[Edge] = list(edges)
        self.id: str = id or f"{self.type}/{digest(' '.join(edge.id for edge in edges).encode())[:12]}"

    def __init_subclass__(cls) -> None:
        cls.type = cls.__name__
        EdgeGroup._kinds[cls.type] = cls

    @property
    def source_executor_ids(self) -> list[str]:
        """The sources of the edges, each once, in order."""
        return list(dict.fromkeys(edge.source_id for edge in self.edges))

    @property
    def target_executor_ids(self) -> list[str]:
        """The targets of the edges, each once, in order."""
        return list(dict.fromkeys(edge.target_id for edge in self.edges))

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain data. Functions are reduced to their names."""
        return {"id": self.id, "type": self.type, "edges": [edge.to_dict() for edge in self.edges]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> EdgeGroup:
        """Create a group from `to_dict`. Calling one of its functions raises RuntimeError."""
        kind = EdgeGroup._kinds.get(data["type"])
        if kind is None:
            raise ValueError(f"unknown type of edge group: {data['type']!r}")
        group = kind.__new__(kind)
        EdgeGroup.__init__(group, [Edge.from_dict(edge) for edge in data["edges"]], id=data["id"])
        group._refill(data)
        return group

    def _refill(self, data: Mapping[str, Any]) -> None:
        """Restore what a subclass adds in `to_dict`."""
        del data


class SingleEdgeGroup(EdgeGroup):
    """A single edge."""

    def __init__(
        self, source_id: str, target_id: str, condition: EdgeCondition | None = None, *, id: str | None = None
    ) -> None:
        super().__init__([Edge(source_id, target_id, condition)], id=id)


class InternalEdgeGroup(EdgeGroup):
    """The entry from outside: the first input, and answers to the executor's requests."""

    def __init__(self, executor_id: str) -> None:
        super().__init__([Edge(INTERNAL_SOURCE_ID(executor_id), executor_id)], id=f"internal/{executor_id}")


class FanOutEdgeGroup(EdgeGroup):
    """One source and several targets: all of them, or those that a function selects."""

    def __init__(
        self,
        source_id: str,
        target_ids: Sequence[str],
        selection_func: SelectionFunc | None = None,
        *,
        selection_func_name: str | None = None,
        id: str | None = None,
    ) -> None:
        if len(target_ids) < _PAIR:
            raise ValueError("a fan-out needs at least two targets")
        super().__init__([Edge(source_id, target_id) for target_id in target_ids], id=id)
        self.target_ids: list[str] = list(target_ids)
        self.selection_func = selection_func
        self.selection_func_name = selection_func_name
        if selection_func is not None and selection_func_name is None:
            self.selection_func_name = callable_name(selection_func)

    def to_dict(self) -> dict[str, Any]:
        """Return the group as plain data, with the name of the selection function."""
        return {**super().to_dict(), "selection_func_name": self.selection_func_name}

    def _refill(self, data: Mapping[str, Any]) -> None:
        self.target_ids = self.target_executor_ids
        self.selection_func_name = data.get("selection_func_name")
        self.selection_func = _missing(self.selection_func_name) if self.selection_func_name else None


class FanInEdgeGroup(EdgeGroup):
    """Several sources and one target, which gets one list when every source has sent."""

    def __init__(self, source_ids: Sequence[str], target_id: str, *, id: str | None = None) -> None:
        if len(source_ids) < _PAIR:
            raise ValueError("a fan-in needs at least two sources")
        super().__init__([Edge(source_id, target_id) for source_id in source_ids], id=id)

    @property
    def target_id(self) -> str:
        """The target that gets the list."""
        return self.edges[0].target_id


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupCase:
    """A case of a switch, with the id of its target."""

    condition: EdgeCondition = field(compare=False)
    target_id: str
    condition_name: str | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if not self.target_id:
            raise ValueError("a case needs a target")
        if self.condition_name is None:
            object.__setattr__(self, "condition_name", callable_name(self.condition))

    def to_dict(self) -> dict[str, Any]:
        """Return the case as plain data."""
        return {"target_id": self.target_id, "type": "Case", "condition_name": self.condition_name}


@dataclass(frozen=True, slots=True)
class SwitchCaseEdgeGroupDefault:
    """The default of a switch, with the id of its target."""

    target_id: str

    def __post_init__(self) -> None:
        if not self.target_id:
            raise ValueError("a default needs a target")

    def to_dict(self) -> dict[str, Any]:
        """Return the default as plain data."""
        return {"target_id": self.target_id, "type": "Default"}


SwitchEntry: TypeAlias = SwitchCaseEdgeGroupCase | SwitchCaseEdgeGroupDefault


class SwitchCaseEdgeGroup(FanOutEdgeGroup):
    """One source and several targets. Each message goes to the target of the first case that holds."""

    def __init__(self, source_id: str, cases: Sequence[SwitchEntry], *, id: str | None = None) -> None:
        if len(cases) < _PAIR:
            raise ValueError("a switch needs at least two entries: a case and the default")
        defaults = [case for case in cases if isinstance(case, SwitchCaseEdgeGroupDefault)]
        if len(defaults) != 1:
            raise ValueError(f"a switch needs exactly one default, not {len(defaults)}")
        # Several cases may have one target, and a fan-out needs two.
        self.target_ids = list(dict.fromkeys(case.target_id for case in cases))
        EdgeGroup.__init__(self, [Edge(source_id, target_id) for target_id in self.target_ids], id=id)
        self.selection_func = self.selection_func_name = None
        self.cases: list[SwitchEntry] = list(cases)

    @property
    def default_id(self) -> str:
        """The target of messages that no case takes."""
        return next(case.target_id for case in self.cases if isinstance(case, SwitchCaseEdgeGroupDefault))

    def to_dict(self) -> dict[str, Any]:
        """Return the switch as plain data, with its cases in order."""
        return {**super().to_dict(), "cases": [case.to_dict() for case in self.cases]}

    def _refill(self, data: Mapping[str, Any]) -> None:
        super()._refill(data)
        self.cases = [
            SwitchCaseEdgeGroupDefault(case["target_id"])
            if case["type"] == "Default"
            else SwitchCaseEdgeGroupCase(
                _missing(case["condition_name"]), case["target_id"], condition_name=case["condition_name"]
            )
            for case in data["cases"]
        ]


async def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a condition or a selection of the program, sync or async."""
    answer = function(*arguments)
    return await answer if inspect.isawaitable(answer) else answer


def callable_name(function: Callable[..., Any]) -> str:
    """Return a function's name for the definition and the signature."""
    return getattr(function, "__name__", "<callable>")


def _missing(name: str | None) -> Callable[..., Any]:
    def gone(*_: Any) -> Any:
        raise RuntimeError(
            f"the function {name!r} is not part of the stored definition; build the graph in code to run it"
        )

    return gone
