"""Plan and fold a superstep: pure functions on frozen values, with no I/O and no clock."""
# pyright: reportUnusedImport=false

from perdure.kernel.moves import answer, begin_turn, expire, receive, reopen, revoke_cancel, wake
from perdure.kernel.snapshot import (
    CHUNK_LENGTH,
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
    Trail,
)
from perdure.kernel.superstep import (
    Activation,
    ActivationResult,
    Conflict,
    Effects,
    FanIn,
    PendingEvent,
    RoutedMessage,
    Suspension,
    UnroutedMessage,
    Write,
    activation_id_of,
    conflicts,
    fold,
    plan,
    scope_of,
)
