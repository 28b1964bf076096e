"""Values that are never stored and never shown."""

from __future__ import annotations

from typing import Generic, TypeVar

SecretT = TypeVar("SecretT")


class Secret(Generic[SecretT]):
    """A run kwarg of which only the name is stored. It must be given again to resume the run."""

    __slots__ = ("_value",)

    def __init__(self, value: SecretT) -> None:
        self._value = value

    @property
    def value(self) -> SecretT:
        """The secret value."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"
