"""Create and migrate the schema of a PostgreSQL store, and refuse schemas of other programs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from psycopg import sql

from perdure.errors import WorkflowCheckpointException
from perdure.storage.sql.database import migrations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from perdure.storage.postgres.target import Connection, Target

SERVER_VERSION_MIN = 130000
_VERSION_TABLE = "schema_version"
_VERSION_COLUMNS = ("application", "version")
_APPLICATION = "perdure"


def migrate(connection: Connection, target: Target) -> None:
    """Migrate the schema. Any number of processes may do so at once. Raises WorkflowCheckpointException."""
    _require_usable(connection, target)
    if _version(connection, target) == len(_migrations()):
        return
    with connection.transaction():
        # One process migrates. The others wait and find nothing left to do.
        connection.execute("SELECT pg_advisory_xact_lock(%s)", [target.key("migration")])
        if not _exists(connection, target.schema):
            connection.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(target.schema)))
        version = _version(connection, target)
        if version == 0:
            _create_version_table(connection, target)
        for script in _migrations()[version:]:
            connection.execute(script.encode())
        connection.execute("UPDATE schema_version SET version = %s", [len(_migrations())])


def _migrations() -> Sequence[str]:
    return migrations("postgres")


def _require_usable(connection: Connection, target: Target) -> None:
    version = connection.info.server_version
    if version < SERVER_VERSION_MIN:
        raise WorkflowCheckpointException(
            f"the server of {target.place!r} is PostgreSQL {version // 10000}; "
            f"use {SERVER_VERSION_MIN // 10000} or later"
        )
    encoding = connection.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise WorkflowCheckpointException(
            f"the database of {target.place!r} is encoded in {encoding}, which can't hold every text; "
            "use one that was created with ENCODING 'UTF8'"
        )


def _exists(connection: Connection, schema: str) -> bool:
    return connection.execute("SELECT 1 AS found FROM pg_namespace WHERE nspname = %s", [schema]).fetchone() is not None


def _version(connection: Connection, target: Target) -> int:
    """Return the number of the last migration, or 0. Raises WorkflowCheckpointException."""
    found = connection.execute(
        "SELECT column_name::TEXT AS name FROM information_schema.columns "
        "WHERE table_schema = %s AND table_name = %s ORDER BY column_name",
        [target.schema, _VERSION_TABLE],
    ).fetchall()
    if not found:
        return 0
    if tuple(row["name"] for row in found) != _VERSION_COLUMNS:
        raise _foreign(target, _VERSION_TABLE)
    row = connection.execute("SELECT application, version FROM schema_version").fetchone()
    if row is None or row["application"] != _APPLICATION:
        raise _foreign(target, _VERSION_TABLE)
    version = int(row["version"])
    if version > len(_migrations()):
        raise WorkflowCheckpointException(
            f"{target.place!r} has schema version {version}, this perdure knows {len(_migrations())}; "
            "upgrade perdure to open it"
        )
    return version


def _create_version_table(connection: Connection, target: Target) -> None:
    found = connection.execute(
        "SELECT table_name::TEXT AS name FROM information_schema.tables WHERE table_schema = %s ORDER BY table_name",
        [target.schema],
    ).fetchone()
    if found is not None:
        raise _foreign(target, str(found["name"]))
    connection.execute("CREATE TABLE schema_version (application TEXT NOT NULL, version BIGINT NOT NULL)")
    connection.execute("INSERT INTO schema_version (application, version) VALUES (%s, 0)", [_APPLICATION])


def _foreign(target: Target, table: str) -> WorkflowCheckpointException:
    return WorkflowCheckpointException(
        f"{target.place!r} has a table {table!r} of another program; choose another schema for the storage"
    )
