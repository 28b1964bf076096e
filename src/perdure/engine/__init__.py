"""Drive one run: open it, run its supersteps, commit each, emit its events."""
# pyright: reportUnusedImport=false

from perdure.engine.activation import ActivationRecorder
from perdure.engine.call import (
    GLOBAL_KWARGS_KEY,
    Call,
    InvocationKwargs,
    WorkflowInvocationKwargs,
    kwargs_for_child,
    kwargs_of_executor,
    resolve_kwargs,
    storable_kwargs,
)
from perdure.engine.commit import FRAMEWORK, ChildCommitter, output_events, status_of, take_over_events
from perdure.engine.inbox import BY_DEADLINE, accepted
from perdure.engine.journal import STEP, Journal
from perdure.engine.lifecycle import log_run, run_failed, warnings_emitted
from perdure.engine.local_lock import is_read_elsewhere, lock_run, with_initial_states
from perdure.engine.loop import Closing, Events, RunLoop
from perdure.engine.questions import terms_of
from perdure.engine.recovery import Blueprint, LoadedRun, convert_values, fork, is_unfinished, rewind
from perdure.engine.routing import Routing, accepts, fan_ins_of, route
from perdure.engine.session import Session, failure_of, final_state, input_digest, is_of_another_program
from perdure.engine.state import RUN_KWARGS_KEY, BudgetTracker, ChangeDetector, load
from perdure.engine.steps import NOT_DONE
from perdure.engine.tasks import finished, in_thread, is_async, is_final, is_inside_step, step_key, within
from perdure.graph import ABSENT
