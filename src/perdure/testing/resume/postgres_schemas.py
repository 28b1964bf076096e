"""Schemas of the suite in PostgreSQL: open, copy, damage and drop them. Needs the driver."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, LiteralString

from psycopg import sql

from perdure.clock import SystemClock
from perdure.storage import PostgresStore, StoreStorage
from perdure.storage.postgres.database import PostgresDatabase
from perdure.storage.postgres.target import Columns, Connection, Target, migrate
from perdure.testing.resume.storage_kinds import DatabaseKillPoints

if TYPE_CHECKING:
    from pathlib import Path

    from perdure.testing.resume.kill_points import Chance

_FLIP: Final = 0x20
_LEASE_SECONDS: Final = 30.0
# The table that other tables refer to.
_FIRST_TABLE: Final = "runs"
# Stored bytes of checkpoints: table, column, key.
_DAMAGE_TARGETS: Final = (("checkpoints", "header", "checkpoint_id"), ("parts", "data", "hash"))


class KillingPostgresDatabase(DatabaseKillPoints, PostgresDatabase):
    """A PostgreSQL database with kill points."""


def open_storage(dsn: str, directory: Path) -> StoreStorage:
    """Open the storage of a directory's schema, with kill points at every statement."""
    schema = _read_schema(directory) or _name_schema(directory)
    return StoreStorage(PostgresStore(dsn, schema=schema, database=KillingPostgresDatabase))


def copy_schema(dsn: str, source: Path, target: Path) -> None:
    """Give the target directory its own schema with a copy of the source's data."""
    old, new = _read_schema(source), _name_schema(target)
    if old is None:
        return
    with _connect(dsn, new) as connection, connection.transaction():
        # The server may still be finishing a statement of a killed process: copy all of it or nothing.
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if not _names(connection, "table", old):
            # The first process was killed before it made any table.
            return
        migrate(connection, _target(dsn, new))
        for table in _names(connection, "table", old):
            connection.execute(_format("ALTER TABLE {new} DISABLE TRIGGER USER", old, new, table))
            connection.execute(_format("DELETE FROM {new}", old, new, table))
            connection.execute(_format("INSERT INTO {new} OVERRIDING SYSTEM VALUE TABLE {old}", old, new, table))
            connection.execute(_format("ALTER TABLE {new} ENABLE TRIGGER USER", old, new, table))
        for sequence in _names(connection, "sequence", old):
            numbers = "SELECT setval({named}::regclass, last_value, is_called) FROM {old}"
            connection.execute(_format(numbers, old, new, sequence))


def damage(dsn: str, directory: Path, chance: Chance) -> str | None:
    """Flip a byte of a checkpoint's header or of a blob. Return a description, or None if there is no data."""
    schema = _read_schema(directory)
    if schema is None:
        return None
    with _connect(dsn, schema) as connection:
        places = [(*place, row["key"]) for place in _DAMAGE_TARGETS for row in _find_rows(connection, *place)]
        if not places:
            return None
        table, column, key, found = chance.one_of(places)
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


def drop_schema(dsn: str, directory: Path) -> None:
    """Drop the schema of a directory."""
    schema = _read_schema(directory)
    if schema is not None:
        with _connect(dsn, schema) as connection:
            connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(schema)))


def _read_schema(directory: Path) -> str | None:
    file = directory / "schema"
    return file.read_text("utf-8") if file.exists() else None


def _name_schema(directory: Path) -> str:
    """Write the name of a new schema into a directory."""
    schema = f"resume_{SystemClock().new_id()}"
    aside = directory / schema
    aside.write_text(schema, encoding="utf-8")
    # The rename is atomic: a kill leaves a complete name or none.
    aside.replace(directory / "schema")
    return schema


def _target(dsn: str, schema: str) -> Target:
    return Target.of(dsn, schema, lease_seconds=_LEASE_SECONDS)


def _connect(dsn: str, schema: str) -> contextlib.closing[Connection]:
    return contextlib.closing(_target(dsn, schema).connect())


def _names(connection: Connection, kind: str, schema: str) -> list[str]:
    """Return the tables or sequences of a schema. The table that others refer to comes first."""
    relkind = {"table": "r", "sequence": "S"}[kind]
    rows = connection.execute(
        "SELECT relname::TEXT AS name FROM pg_class WHERE relnamespace = to_regnamespace(quote_ident(%s)) "
        "AND relkind = %s ORDER BY relname <> %s, relname",
        [schema, relkind, _FIRST_TABLE],
    )
    return [row["name"] for row in rows]


def _format(statement: LiteralString, old: str, new: str, name: str) -> sql.Composed:
    names = {"old": sql.Identifier(old, name), "new": sql.Identifier(new, name)}
    return sql.SQL(statement).format(**names, named=sql.Literal(names["new"].as_string(None)))


def _find_rows(connection: Connection, table: str, column: str, key: str) -> list[Columns]:
    """Return the rows of a table that can be damaged."""
    statement = sql.SQL("SELECT {key} AS key FROM {table} WHERE length({column}) > 0 ORDER BY {key}")
    names = {"table": sql.Identifier(table), "column": sql.Identifier(column), "key": sql.Identifier(key)}
    return connection.execute(statement.format(**names)).fetchall()
