"""What the SQL stores need of a database, and of whoever knows which processes live.

The statements have names; what differs between databases is their text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from contextlib import AbstractContextManager

    from perdure.records import Owner


Sync: TypeAlias = Literal["always", "as chosen", "later"]
"""Whether a transaction is synced: so that it outlasts the machine, or only the process, or as the user chose."""


class Row(Protocol):
    """A row, read by the names of its columns."""

    def __getitem__(self, column: str, /) -> Any: ...


class Rows(Protocol):
    """What a statement gives."""

    @property
    def rowcount(self) -> int:
        """How many rows it has changed."""
        ...

    def fetchone(self) -> Row | None: ...

    def fetchall(self) -> Sequence[Row]: ...


class SqlDatabase(Protocol):
    """A database for one thread, migrated. Errors of the driver come through as they are, but for `errors`."""

    @property
    def failure(self) -> type[Exception]:
        """What the driver raises: whatever the transaction has done by then counts for nothing."""
        ...

    @property
    def refusals(self) -> tuple[type[Exception], ...]:
        """Those of them that are about one value: the transaction goes on, but for what its savepoint has begun."""
        ...

    def execute(self, name: str, /, **values: object) -> Rows:
        """Run the statement of that name. Values that it has no use for are left aside."""
        ...

    def execute_many(self, name: str, rows: Sequence[Mapping[str, object]], /) -> None:
        """Run the statement of that name once for each."""
        ...

    def execute_each(self, names: Sequence[str], rows: Sequence[Mapping[str, object]], /) -> Sequence[Row | None]:
        """Run for each row its statement; of each the only row that it gives, if it gives one."""
        ...

    def number(self, name: str, /, **values: object) -> int:
        """The single number that a statement gives."""
        ...

    def transaction(self, sync: Sync = "as chosen", *, alone: bool = False) -> AbstractContextManager[None]:
        """All or nothing. No other one that writes overlaps with one that is `alone`."""
        ...

    def savepoint(self) -> AbstractContextManager[None]:
        """All or nothing, inside of a transaction."""
        ...

    def errors(self) -> AbstractContextManager[None]:
        """Errors of the driver as ours, with the database named."""
        ...

    def version_of_data(self) -> object:
        """Another one once another connection has changed anything; cheap."""
        ...

    def close(self) -> None: ...


class OwnerWatch(Protocol):
    """Knows which of the processes that claim runs still live."""

    def enter(self) -> Owner:
        """This process, known to the others as alive from now to its end."""
        ...

    def is_replaceable(self, owner: Owner) -> bool:
        """Whether a claim of that owner can be replaced: it is this very process, or dead, or has let its lease end."""
        ...

    def is_dead(self, owner: Owner) -> bool:
        """Whether that owner has certainly ended."""
        ...

    def living(self, owner: Owner | None) -> str | None:
        """The id of an owner, unless it has certainly ended."""
        ...


class OfTenant:
    """The statements of a database, each with the tenant whose rows it is about.

    Many rows at once are given over: the tenant is put into them.
    """

    def __init__(self, database: SqlDatabase, tenant: str) -> None:
        self._database = database
        self._tenant = tenant

    def execute(self, name: str, /, **values: object) -> Rows:
        """Run the statement of that name."""
        return self._database.execute(name, tenant=self._tenant, **values)

    def execute_many(self, name: str, rows: Sequence[dict[str, object]], /) -> None:
        """Run it once for each of them."""
        self._database.execute_many(name, self._mine(rows))

    def execute_each(self, names: Sequence[str], rows: Sequence[dict[str, object]], /) -> Sequence[Row | None]:
        """Run for each row its statement."""
        return self._database.execute_each(names, self._mine(rows))

    def _mine(self, rows: Sequence[dict[str, object]]) -> Sequence[Mapping[str, object]]:
        for row in rows:
            row["tenant"] = self._tenant
        return rows

    def number(self, name: str, /, **values: object) -> int:
        """The single number that a statement gives."""
        return self._database.number(name, tenant=self._tenant, **values)
