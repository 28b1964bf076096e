"""Every class of perdure that can be stored has a pinned name, and the name leads back to the class."""

from __future__ import annotations

import base64
import importlib
import json
import pickle
import pkgutil
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import typing_extensions
from pydantic import BaseModel

import perdure
from perdure import Executor, Log, WorkflowBuilder, WorkflowContext, WorkflowEvent, handler
from perdure.codec import Codec, Trust, reachable
from perdure.codec.trust import is_data_type, registration
from perdure.graph.executors import discover
from perdure.stored_names import STORED_NAMES, find_pinned, pinned_name
from perdure.typenames import describe_stored, dotted_name, type_name, type_named

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest

# What users import. A data class that is exported here can stand in the annotations of their handlers.
FRONTS = (
    "perdure",
    "perdure.agent_workflows",
    "perdure.exceptions",
    "perdure.foundry",
    "perdure.mcp",
    "perdure.models",
    "perdure.observability",
    "perdure.openai",
    "perdure.orchestrations",
    "perdure.threads",
)

# Classes that are registered under names of their own. Stored data has these names: never change or remove one.
REGISTERED = {
    "perdure.checkpoint.steps:InterruptedStep",
    "perdure.checkpoint.steps:StepDecision",
    "perdure.events:CheckpointInfo",
    "perdure.events:StepInfo",
    "perdure.events:SuperstepInfo",
    "perdure.events:TakenOver",
    "perdure.events:UndeliveredMessage",
    "perdure.events:WorkflowErrorDetails",
    "perdure.events:WorkflowEvent",
    "perdure.events:WorkflowEventSource",
    "perdure.events:WorkflowRunState",
    "perdure.failures:Failure",
    "perdure.functional.steps:StepOutcome",
    "perdure.graph.messages:MessageType",
    "perdure.graph.messages:WorkflowMessage",
    "perdure.graph.policy:FailedMessage",
    "perdure:AgentExecutorRequest",
    "perdure:AgentExecutorResponse",
    "perdure:AgentRequestInfoResponse",
    "perdure:AgentResponse",
    "perdure:AgentResponseUpdate",
    "perdure:AgentSession",
    "perdure:AgentWorkflowActing",
    "perdure:AgentWorkflowGoOn",
    "perdure:AgentWorkflowPast",
    "perdure:AgentWorkflowRecord",
    "perdure:AgentWorkflowResult",
    "perdure:AgentWorkflowSaid",
    "perdure:AgentWorkflowTask",
    "perdure:ChatResponse",
    "perdure:ChatResponseUpdate",
    "perdure:Content",
    "perdure:GroupChatParticipantMessage",
    "perdure:GroupChatRequestMessage",
    "perdure:GroupChatRequestSentEvent",
    "perdure:GroupChatResponseMessage",
    "perdure:GroupChatResponseReceivedEvent",
    "perdure:HandoffAgentUserRequest",
    "perdure:HandoffSentEvent",
    "perdure:MagenticContext",
    "perdure:MagenticOrchestratorEvent",
    "perdure:MagenticOrchestratorEventType",
    "perdure:MagenticPlanReviewRequest",
    "perdure:MagenticPlanReviewResponse",
    "perdure:MagenticProgressLedger",
    "perdure:MagenticProgressLedgerItem",
    "perdure:MagenticResetSignal",
    "perdure:MagenticState",
    "perdure:MagenticTaskLedger",
    "perdure:Message",
    "perdure:NodeApprovalRequest",
    "perdure:NodeApprovalResponse",
    "perdure:NodeResult",
    "perdure:NodeTask",
    "perdure:SessionRecord",
    "perdure:TooLateResponse",
    "perdure:Unheard",
    "perdure:WorkflowAgentCompletedEvent",
    "perdure:WorkflowAgentSkippedEvent",
    "perdure:WorkflowAgentStartedEvent",
    "perdure:WorkflowCompletedEvent",
    "perdure:WorkflowDiagnosticEvent",
    "perdure:WorkflowEdgeTraversedEvent",
    "perdure:WorkflowLayerCompletedEvent",
    "perdure:WorkflowLayerStartedEvent",
    "perdure:WorkflowStartedEvent",
}


def _is_ours(cls: type) -> bool:
    """Say whether a class belongs to the library; `perdure.testing` stores nothing that lasts."""
    return cls.__module__.partition(".")[0] == "perdure" and not cls.__module__.startswith("perdure.testing")


def _nested(cls: type) -> Iterator[type]:
    yield cls
    for value in vars(cls).values():
        if (
            isinstance(value, type)
            and value.__module__ == cls.__module__
            and value.__qualname__.startswith(cls.__qualname__ + ".")
        ):
            yield from _nested(value)


def _all_classes() -> set[type]:
    """Import all of perdure and return the classes that it defines."""
    names = ["perdure", *(each.name for each in pkgutil.walk_packages(perdure.__path__, "perdure."))]
    modules = [importlib.import_module(name) for name in names]
    found = {
        nested
        for module in modules
        for value in list(vars(module).values())
        if isinstance(value, type) and value.__module__ == module.__name__
        for nested in _nested(value)
    }
    return {cls for cls in found if _is_ours(cls)}


def _is_data(cls: type) -> bool:
    return is_data_type(cls) or typing_extensions.is_typeddict(cls)


def _storable() -> set[type]:
    """Return the classes whose names can stand in a store.

    These are: executors (in signatures), registered classes, and data classes that are public, or that a handler of
    ours takes, sends or yields, or that stand in the fields of one of these.
    """
    classes = _all_classes()
    executors = {cls for cls in classes if issubclass(cls, Executor)}
    roots: list[object] = [
        value
        for front in map(importlib.import_module, FRONTS)
        for name in getattr(front, "__all__", dir(front))
        if isinstance(value := getattr(front, name), type)
    ]
    for executor in executors:
        for route in discover(executor).routes:
            roots.extend((*route.types.takes, *route.types.sends, *route.types.yields))
    data = {cls for cls in reachable(roots).values() if _is_ours(cls) and _is_data(cls)}
    return executors | data | {cls for cls in classes if registration(cls) is not None} | {Log}


def test_every_class_that_can_be_stored_is_pinned() -> None:
    missing = sorted(f"{cls.__module__}:{cls.__qualname__}" for cls in _storable() if pinned_name(cls) is None)
    assert not missing, (
        f"{missing} can be stored and have no pinned name: add each to STORED_NAMES in perdure/stored_names.py, under "
        "the name that it is first released with; for a class that was renamed, add its former name: Present=Former"
    )


def test_every_pinned_name_leads_back_to_its_class() -> None:
    storable = _storable()
    for cls in storable:
        assert find_pinned(type_name(cls)) is cls
        assert type_named(dotted_name(cls)) is cls
        assert Trust.of(allowed=[type_name(cls)]).lookup(type_name(cls)) is cls
    pinned = {name for cls in storable if (name := pinned_name(cls))}
    assert len(pinned) == len(STORED_NAMES), (
        "STORED_NAMES has names whose class is gone; stored data may still have them: keep the class, or let its "
        "successor have the name"
    )


def test_no_other_class_takes_a_pinned_name() -> None:
    storable = _storable()
    names = Counter(type_name(cls) for cls in _all_classes() if cls in storable or _is_data(cls))
    shared = sorted(name for name, count in names.items() if count > 1)
    assert not shared, (
        f"several classes would be stored as {shared}: rename the new one, or write the package before the key in "
        "STORED_NAMES, as in 'graph:Edge'"
    )


def test_registered_names_stay() -> None:
    found = {entry.name for cls in _all_classes() if (entry := registration(cls)) is not None}
    assert found == REGISTERED, "stored data has these names: never change or remove one; add new ones to this list"


class Edge(BaseModel):
    """Has the qualname of a pinned class, and is a class of a user."""


class AgentExecutor(Executor):
    """Has the name of an executor of ours."""

    @handler
    async def go(self, text: str, ctx: WorkflowContext[Any, str]) -> None:
        await ctx.yield_output(text)


def test_classes_of_users_keep_their_own_names() -> None:
    workflow = WorkflowBuilder(start_executor=AgentExecutor(id="a")).build()
    assert pinned_name(Edge) is None
    assert type_name(Edge) == f"{__name__}:Edge"
    assert dotted_name(Edge) == f"{__name__}.Edge"
    assert workflow.graph.signature["executors"] == {"a": f"{__name__}.AgentExecutor"}


def test_a_moved_class_keeps_the_name_it_was_released_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perdure.Retry, "__module__", "perdure.somewhere.else_now")
    assert type_name(perdure.Retry) == "perdure.graph.policy:Retry"
    assert dotted_name(perdure.Retry) == "perdure.graph.policy.Retry"
    assert type_named("perdure.graph.policy.Retry") is perdure.Retry


def test_a_renamed_class_keeps_the_name_it_was_released_with(monkeypatch: pytest.MonkeyPatch) -> None:
    renamed = type("TryAgain", (), {"__module__": "perdure.graph.policy"})
    monkeypatch.setattr("perdure.graph.policy.TryAgain", renamed, raising=False)
    monkeypatch.delitem(STORED_NAMES, "Retry")
    monkeypatch.setitem(STORED_NAMES, "TryAgain", "perdure.graph.former:Retry")
    assert type_name(renamed) == "perdure.graph.former:Retry"
    assert describe_stored(list[renamed]) == "list[Retry]"
    assert type_named("perdure.graph.former.Retry") is renamed
    assert Trust.of(allowed=["perdure.graph.former:Retry"]).lookup("perdure.graph.former:Retry") is renamed


def test_a_request_written_under_another_module_is_read() -> None:
    question = perdure.SubWorkflowRequestMessage(WorkflowEvent.request_info("r", "e", "?", str), "sub")
    written = WorkflowEvent.request_info("q", "e", question, perdure.SubWorkflowResponseMessage).to_dict()
    for name in ("request_type", "response_type"):
        written[name] = written[name].replace("perdure.workflow.sub.", "perdure.workflows.sub.")
    read = WorkflowEvent[Any].from_dict(written)
    assert read.response_type is perdure.SubWorkflowResponseMessage


def test_a_pickle_from_before_a_class_moved_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    data = pickle.dumps(perdure.KeepLast, protocol=0)
    data = data.replace(perdure.KeepLast.__module__.encode(), b"perdure.retired")
    monkeypatch.setitem(STORED_NAMES, "KeepLast", "perdure.retired")
    text = json.dumps({"~": "pickle", "type": "builtins:type", "base64": base64.b64encode(data).decode()})
    codec = Codec(Trust.of(), allow_pickle=True)
    assert codec.decode(text.encode(), {}, path="pickled") is perdure.KeepLast


def test_looking_up_a_name_imports_nothing() -> None:
    look = (
        "import sys; from perdure.stored_names import find_pinned; before = set(sys.modules);"
        "assert find_pinned('perdure.orchestrations.magentic_orchestrator:MagenticOrchestrator') is None;"
        "assert find_pinned('perdure.nowhere:Nothing') is None; assert find_pinned('os:system') is None;"
        "assert set(sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", look], check=True)
