"""The part of the builder that adds agents, and what is said of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias, TypedDict, cast, get_args

from typing_extensions import Unpack

from perdure import Retry
from perdure.agent_workflows.builder_noting import Noting
from perdure.agent_workflows.checking_words import told
from perdure.agent_workflows.definition import (
    Approval,
    ErrorMode,
    Handoffs,
    Node,
    OnError,
    StructuredOutput,
    TextOutput,
    UnionOutput,
)
from perdure.agent_workflows.errors import AgentWorkflowBuildError
from perdure.agent_workflows.node_agent import given_agent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import timedelta

    from perdure import SupportsAgentRun
    from perdure.agent_workflows.agents import AgentConfig
    from perdure.agent_workflows.definition import Output
    from perdure.agent_workflows.workflow import AgentWorkflow

    AgentLike: TypeAlias = SupportsAgentRun | AgentConfig | AgentWorkflow
    Shape: TypeAlias = type[Any] | Mapping[str, Any]
    OnErrorLike: TypeAlias = Literal["stop", "skip_dependents", "isolate"] | OnError


class NodeOptions(TypedDict, total=False):
    """What can be said of every node, however it answers."""

    input_key: str | None
    template: str | None
    reads: Literal["request", "upstream"] | None
    instructions: str | None
    retry: Retry | int | None
    timeout: timedelta | float | None
    on_error: OnErrorLike
    approval: bool | str | Approval | None


class NodesBuilder(Noting):
    """Adds nodes. What is wrong with one is noted, and told when the workflow is built."""

    def __init__(self) -> None:
        super().__init__()
        self._nodes: list[Node] = []

    def add_agent(
        self,
        node_id: str,
        agent: AgentLike,
        *,
        output_key: str | None = None,
        structured_output: Shape | None = None,
        structured_mode: Literal["native", "tool"] | None = None,
        union_output: Sequence[Shape] | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Add an agent as a node. What the order of adding means is nothing: edges say who acts after whom.

        It reads one of: `template`, a text with `{{key}}`, `{{node.key}}`, `{{input}}`; `input_key`, one such value;
        `reads="request"`; `reads="upstream"`, all that the nodes before it have said. Without any of them a first node
        reads the request, and one with a single node before it what that one has said.

        It writes what it says under `output_key`, or a value: `structured_output` is a pydantic model or a JSON schema,
        `union_output` several, of which the agent chooses one. `instructions` are added to those of the agent.

        When it fails it is tried as often as `retry` says, a number or a `Retry`, each time for `timeout` at most; then
        `on_error` counts: "stop", "skip_dependents", "isolate" or `fallback("node")`. With `approval` a person is asked
        before its output is used: True, what to ask, or an `Approval`.
        """
        output = self._output(node_id, output_key, structured_output, structured_mode, union_output)
        return self._add(node_id, agent, output, options)

    def add_router_agent(
        self,
        node_id: str,
        agent: AgentLike,
        *,
        handoffs: Mapping[str, str] | None = None,
        default_handoff: str | None = None,
        **options: Unpack[NodeOptions],
    ) -> Self:
        """Add an agent that chooses who acts next: by node when to choose it, as the model is told.

        The edges to these nodes are made by themselves. `with_handoff` and `with_default_handoff` right after this say
        the same. The default is who is chosen if the model chooses nobody.
        """
        targets = dict(handoffs) if isinstance(handoffs, Mapping) else handoffs or {}
        return self._add(node_id, agent, Handoffs(targets, default_handoff), options)

    def with_handoff(self, target: str, description: str) -> Self:
        """Let the router that was just added choose this node."""
        output = self._router("with_handoff")
        return self._rechoose(replace(output, targets={**output.targets, target: description}))

    def with_default_handoff(self, target: str) -> Self:
        """Say whom the router that was just added chooses if its model chooses nobody."""
        return self._rechoose(replace(self._router("with_default_handoff"), default=target))

    def _router(self, method: str) -> Handoffs:
        output = self._nodes[-1].output if self._nodes else None
        if not isinstance(output, Handoffs):
            raise AgentWorkflowBuildError(
                f"{method} is about the router that was just added, and that is none: call it right after "
                "add_router_agent"
            )
        return output

    def _rechoose(self, output: Handoffs) -> Self:
        self._nodes[-1] = replace(self._nodes[-1], output=output)
        return self

    def _add(self, node_id: str, agent: AgentLike, output: Output, options: NodeOptions) -> Self:
        _require_known(options)
        node = Node(
            id=node_id,
            agent=given_agent(agent),
            output=output,
            input_key=options.get("input_key"),
            template=options.get("template"),
            reads=options.get("reads"),
            instructions=options.get("instructions"),
            retry=self._retry(node_id, options.get("retry")),
            timeout=options.get("timeout"),
            on_error=self._on_error(node_id, options.get("on_error", "stop")),
            approval=_approval(options.get("approval")),
        )
        self._nodes.append(node)
        return self

    def _output(
        self, node_id: str, key: str | None, shape: Shape | None, mode: str | None, union: Sequence[Shape] | None
    ) -> Output:
        given = [name for name, value in _named(output_key=key, structured_output=shape, union_output=union) if value]
        if len(given) > 1:
            self._refuse(node_id, f"it is told what to put out by {' and '.join(given)}: give one of them")
        if mode is not None and shape is None:
            self._refuse(node_id, "structured_mode goes with structured_output: give both or none")
        if mode not in {None, "native", "tool"}:
            self._refuse(node_id, f"structured_mode is 'native' or 'tool', not {mode!r}")
        if shape is not None:
            return StructuredOutput(shape, "tool" if mode == "tool" else "native")
        if union is not None:
            # What is no list is told as such, with all else that is of the wrong kind.
            return UnionOutput(tuple(union) if isinstance(union, list | tuple) else cast("Any", union))
        return TextOutput() if key is None else TextOutput(key)

    def _retry(self, node_id: str, retry: Retry | int | None) -> Retry | None:
        if retry is None or isinstance(retry, Retry):
            return retry
        try:
            return Retry(retry)
        except (TypeError, ValueError) as error:
            return self._refuse(node_id, f"retry is a Retry or a number of attempts: {error}")

    def _on_error(self, node_id: str, given: OnErrorLike) -> OnError:
        if isinstance(given, OnError):
            return given
        if given not in ("stop", "skip_dependents", "isolate"):
            modes = ", ".join(repr(mode) for mode in get_args(ErrorMode) if mode != "fallback")
            self._refuse(node_id, f"on_error is {modes} or fallback('node'), not {told(given)}")
            return OnError()
        return OnError(given)

    def _refuse(self, node_id: str, problem: str) -> None:
        self._note(f"node {node_id!r}: {problem}")


def _approval(given: bool | str | Approval | None) -> Approval | None:  # noqa: FBT001 - it is what a user wrote
    if given is None or given is False:
        return None
    if given is True or isinstance(given, str):
        return Approval(None if given is True else given)
    # What is none is told as such, with all else that is of the wrong kind.
    return given


def _named(**given: object) -> list[tuple[str, object]]:
    return [(name, value is not None) for name, value in given.items()]


def _require_known(options: NodeOptions) -> None:
    unknown = [name for name in cast("Mapping[str, object]", options) if name not in NodeOptions.__annotations__]
    if unknown:
        known = ", ".join(NodeOptions.__annotations__)
        raise TypeError(f"a node has no option {unknown[0]!r}; it has {known}")
