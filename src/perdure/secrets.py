"""Values that are never stored and never shown."""

from __future__ import annotations

from typing import Generic, TypeVar

SecretT = TypeVar("SecretT")


class Secret(Generic[SecretT]):
    """A run kwarg that is kept by name only. Resuming the run needs it to be given again."""

    __slots__ = ("_value",)

    def __init__(self, value: SecretT) -> None:
        self._value = value

    @property
    def value(self) -> SecretT:
        """What is secret."""
        return self._value

    def __repr__(self) -> str:
        return "Secret(...)"
