"""What can go wrong inside the codec. A fault gathers its path while it rises; the codec turns it into an error."""

from __future__ import annotations


class Fault(Exception):
    """Something about one place in a value."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self._steps: list[str] = []

    def rise(self, step: str) -> None:
        """Note the step that leads from the next outer value to this place."""
        self._steps.append(step)

    def path(self, root: str) -> str:
        """The place, seen from the outermost value."""
        return root + "".join(reversed(self._steps))


class Refusal(Fault):
    """A value can't be stored."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


class Damage(Fault):
    """Stored text is not what was written."""


class Untrusted(Fault):
    """Stored text names a type that is not trusted."""


class Misfit(Fault):
    """A stored object does not fit its class as the program has it now."""

    def __init__(self, type_name: str, reason: str) -> None:
        super().__init__(reason)
        self.type_name = type_name
