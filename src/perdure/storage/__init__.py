"""Storage of runs: the public storages, the storage port, and the stores that ship with perdure."""

from perdure.storage.binding import Binding, bind, clock_on, given_storage, open_storage
from perdure.storage.check import Damage, DamageKind
from perdure.storage.checkpoint_storage import CheckpointID, CheckpointStorage
from perdure.storage.disk import Disk, Stamp
from perdure.storage.file import FileStore
from perdure.storage.hosts import HostInfo, HostListStore, Hosts, knows_hosts
from perdure.storage.owners import this_process
from perdure.storage.port import (
    Durability,
    HostStore,
    Openings,
    Store,
    Subscription,
    TenantStore,
    is_host_store,
    reads_at_once,
)
from perdure.storage.postgres import PostgresStore
from perdure.storage.requests import PendingRequest, RequestQueue
from perdure.storage.rules import RUN_ID_LENGTH_MAX, require_run_id
from perdure.storage.runs import Order, RunFilter, RunInfo, count_runs, list_runs, run_query, tags_text
from perdure.storage.sizes import PartSize, SizeReport
from perdure.storage.sql.database import Sync
from perdure.storage.sqlite import MemoryStore, SqliteStore
from perdure.storage.sqlite.database import SqliteDatabase
from perdure.storage.storages import (
    FileCheckpointStorage,
    InMemoryCheckpointStorage,
    PostgresCheckpointStorage,
    SqliteCheckpointStorage,
    StoreStorage,
    committed_events,
)
from perdure.storage.views import Change, CheckpointDiff, CheckpointView, PendingMessage, RunDiff, SnapshotView

__all__ = [
    "RUN_ID_LENGTH_MAX",
    "Binding",
    "Change",
    "CheckpointDiff",
    "CheckpointID",
    "CheckpointStorage",
    "CheckpointView",
    "Damage",
    "DamageKind",
    "Disk",
    "Durability",
    "FileCheckpointStorage",
    "FileStore",
    "HostInfo",
    "HostListStore",
    "HostStore",
    "Hosts",
    "InMemoryCheckpointStorage",
    "MemoryStore",
    "Openings",
    "Order",
    "PartSize",
    "PendingMessage",
    "PendingRequest",
    "PostgresCheckpointStorage",
    "PostgresStore",
    "RequestQueue",
    "RunDiff",
    "RunFilter",
    "RunInfo",
    "SizeReport",
    "SnapshotView",
    "SqliteCheckpointStorage",
    "SqliteDatabase",
    "SqliteStore",
    "Stamp",
    "Store",
    "StoreStorage",
    "Subscription",
    "Sync",
    "TenantStore",
    "bind",
    "clock_on",
    "committed_events",
    "count_runs",
    "given_storage",
    "is_host_store",
    "knows_hosts",
    "list_runs",
    "open_storage",
    "reads_at_once",
    "require_run_id",
    "run_query",
    "tags_text",
    "this_process",
]
