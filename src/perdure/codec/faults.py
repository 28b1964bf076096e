"""What can go wrong inside the codec. A fault gathers its path while it rises; the codec turns it into an error."""

from __future__ import annotations

from perdure.errors import CheckpointDamagedError, IncompatibleTypeError, UntrustedTypeError

_STEPS_AT_EACH_END = 10


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
        """The place, seen from the outermost value. The middle of a long way is left out."""
        steps = self._steps[::-1]
        if len(steps) > 2 * _STEPS_AT_EACH_END:
            steps[_STEPS_AT_EACH_END:-_STEPS_AT_EACH_END] = ["…"]
        return root + "".join(steps)


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


class DamagedPartError(Exception):
    """Stored bytes are not what was written. Whoever knows the checkpoint names it in a CheckpointDamagedError."""

    def __init__(self, reason: str, *, path: str | None = None) -> None:
        self.reason = reason
        self.path = path
        super().__init__(reason if path is None else f"{path}: {reason}")


def explained(fault: Fault | RecursionError, *, path: str, checkpoint_id: str | None) -> Exception:
    """What is raised for a fault in a value at `path`, with the checkpoint that it was read from, if that is known."""
    match fault:
        case Untrusted():
            error = UntrustedTypeError(type_name=fault.reason, path=fault.path(path))
            error.checkpoint_id = checkpoint_id or None
            return error
        case Misfit():
            misfit = IncompatibleTypeError(type_name=fault.type_name, path=fault.path(path), reason=fault.reason)
            misfit.checkpoint_id = checkpoint_id or None
            return misfit
        case Fault():
            damage = DamagedPartError(fault.reason, path=fault.path(path))
        case RecursionError():
            damage = DamagedPartError("it is nested too deeply to be read here", path=path)
    return damage if checkpoint_id is None else CheckpointDamagedError(checkpoint_id, str(damage))
