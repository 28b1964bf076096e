"""Drive one run: open it, run its supersteps, commit each, emit its events."""

from perdure.engine.activation import RUN_KWARGS_KEY, ActivationRecorder
from perdure.engine.blueprint import Blueprint
from perdure.engine.budget import BudgetTracker
from perdure.engine.call import ABSENT, Call
from perdure.engine.commit import ChildCommitter, status_of
from perdure.engine.events import FRAMEWORK, output_events
from perdure.engine.executor_state import ChangeDetector, load, restore_state, states_of, with_states
from perdure.engine.inbox import BY_DEADLINE, accepted
from perdure.engine.journal import STEP, Journal
from perdure.engine.lease import LOCAL_LEASES, is_read_elsewhere
from perdure.engine.loop import Closing, Events, RunLoop
from perdure.engine.recovery import LoadedRun, convert_values, fork, is_unfinished, rewind
from perdure.engine.routing import Routing, accepts, fan_ins_of, route
from perdure.engine.run_kwargs import GLOBAL_KWARGS_KEY
from perdure.engine.running_step import is_async, is_final, is_inside_step, step_key
from perdure.engine.session import Session, failure_of, final_state, input_digest, is_of_another_program
from perdure.engine.steps import NOT_DONE
from perdure.engine.tasks import OutOfTimeError, has_failed, within

__all__ = [
    "ABSENT",
    "BY_DEADLINE",
    "FRAMEWORK",
    "GLOBAL_KWARGS_KEY",
    "LOCAL_LEASES",
    "NOT_DONE",
    "RUN_KWARGS_KEY",
    "STEP",
    "ActivationRecorder",
    "Blueprint",
    "BudgetTracker",
    "Call",
    "ChangeDetector",
    "ChildCommitter",
    "Closing",
    "Events",
    "Journal",
    "LoadedRun",
    "OutOfTimeError",
    "Routing",
    "RunLoop",
    "Session",
    "accepted",
    "accepts",
    "convert_values",
    "failure_of",
    "fan_ins_of",
    "final_state",
    "fork",
    "has_failed",
    "input_digest",
    "is_async",
    "is_final",
    "is_inside_step",
    "is_of_another_program",
    "is_read_elsewhere",
    "is_unfinished",
    "load",
    "output_events",
    "restore_state",
    "rewind",
    "route",
    "states_of",
    "status_of",
    "step_key",
    "with_states",
    "within",
]
