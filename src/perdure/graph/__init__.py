"""The definition of a workflow: executors, handlers, edges, validation, signature."""
# pyright: reportUnusedImport=false

from perdure.graph.activation import (
    ABSENT,
    IfInterrupted,
    Numbering,
    RequestTerms,
    StepCall,
    Terms,
    activation_at_work,
    begin_step,
    current_activation,
    enter,
    in_function,
    intercept_steps,
    no_exit,
    require_no_exit,
    sharing,
    use_value,
)
from perdure.graph.context import SHARED_SCOPE, State, WorkflowContext, private_owner, private_scope
from perdure.graph.definition import (
    DEFAULT_MAX_ITERATIONS,
    Graph,
    Migration,
    OutputDesignation,
    OutputKind,
    Reducer,
    Rules,
    Upgrade,
    validate_workflow_graph,
)
from perdure.graph.edges import (
    INTERNAL_SOURCE_ID,
    Case,
    Default,
    Edge,
    EdgeCondition,
    EdgeGroup,
    FanInEdgeGroup,
    FanOutEdgeGroup,
    InternalEdgeGroup,
    MessageType,
    SelectionFunc,
    SingleEdgeGroup,
    SwitchCaseEdgeGroup,
    SwitchCaseEdgeGroupCase,
    SwitchCaseEdgeGroupDefault,
    TimersDue,
    WorkflowMessage,
    ask,
)
from perdure.graph.executors import (
    Dispatch,
    Executor,
    FunctionExecutor,
    Route,
    Shared,
    executor,
    handler_of,
    on_error_ways,
    require_no_result,
    response_handler_of,
    rewire,
    wiring,
)
from perdure.graph.handlers import HandlerTypes, handler, response_handler, split_types
from perdure.graph.policy import NO_POLICY, FailedMessage, Policy, Retry, policy_of
