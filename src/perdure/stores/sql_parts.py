"""The parts of a SQL store. Whoever changes something is inside of a transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.errors import PartDamagedError
from perdure.records import Part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.stores.sql_database import OfTenant, Row

SWEPT_AT_ONCE_MAX = 10_000


class PartTable:
    """The parts, each under its hash."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def put(self, parts: Iterable[Part]) -> None:
        """Add those that are not there yet."""
        for part in parts:
            refs = json.dumps(part.refs)
            self._database.execute("put_part", hash=part.hash, kind=part.kind, refs=refs, data=part.data)

    def closure(self, roots: Iterable[str]) -> dict[str, bytes]:
        """The bytes of these parts and of all that they refer to. Raises PartDamagedError."""
        return {row["hash"]: row["data"] for row in self._rows(roots)}

    def whole(self, roots: Iterable[str]) -> Sequence[Part]:
        """The same parts with all that is known of them, but for those that are no bytes any more."""
        return [
            Part(row["hash"], row["data"], refs=tuple(json.loads(row["refs"])), kind=row["kind"])
            for row in self._rows(roots)
            if isinstance(row["data"], bytes)
        ]

    def _rows(self, roots: Iterable[str]) -> Sequence[Row]:
        found = self._database.execute("parts", roots=json.dumps(list(roots))).fetchall()
        damaged = next((row["hash"] for row in found if not row["has_refs"]), None)
        if damaged is not None:
            raise PartDamagedError(f"what the part {damaged!r} refers to is not what was written")
        return found

    def sweep(self) -> int:
        """Remove some of those that nothing refers to; their number."""
        return self._database.execute("sweep", limit=SWEPT_AT_ONCE_MAX).rowcount
