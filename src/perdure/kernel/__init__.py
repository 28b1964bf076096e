"""Plan and fold a superstep: pure functions on frozen values, with no I/O and no clock."""

from perdure.kernel.effects import Activation, Done, Effects, Sent, Suspension, Told, Unrouted, Write
from perdure.kernel.moves import answer, begin_turn, expire, go_on, wake
from perdure.kernel.snapshot import (
    Answered,
    Cancelled,
    Delayed,
    Delivery,
    Limits,
    Moment,
    Output,
    Request,
    Snapshot,
    StateKey,
    Suspended,
)
from perdure.kernel.superstep import FanIn, conflicts, fold, home_of, plan, scope_of
from perdure.kernel.trail import CHUNK_LENGTH, Trail

__all__ = [
    "CHUNK_LENGTH",
    "Activation",
    "Answered",
    "Cancelled",
    "Delayed",
    "Delivery",
    "Done",
    "Effects",
    "FanIn",
    "Limits",
    "Moment",
    "Output",
    "Request",
    "Sent",
    "Snapshot",
    "StateKey",
    "Suspended",
    "Suspension",
    "Told",
    "Trail",
    "Unrouted",
    "Write",
    "answer",
    "begin_turn",
    "conflicts",
    "expire",
    "fold",
    "go_on",
    "home_of",
    "plan",
    "scope_of",
    "wake",
]
