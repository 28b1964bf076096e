"""What the suite does with PostgreSQL: schemas that are made, copied, damaged and dropped. Needs the driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from perdure.clock import SystemClock
from perdure.storage import PostgresStore, StoreStorage
from perdure.storage.postgres.database import PostgresDatabase
from perdure.storage.postgres.schema import migrate
from perdure.storage.postgres.target import Target
from perdure.testing.resume.kill_points import writing

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    import psycopg

    from perdure.storage import Sync
    from perdure.storage.postgres.database import Pipelined
    from perdure.storage.postgres.target import Columns, Connection
    from perdure.testing.resume.kill_points import Chance

_FLIP: Final = 0x20
_LEASE_SECONDS: Final = 30.0
_FIRST: Final = "runs"
"""The table that others refer to."""

_WHOLE: Final = (("checkpoints", "header", "checkpoint_id"), ("parts", "data", "hash"))
"""What checkpoints are made of: table, column, and what a row is found by."""


class KillingPostgres(PostgresDatabase):
    """A database with points around each statement of a transaction, and around its end."""

    def execute(self, name: str, /, **values: object) -> psycopg.Cursor[Columns] | Pipelined:
        if self._held.connection is None:
            return super().execute(name, **values)
        with writing.operation(name):
            return super().execute(name, **values)

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        if rows:
            with writing.operation(name):
                super().execute_many(name, rows)

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Columns | None]:
        if not names:
            return []
        with writing.operation(names[0]):
            return super().execute_each(names, rows)

    @contextlib.contextmanager
    def transaction(
        self, sync: Sync = "as chosen", *, alone: bool = False, lazy: bool = False, pipelined: bool = False
    ) -> Generator[None]:
        whole = super().transaction(sync, alone=alone, lazy=lazy, pipelined=pipelined)
        with writing.operation("transaction"), whole:
            yield
            # All statements are done, and none of them counts yet.
            writing.point("before COMMIT")


def opened(dsn: str, directory: Path) -> StoreStorage:
    """The storage in the schema of a directory, with points at every statement."""
    schema = _schema_of(directory) or _name_schema(directory)
    return StoreStorage(PostgresStore(dsn, schema=schema, database=KillingPostgres))


def copied(dsn: str, source: Path, target: Path) -> None:
    """Let the directory of a copy have a schema of its own, with all that is in the one of the source."""
    old, new = _schema_of(source), _name_schema(target)
    if old is None:
        return
    with _connected(dsn, new) as connection, connection.transaction():
        # The server may be about to finish what a killed process has asked for: all of it is copied, or nothing.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if not _names(connection, "table", old):
            # Its first process was killed before there was anything.
            return
        migrate(connection, _target(dsn, new))
        for table in _names(connection, "table", old):
            connection.execute(_filled("ALTER TABLE {new} DISABLE TRIGGER USER", old, new, table))
            connection.execute(_filled("DELETE FROM {new}", old, new, table))
            connection.execute(_filled("INSERT INTO {new} OVERRIDING SYSTEM VALUE TABLE {old}", old, new, table))
            connection.execute(_filled("ALTER TABLE {new} ENABLE TRIGGER USER", old, new, table))
        for sequence in _names(connection, "sequence", old):
            numbers = "SELECT setval({named}::regclass, last_value, is_called) FROM {old}"
            connection.execute(_filled(numbers, old, new, sequence))


def spoiled(dsn: str, directory: Path, chance: Chance) -> str | None:
    """Flip a byte of a checkpoint's header or of a part; which."""
    schema = _schema_of(directory)
    if schema is None:
        return None
    with _connected(dsn, schema) as connection:
        spots = [(*place, row["key"]) for place in _WHOLE for row in _rows(connection, *place)]
        if not spots:
            return None
        table, column, key, found = chance.one_of(spots)
        connection.execute(
            sql.SQL(
                "UPDATE {table} SET {column} = set_byte({column}, length({column}) / 2, "
                "get_byte({column}, length({column}) / 2) # {flip}) WHERE {key} = {found}"
            ).format(
                table=sql.Identifier(table),
                column=sql.Identifier(column),
                key=sql.Identifier(key),
                found=sql.Literal(found),
                flip=sql.Literal(_FLIP),
            )
        )
    return f"a byte in the middle of {column!r} was flipped in schema {schema!r}, table {table!r}, {key} {found!r}"


def dropped(dsn: str, directory: Path) -> None:
    """Drop the schema of a directory."""
    schema = _schema_of(directory)
    if schema is not None:
        with _connected(dsn, schema) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _schema_of(directory: Path) -> str | None:
    file = directory / "schema"
    return file.read_text("utf-8") if file.exists() else None


def _name_schema(directory: Path) -> str:
    """Give a directory the name of a schema that is not there yet."""
    schema = f"resume_{SystemClock().new_id()}"
    aside = directory / schema
    aside.write_text(schema, encoding="utf-8")
    # Whoever is killed here has named one, or none.
    aside.replace(directory / "schema")
    return schema


def _target(dsn: str, schema: str) -> Target:
    return Target.of(dsn, schema, lease_seconds=_LEASE_SECONDS)


def _connected(dsn: str, schema: str) -> contextlib.closing[Connection]:
    return contextlib.closing(_target(dsn, schema).connect())


def _names(connection: Connection, kind: str, schema: str) -> list[str]:
    """The tables or sequences of a schema, first the table that others refer to."""
    relkind = {"table": "r", "sequence": "S"}[kind]
    rows = connection.execute(
        "SELECT relname::TEXT AS name FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)) "
        "AND relkind = %s ORDER BY relname <> %s, relname",
        [schema, relkind, _FIRST],
    )
    return [row["name"] for row in rows]


def _filled(statement: LiteralString, old: str, new: str, name: str) -> sql.Composed:
    names = {"old": sql.Identifier(old, name), "new": sql.Identifier(new, name)}
    return sql.SQL(statement).format(**names, named=sql.Literal(names["new"].as_string(None)))


def _rows(connection: Connection, table: str, column: str, key: str) -> list[Columns]:
    """What there is to be damaged in a table."""
    statement = sql.SQL("SELECT {key} AS key FROM {table} WHERE length({column}) > 0 ORDER BY {key}")
    names = {"table": sql.Identifier(table), "column": sql.Identifier(column), "key": sql.Identifier(key)}
    return connection.execute(statement.format(**names)).fetchall()
