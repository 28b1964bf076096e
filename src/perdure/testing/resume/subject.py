"""`Subject`: the workflow that the suite is to disturb, and how it is talked to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from perdure.checkpoint import InterruptedStep, StepDecision
from perdure.storage import StoreStorage, open_storage
from perdure.testing.resume.killing import with_points
from perdure.testing.resume.kinds import SHIPPED, Kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from perdure.storage import PendingRequest
    from perdure.testing.resume.kinds import Storages
    from perdure.workflows import Workflow

RUN_ID: Final = "subject"


def _always_true(request: PendingRequest) -> Any:
    del request
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A workflow to be killed and resumed.

    `build` makes a new instance of the workflow, without a storage. `message` begins the run, each of `turns` is a
    further turn once it is idle. `answer` answers what it asks; `rival` answers as the n-th of several who answer the
    same request at once, each something else (without it, a bool's opposite). `storages` are your own, by name, each
    opened in a directory, or named by a URL: the suite runs on them instead of those that ship with perdure. For one
    that has more than the files of its directory, give a `Kind`.

    The outputs must depend on nothing but messages, state, steps and answers. `has_fixed_log=False` says that the
    order of supersteps depends on the time, as it does where timers run beside other work: then the log of a disturbed
    run is not compared with that of an undisturbed one.
    """

    build: Callable[[], Workflow]
    message: Any
    turns: tuple[Any, ...] = ()
    answer: Callable[[PendingRequest], Any] = _always_true
    rival: Callable[[PendingRequest, int], Any] | None = None
    storages: Storages = field(default_factory=lambda: SHIPPED)
    has_fixed_log: bool = True

    def kind(self, name: str) -> Kind:
        """The kind of storage of a name: one of `storages`, or one that ships."""
        found = self.storages.get(name) or SHIPPED[name]
        return found if isinstance(found, Kind) else Kind(found)

    def open(self, kind: str, directory: Path) -> StoreStorage:
        """A storage, with points to die at, that trusts what the workflow trusts."""
        made = self.kind(kind).open(directory)
        # That of a URL is shared by all of this process, who need no points.
        storage = with_points(StoreStorage(open_storage(made).store) if isinstance(made, str) else made)
        self.build().blueprint.bound(storage)
        return storage

    def answer_to(self, request: PendingRequest) -> Any:
        """The answer. A step that was cut off is simply done again."""
        return StepDecision("rerun") if isinstance(request.data, InterruptedStep) else self.answer(request)

    def rivals_answer_to(self, request: PendingRequest, number: int) -> Any:
        """What the n-th of several answers."""
        if self.rival is not None:
            return self.rival(request, number)
        answer = self.answer_to(request)
        return not answer if isinstance(answer, bool) and number % 2 else answer
