"""The parts of a SQL store. Whoever changes something is inside of a transaction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from perdure.errors import PartDamagedError
from perdure.records import Part
from perdure.storage.sql import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.storage.sql.database import OfTenant, Row


class PartTable:
    """The parts, each under its hash."""

    def __init__(self, database: OfTenant) -> None:
        self._database = database

    def put(self, parts: Iterable[Part]) -> None:
        """Add those that are not there yet, and note that the others are needed again."""
        # All who write take them in the same order, so that none waits for another in a circle.
        new: list[dict[str, object]] = [
            {"hash": part.hash, "kind": part.kind, "refs": rows.of_refs(part.refs), "data": part.data}
            for part in sorted(parts, key=_hash)
        ]
        if new:
            self._database.execute_many("put_part", new)

    def closure(self, roots: Iterable[str]) -> dict[str, bytes]:
        """The bytes of these parts and of all that they refer to. Raises PartDamagedError."""
        return {row["hash"]: _bytes(row["data"]) for row in self._rows(roots)}

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

    def unreachable(self, *, epoch: int, limit: int) -> Sequence[str]:
        """Some of those that nothing refers to, and that were not put since the collection of that number began."""
        found = self._database.execute("unreachable", epoch=epoch, limit=limit).fetchall()
        return [row["hash"] for row in found]

    def drop(self, hashes: Sequence[str], *, epoch: int) -> int:
        """Remove these, but for those that were put since the collection began; how many were removed."""
        return self._database.execute("drop_parts", hashes=json.dumps(hashes), epoch=epoch).rowcount


def _hash(part: Part) -> str:
    return part.hash


def _bytes(data: object) -> bytes:
    """A damaged cell may hold anything. As bytes it is compared with its hash, like those that hold bytes."""
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "surrogateescape")
