"""The parts in a SQLite file. Whoever changes something is inside of a transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.errors import PartDamagedError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from perdure.records import Part
    from perdure.stores.database import Database

SWEPT_AT_ONCE_MAX = 10_000


class PartTable:
    """The parts, each under its hash."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def put(self, parts: Iterable[Part]) -> None:
        """Add those that are not there yet."""
        for part in parts:
            refs = json.dumps(part.refs)
            self._database.execute("put_part", hash=part.hash, kind=part.kind, refs=refs, data=part.data)

    def closure(self, roots: Iterable[str]) -> dict[str, bytes]:
        """The bytes of these parts and of all that they refer to. Raises PartDamagedError."""
        found = self._database.execute("parts", roots=json.dumps(list(roots))).fetchall()
        damaged = next((row["hash"] for row in found if not row["has_refs"]), None)
        if damaged is not None:
            raise PartDamagedError(f"what the part {damaged!r} refers to is not what was written")
        return {row["hash"]: row["data"] for row in found}

    def sweep(self) -> int:
        """Remove some of those that nothing refers to; their number."""
        return self._database.execute("sweep", limit=SWEPT_AT_ONCE_MAX).rowcount
