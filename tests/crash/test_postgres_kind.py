"""PostgreSQL as a kind of storage for the resume suite: copies are equal and independent, and no schema is left."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest
from psycopg import sql
from tests.postgres_server import needs_postgres, shared_server

from perdure import Workflow, WorkflowBuilder, WorkflowContext, executor
from perdure.testing.resume import Chance, Kind, postgres_kind

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.storage import StoreStorage

pytestmark = needs_postgres

TABLES = ("runs", "checkpoints", "parts", "journal", "inbox", "events", "pruned", "owners", "schema_version")
SEQUENCES = ("tokens", "command_numbers", "checkpoints_sequence_seq", "journal_ordinal_seq", "events_batch_seq")


@executor(id="asker")
async def asker(text: str, ctx: WorkflowContext[Any, str]) -> None:
    await ctx.yield_output(text)


def workflow() -> Workflow:
    return WorkflowBuilder(name="asking", start_executor=asker).build()


@pytest.fixture
def kind() -> Kind:
    return postgres_kind(shared_server().dsn)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    return tmp_path / "source"


def opened(kind: Kind, directory: Path) -> StoreStorage:
    storage = kind.open(directory)
    assert not isinstance(storage, str)
    return storage


async def advance(kind: Kind, directory: Path) -> None:
    """Another turn of the run, and a message that nobody has taken yet."""
    async with opened(kind, directory) as storage:
        await workflow().run("go", run_id="r", checkpoint_storage=storage)
        await storage.send("r", "next")


def copy(kind: Kind, source: Path) -> Path:
    target = source.with_name("target")
    target.mkdir()
    assert kind.copy is not None
    kind.copy(source, target)
    return target


def content(directory: Path) -> dict[str, list[tuple[object, ...]]]:
    """Every row and every sequence of the schema."""
    schema = (directory / "schema").read_text("utf-8")
    with closing(shared_server().connect()) as connection:
        found = {
            name: connection.execute(sql.SQL("TABLE {}").format(sql.Identifier(schema, name))).fetchall()
            for name in TABLES
        }
        numbers = sql.SQL("SELECT last_value, is_called FROM {}")
        return found | {
            name: connection.execute(numbers.format(sql.Identifier(schema, name))).fetchall() for name in SEQUENCES
        }


async def test_a_copy_has_every_row_and_every_number_of_its_source(kind: Kind, source: Path) -> None:
    await advance(kind, source)
    there = content(source)
    assert all(there[name] for name in ("runs", "checkpoints", "parts", "inbox", "events"))
    assert content(copy(kind, source)) == there


async def test_what_becomes_of_a_copy_does_not_touch_its_source(kind: Kind, source: Path) -> None:
    await advance(kind, source)
    before, target = content(source), copy(kind, source)
    async with opened(kind, target) as storage:
        await workflow().run(run_id="r", checkpoint_storage=storage)
        assert len(await storage.list_checkpoint_ids()) > len(before["checkpoints"])
    assert content(source) == before


def test_of_a_directory_that_nobody_has_written_to_there_is_nothing_to_copy(kind: Kind, source: Path) -> None:
    opened(kind, source)
    target = copy(kind, source)
    assert (target / "schema").read_text("utf-8") != (source / "schema").read_text("utf-8")
    assert kind.clear is not None
    kind.clear(target)


@pytest.mark.parametrize("seed", ["1", "2", "3", "4"])
async def test_damage_is_in_one_checkpoint_or_in_one_blob(kind: Kind, source: Path, seed: str) -> None:
    await advance(kind, source)
    before = content(source)
    assert kind.spoil is not None
    told = kind.spoil(source, Chance(seed))
    after = content(source)
    changed = [(name, row) for name, rows in after.items() for row in rows if row not in before[name]]
    assert len(changed) == 1
    assert changed[0][0] in {"checkpoints", "parts"}
    assert told is not None
    assert repr(changed[0][0]) in told


async def test_a_schema_is_gone_when_it_is_cleared(kind: Kind, source: Path) -> None:
    await advance(kind, source)
    assert kind.clear is not None
    kind.clear(source)
    schema = (source / "schema").read_text("utf-8")
    with closing(shared_server().connect()) as connection:
        assert not connection.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", [schema]).fetchall()
