"""A run as a manifest of blobs: checkpoints, journal records, commands and events as bytes."""
# pyright: reportUnusedImport=false

from perdure.checkpoint.answer_check import check_against
from perdure.checkpoint.archive import (
    PRODUCT,
    NewerExportError,
    NoExportError,
    closing_note,
    halt_before,
    lines_of,
    read_archive,
)
from perdure.checkpoint.commands import (
    AnswerCommand,
    AnyCommand,
    BudgetCommand,
    CancelCommand,
    MessageCommand,
    answer_command,
    answer_id,
    budget_command,
    cancel_command,
    check_budget,
    coerce,
    is_same_answer,
    message_command,
    read_command,
    shown,
)
from perdure.checkpoint.compatibility import CompatibilityReport, compare, migrate
from perdure.checkpoint.documents import read_request
from perdure.checkpoint.events import EventReader, event_batch, plain_data
from perdure.checkpoint.import_check import DamagedExportError, require_whole
from perdure.checkpoint.journal import (
    AskedRecord,
    AttemptsRecord,
    InterruptedStep,
    JournalReader,
    RaisedRecord,
    StepDecision,
    StepRecord,
    activation_record,
    call_digest,
    events_record,
    fields_of,
    plain_record,
    snapshot_record,
    stored_of,
    value_digest,
)
from perdure.checkpoint.manifest import (
    Reader,
    WrittenCheckpoint,
    entries_of,
    header_of,
    is_settled,
    known_paths,
    naming,
    only,
    origin_of,
    require_graph,
    trace_of,
)
from perdure.checkpoint.record import (
    EXECUTOR_STATE_KEY,
    SAVED_FIELDS_PATH,
    VALUE_FIELDS,
    WORKFLOW_RUN_KWARGS_KEY,
    Source,
    StoredCheckpoint,
    WorkflowCheckpoint,
    request_event,
    saved_fields,
)
from perdure.checkpoint.writer import Author, CheckpointWriter
