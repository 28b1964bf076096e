"""Where the file store finds parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from perdure.storage.file.placing import closure

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from perdure.records import Part
    from perdure.storage.file.layout import Layout


@dataclass(frozen=True, slots=True)
class Gathering:
    """Looks for parts in all the files in which they stand."""

    layout: Layout

    def parts(self, roots: Iterable[str], *, known: Mapping[str, Part] | None = None) -> dict[str, Part]:
        """These parts and all that they refer to, as far as they are found; those that are known need no looking."""
        anywhere: dict[str, Part] | None = None
        at_hand = known or {}

        def find(part_hash: str) -> Part | None:
            nonlocal anywhere
            near = at_hand.get(part_hash) or self._known(part_hash) or self.layout.besides.find(part_hash)
            if near:
                return near
            if anywhere is None:
                self.layout.documents.look_for_parts()
                files = self.layout.journals, self.layout.inboxes, self.layout.events
                anywhere = {part: found for each in files for part, found in each.all_parts().items()}
            return self.layout.documents.part(part_hash) or anywhere.get(part_hash)

        return closure(roots, find)

    def _known(self, part_hash: str) -> Part | None:
        """A part in one of the files that were looked at."""
        return (
            self.layout.documents.part(part_hash)
            or self.layout.journals.part(part_hash)
            or self.layout.inboxes.part(part_hash)
            or self.layout.events.part(part_hash)
        )
