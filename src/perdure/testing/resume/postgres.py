"""PostgreSQL as a kind of storage for the suite: a schema for each run."""

from __future__ import annotations

from functools import partial

from perdure.testing.resume.kinds import Kind


def postgres_kind(dsn: str) -> Kind:
    """Storages in schemas of their own in the database of a connection string. They are dropped in the end.

    Needs `pip install 'perdure[postgres]'`, and a role that may create schemas. A directory holds the name of its
    schema, in the file `schema`.
    """
    # What is imported here is there in each life, which is forked from this process.
    from perdure.testing.resume import postgres_schemas as schemas  # noqa: PLC0415 - the driver comes with an extra

    return Kind(
        partial(schemas.opened, dsn),
        copy=partial(schemas.copied, dsn),
        spoil=partial(schemas.spoiled, dsn),
        clear=partial(schemas.dropped, dsn),
    )
