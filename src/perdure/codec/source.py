"""Where the parts of a value are found: made with its text, or read from a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.codec.faults import Damage
from perdure.records import digest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.codec.encoded import Branch, Encoded
    from perdure.codec.memo import Chunk, Leaf


class Source:
    """Gives the bytes of parts. What was read is hashed the first time; what was made here has been hashed."""

    __slots__ = ("_branches", "_encoded", "_stored", "_verified", "chunks", "leaves")

    def __init__(self, stored: Mapping[str, bytes] | None = None, encoded: Encoded | None = None) -> None:
        self._stored = stored
        self._encoded = encoded
        self._verified: set[str] = set()
        self._branches: dict[str, Branch] = {}
        self.leaves: dict[str, Leaf] = {}
        """The long texts and bytes that were read: the codec remembers them as long as this is there."""
        self.chunks: dict[str, Chunk] = {}
        """The chunks that were decoded."""

    def bytes(self, address: str) -> bytes:
        """The bytes of a part, which are those that were written. Raises Damage."""
        made = None if self._encoded is None else self._encoded.made.get(address)
        if made is not None:
            return made.data
        data = None if self._stored is None else self._stored.get(address)
        if data is None:
            raise Damage(f"part {address} is missing")
        if address not in self._verified:
            if digest(data) != address:
                raise Damage(f"part {address} has other bytes than were written")
            self._verified.add(address)
        return data

    def has_made(self, address: str) -> bool:
        """Whether a part was made here, with all that it refers to."""
        return self._encoded is not None and address in self._encoded.made

    def begins(self, address: str, head: bytes) -> bool:
        """Whether a part begins like this. Raises Damage."""
        return self.bytes(address).startswith(head)

    def branch(self, address: str) -> Branch | None:
        """A part of a log, if it has been met before."""
        made = None if self._encoded is None else self._encoded.branches.get(address)
        return self._branches.get(address) if made is None else made

    def keep(self, branch: Branch) -> None:
        """A part of a log that was met: who asks again gets the same."""
        self._branches[branch.hash] = branch
