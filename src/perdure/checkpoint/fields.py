"""The fields of a kept object, each as a kept value of its own: who needs one of them need not read the others."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from perdure.codec import DataclassKind, Kept, loads, piece, stored_name

if TYPE_CHECKING:
    from collections.abc import Mapping


def fields_of(kept: Kept, cls: Any) -> Mapping[str, Kept]:
    """The fields of a dataclass that is kept; none if an object of another class is."""
    if kept.has_live:
        found = kept.live
        names = [each.name for each in fields(cls)] if type(found) is cls else []
        return {name: Kept(path=f"{kept.path}.{name}", live=getattr(found, name), has_live=True) for name in names}
    encoded, stored = kept.require_encoded(), kept.stored
    if stored is None:
        stored = {part.hash: part.data for part in encoded.parts}
    return {
        name: Kept(path=f"{kept.path}.{name}", encoded=piece(tree), stored=stored, checkpoint_id=kept.checkpoint_id)
        for name, tree in _trees(encoded.text, stored_name(cls)).items()
    }


def _trees(text: bytes, name: str) -> dict[str, Any]:
    tree = loads(text)
    is_found = isinstance(tree, dict) and (tree.get("~"), tree.get("type")) == (DataclassKind.tag, name)  # pyright: ignore[reportUnknownMemberType]
    return cast("dict[str, Any]", tree["fields"]) if is_found else {}
