"""The collection of parts that nothing refers to, apart from the commits that go on meanwhile.

It has three stages. It begins with a short transaction that nobody else writes beside, and that makes a new epoch:
whatever is put from then on, be it there already or not, is marked with it. Then it looks for what nothing refers to,
in one statement that only reads and so sees one moment. Then it removes, a few at a time in transactions of their own,
what nothing referred to at that moment and what is not of the new epoch.

Nothing that is needed is ever removed. Whatever refers to a part was written before that moment, and was seen, or after
it. In the latter case its writer has either put the part again, in the new epoch, or relied on the head of the run that
it went on from. A head is never forgotten before its successor is written: so that head, or one before it that has put
the part, was seen or is of the new epoch. Killed at any point it leaves parts for the next collection, no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perdure.storage.sql.database import SqlDatabase
    from perdure.storage.sql.tables import Tables

_FOUND_AT_ONCE_MAX = 20_000
"""So that the memory which it takes is bounded."""

_REMOVED_AT_ONCE_MAX = 200
"""So that those who commit wait for a few milliseconds at most."""


def collect(database: SqlDatabase, tables: Tables) -> int:
    """Remove the parts of a tenant that nothing refers to; their number."""
    with database.transaction("later", alone=True):
        epoch = tables.begin_collection()
    removed = 0
    while True:
        found = tables.parts.unreachable(epoch=epoch, limit=_FOUND_AT_ONCE_MAX)
        for first in range(0, len(found), _REMOVED_AT_ONCE_MAX):
            with database.transaction("later"):
                removed += tables.parts.drop(found[first : first + _REMOVED_AT_ONCE_MAX], epoch=epoch)
        if len(found) < _FOUND_AT_ONCE_MAX:
            return removed
