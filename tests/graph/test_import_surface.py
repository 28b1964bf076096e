"""Names that can be imported from `perdure`."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import perdure
from perdure import errors, exceptions

OFFERED = {
    "DEFAULT_MAX_ITERATIONS INTERNAL_SOURCE_ID Workflow WorkflowBuilder WorkflowRunResult WorkflowViz ResponseStream",
    "Executor FunctionExecutor WorkflowContext WorkflowExecutor executor handler response_handler",
    "SubWorkflowRequestMessage SubWorkflowResponseMessage WorkflowMessage",
    "Case Default Edge EdgeCondition SingleEdgeGroup FanOutEdgeGroup FanInEdgeGroup SwitchCaseEdgeGroup",
    "SwitchCaseEdgeGroupCase SwitchCaseEdgeGroupDefault",
    "WorkflowEvent WorkflowEventType WorkflowEventSource WorkflowRunState WorkflowErrorDetails",
    "WorkflowCheckpoint CheckpointID CheckpointStorage InMemoryCheckpointStorage FileCheckpointStorage",
    "validate_workflow_graph ValidationTypeEnum WorkflowValidationError EdgeDuplicationError TypeCompatibilityError",
    "GraphConnectivityError WorkflowException WorkflowRunnerException WorkflowConvergenceException",
    "WorkflowCheckpointException AgentFrameworkException",
    "Agent BaseAgent SupportsAgentRun AgentExecutor AgentExecutorRequest AgentExecutorResponse resolve_agent_id",
    "WorkflowAgent Message Content AgentResponse AgentResponseUpdate ChatResponse ChatResponseUpdate UsageDetails",
    "AgentSession SessionContext ContextProvider HistoryProvider InMemoryHistoryProvider",
    "tool FunctionTool FunctionInvocationContext FunctionInvocationLayer BaseChatClient SupportsChatGetResponse",
    "ChatMiddlewareLayer ChatTelemetryLayer AgentMiddleware FunctionMiddleware ChatMiddleware AgentContext ChatContext",
    "agent_middleware function_middleware chat_middleware MiddlewareTermination",
    "workflow step RunContext StepWrapper FunctionalWorkflow FunctionalWorkflowAgent get_run_context",
    "FunctionalWorkflowDefinition register_checkpoint_type FinishReason FinishReasonLiteral ServiceSessionId",
    "AgentMiddlewareTypes ChatMiddlewareTypes FunctionMiddlewareTypes ChatAndFunctionMiddlewareTypes MiddlewareTypes",
    "AgentExecutorCheckpointState FileHistoryProvider MiddlewareBundle MiddlewareFailure ResponseInvalidatedException",
    "AgentException AgentInvalidRequestException AgentInvalidResponseException ToolException ContentError",
}
NAMES = sorted(name for row in OFFERED for name in row.split())

NOT_OFFERED = [*("Runner", "RunnerContext", "InProcRunnerContext", "create_edge_runner"), "evaluate_workflow"]


def test_documented_names_can_be_imported_from_the_package() -> None:
    assert [name for name in NAMES if name not in perdure.__all__] == []
    assert [name for name in NAMES if not hasattr(perdure, name)] == []


def test_every_listed_name_exists_and_is_listed_once() -> None:
    assert len(set(perdure.__all__)) == len(perdure.__all__)
    assert [name for name in perdure.__all__ if not hasattr(perdure, name)] == []


def test_names_of_a_mutable_engine_or_of_another_layer_are_not_offered() -> None:
    assert [name for name in NOT_OFFERED if name in perdure.__all__] == []


def test_a_hundred_supersteps_are_the_default_limit() -> None:
    assert perdure.DEFAULT_MAX_ITERATIONS == 100


def test_a_checkpoint_id_is_a_str() -> None:
    assert perdure.CheckpointID is str


def test_the_outside_is_the_internal_source_of_an_executor() -> None:
    assert perdure.INTERNAL_SOURCE_ID("a") == "internal:a"


def test_importing_the_package_loads_no_heavy_library() -> None:
    script = "import sys, perdure; print([m for m in ('pydantic', 'graphviz', 'rich') if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


E: Any = perdure

TREE = [
    (E.WorkflowException, E.AgentFrameworkException),
    (E.WorkflowRunnerException, E.WorkflowException),
    (E.WorkflowConvergenceException, E.WorkflowRunnerException),
    (E.WorkflowCheckpointException, E.WorkflowRunnerException),
    (E.WorkflowValidationError, E.WorkflowException),
    (E.EdgeDuplicationError, E.WorkflowValidationError),
    (E.TypeCompatibilityError, E.WorkflowValidationError),
    (E.GraphConnectivityError, E.WorkflowValidationError),
    (E.RunUnfinishedError, RuntimeError),
    (E.RunUnfinishedError, E.WorkflowException),
    (E.UnknownRequestError, ValueError),
    (E.UnknownRequestError, RuntimeError),
    (E.AnswerTypeError, ValueError),
    (E.AlreadyAnsweredError, ValueError),
    (E.CheckpointNotFoundError, E.WorkflowCheckpointException),
    (E.IncompatibleGraphError, E.WorkflowCheckpointException),
    (E.RunBusyError, E.WorkflowException),
    (E.RunExistsError, ValueError),
    (E.RunNotFoundError, ValueError),
    (E.MissingRunKwargsError, ValueError),
    (E.EncodeError, TypeError),
]


def test_errors_derive_from_those_that_the_reference_raises_there() -> None:
    assert [(error, base) for error, base in TREE if not issubclass(error, base)] == []
    assert [error for error, _ in TREE if not issubclass(error, perdure.AgentFrameworkException)] == []


def test_an_error_keeps_its_inner_exception_and_is_caused_by_it() -> None:
    inner = ValueError("deep")
    error = perdure.WorkflowException("shallow", inner)
    assert (str(error), error.inner_exception, error.__cause__) == ("shallow", inner, inner)


def test_a_validation_error_begins_with_its_type() -> None:
    error = perdure.GraphConnectivityError("lost")
    assert str(error) == "[GRAPH_CONNECTIVITY] lost"
    assert error.message == "lost"
    assert error.validation_type is perdure.ValidationTypeEnum.GRAPH_CONNECTIVITY


def test_the_validation_types_are_named_as_they_are_valued() -> None:
    assert {member.name for member in perdure.ValidationTypeEnum} == {
        *("EDGE_DUPLICATION", "EXECUTOR_DUPLICATION", "TYPE_COMPATIBILITY"),
        *("GRAPH_CONNECTIVITY", "HANDLER_OUTPUT_ANNOTATION", "OUTPUT_VALIDATION"),
    }
    assert all(member.name == member.value for member in perdure.ValidationTypeEnum)


def test_every_error_can_be_imported_from_the_module_that_the_reference_has_for_errors() -> None:
    public = {
        name: value
        for name, value in vars(errors).items()
        if isinstance(value, type) and value.__module__ == errors.__name__
    }
    assert {name: getattr(exceptions, name, None) for name in public} == public


def test_former_names_of_errors_still_work() -> None:
    assert errors.ClaimLostError is errors.LeaseLostError
    assert errors.PartDamagedError is errors.BlobDamagedError
    assert errors.RunParkedError is errors.RunQuarantinedError


def test_a_lost_lease_does_not_claim_that_nothing_was_written() -> None:
    assert "nothing more was written" in str(errors.LeaseLostError("r", owner="another"))


def test_the_version_is_that_of_the_project() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert perdure.__version__ == project["version"]
    assert "__version__" in perdure.__all__
