"""Drive one run: open it, run its supersteps, commit each, emit its events."""

from perdure.engine.activation import FRAMEWORK, ActivationRecorder
from perdure.engine.answers import accepted
from perdure.engine.blueprint import Blueprint
from perdure.engine.branches import branch_place, trunk
from perdure.engine.call import ABSENT, Call
from perdure.engine.closing import Closing
from perdure.engine.driver import Driver, Events
from perdure.engine.failing import failure_of, is_of_another_program
from perdure.engine.flight import is_async, is_inside_step, step_key
from perdure.engine.instances import Drift, load, restore_state, states_of, with_states
from perdure.engine.journal import STEP, ChildLedger, Journal
from perdure.engine.kwargs import GLOBAL_KWARGS_KEY
from perdure.engine.ledger import status_of
from perdure.engine.narration import output_events
from perdure.engine.opening import Tenure, is_unfinished
from perdure.engine.outside import BY_DEADLINE, fan_ins_of
from perdure.engine.parking import OutOfTimeError, has_failed, within
from perdure.engine.presence import PRESENCE, is_read_elsewhere
from perdure.engine.reading import compared
from perdure.engine.routing import accepts
from perdure.engine.session import Session, final_state, input_digest
from perdure.engine.staging import RUN_KWARGS_KEY
from perdure.engine.steps import NOT_DONE
from perdure.engine.tries import is_final

__all__ = [
    "ABSENT",
    "BY_DEADLINE",
    "FRAMEWORK",
    "GLOBAL_KWARGS_KEY",
    "NOT_DONE",
    "PRESENCE",
    "RUN_KWARGS_KEY",
    "STEP",
    "ActivationRecorder",
    "Blueprint",
    "Call",
    "ChildLedger",
    "Closing",
    "Drift",
    "Driver",
    "Events",
    "Journal",
    "OutOfTimeError",
    "Session",
    "Tenure",
    "accepted",
    "accepts",
    "branch_place",
    "compared",
    "failure_of",
    "fan_ins_of",
    "final_state",
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
    "states_of",
    "status_of",
    "step_key",
    "trunk",
    "with_states",
    "within",
]
