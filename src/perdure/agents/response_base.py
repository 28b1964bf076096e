"""What answers and their pieces have in common: they are kept, compared and written as their fields."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


class Kept:
    """Something that is what its fields are. What a provider sent is not among them, and neither is a parsed value."""

    _TYPE: ClassVar[str]
    _STORED: ClassVar[tuple[str, ...]]
    _PARTS: ClassVar[str]
    """The field that holds what it is made of."""

    @property
    def text(self) -> str:
        """All that is said in words."""
        raise NotImplementedError

    def to_dict(self, *, exclude: set[str] | None = None, exclude_none: bool = True) -> dict[str, Any]:
        """As plain values, for JSON. `from_dict` takes them back."""
        kept = self.stored() if exclude_none else {name: getattr(self, name) for name in self._STORED}
        parts = [part.to_dict(exclude_none=exclude_none) for part in getattr(self, self._PARTS)]
        found = {"type": self._TYPE, **kept, self._PARTS: parts}
        return {name: value for name, value in found.items() if name not in (exclude or ())}

    def to_json(self, *, exclude: set[str] | None = None, exclude_none: bool = True, **options: Any) -> str:
        """As JSON."""
        return json.dumps(self.to_dict(exclude=exclude, exclude_none=exclude_none), **options)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What `to_dict` gave, taken back."""
        return cls(**{name: value for name, value in data.items() if name in cls._STORED})

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """What `to_json` gave, taken back."""
        return cls.from_dict(json.loads(text))

    def stored(self) -> dict[str, Any]:
        """What is to be kept."""
        values = ((name, getattr(self, name)) for name in self._STORED)
        return {name: value for name, value in values if value is not None and value != {}}

    def __eq__(self, other: object) -> bool:
        """Whether the same is said."""
        if type(other) is not type(self):
            return NotImplemented
        return self.stored() == cast("Self", other).stored()

    __hash__ = None  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType] - it can be changed

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"{type(self).__name__}({getattr(self, self._PARTS)!r})"
