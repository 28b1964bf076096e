"""Which parts of a checkpoint go into its file, and which beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.storage.file.document import fits_inline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from perdure.records import Part

_INLINE_SIZE_MAX = 16 * 1024
"""Of the new parts within one checkpoint's file, all together."""

_CARRIED_SIZE_MAX = 4 * 1024
"""Of the parts that did not change, all together: so much is written anew with each file, rather than give a part that
may change with the next commit a file of its own. If there is more of them, they go beside, once and for all."""


def closure(roots: Iterable[str], find: Callable[[str], Part | None]) -> dict[str, Part]:
    """These parts and all that they refer to, as far as they are found."""
    found: dict[str, Part] = {}
    waiting = list(dict.fromkeys(roots))
    seen = set(waiting)
    for part_hash in waiting:
        part = find(part_hash)
        if part is not None:
            found[part_hash] = part
            # The list grows while it is walked; every hash comes once.
            waiting.extend(ref for ref in dict.fromkeys(part.refs) if ref not in seen)
            seen.update(part.refs)
    return found


def placed(
    roots: Iterable[str], *, carried: Mapping[str, Part], new: Mapping[str, Part], told: Iterable[str] = ()
) -> tuple[dict[str, Part], dict[str, Part]]:
    """Which parts of a checkpoint go into its file, and which beside it.

    `carried` are those in the predecessor's file. All that the checkpoint needs besides these and the new ones is
    beside already. What its events refer to, the parts `told`, is placed like its own. What goes beside takes all that
    it refers to along.
    """
    known = {**new, **carried}
    needed = closure([*roots, *told], known.get)
    old = [part_hash for part_hash in needed if part_hash in carried]
    leaving = old if sum(len(needed[part_hash].data) for part_hash in old) > _CARRIED_SIZE_MAX else []
    misfits = [part_hash for part_hash, part in needed.items() if part_hash not in carried and not fits_inline(part)]
    beside = closure([*leaving, *misfits], known.get)
    size = 0
    for part_hash, part in needed.items():
        if part_hash not in beside and part_hash not in carried:
            size += len(part.data)
            if size > _INLINE_SIZE_MAX:
                beside |= closure([part_hash], known.get)
    return {part_hash: part for part_hash, part in needed.items() if part_hash not in beside}, beside
