"""Every store that we ship, against the suite that we ship."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from perdure.stores.file import FileStore
from perdure.stores.memory import MemoryStore
from perdure.stores.sqlite import SqliteStore
from perdure.testing.stores import StoreConformance

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Retention
    from perdure.stores.port import Store


class TestMemoryStore(StoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        return MemoryStore(retention=retention, clock=clock)


class TestSqliteStore(StoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        return SqliteStore(directory / "runs.db", retention=retention, clock=clock)


class TestFileStore(StoreConformance):
    @override
    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        return FileStore(directory / "runs", retention=retention, clock=clock)
