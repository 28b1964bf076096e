"""A call on a run, as the caller made it."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any, Final

from perdure.data import frozen

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perdure.records import Claim


class Absent:
    """Stands for a message that was not given, since None may be one."""


ABSENT: Final = Absent()


@frozen
class Call:
    """What a caller asked for."""

    message: Any = ABSENT
    message_id: str | None = None
    """What names the message, so that whoever gives it again can see that the run has had it."""
    responses: Mapping[str, Any] | None = None
    checkpoint_id: str | None = None
    run_id: str | None = None
    storage: object = None
    kwargs: Mapping[str, Mapping[str, Any] | None] = field(default_factory=dict[str, "Mapping[str, Any] | None"])
    streaming: bool = False
    takeover: bool = False
    deadline: str | None = None
    """When the run has to be over, in UTC as ISO 8601."""
    budget: Mapping[str, float] | None = None
    waits: bool = True
    """Whether to wait for timers, or to leave the run asleep."""
    only_begins: bool = False
    """Whether the message is for a run that is not there yet: one that is goes on."""
    only_goes_on: bool = False
    """Whether nobody asks what the run has told before."""
    only_enters: bool = False
    """Whether what comes with the call is made durable, and nothing is run."""
    token: int | None = None
    """The claim's token, if it is made by whoever decides who advances the run."""
    claim: Claim | None = None
    """The claim, if the caller has made it: the run that `run_id` names goes on under it."""
    is_unasked: bool = False
    """Whether nobody wants just this run to go on: one that was halted or cancelled is left as it is."""
    repeats_answers: bool = False
    """Whether answers that the run has had may be given again: they are no news."""
    tells_what_is_open: bool = False
    """Whether the requests are told that are still open once the answers are taken in."""
    only_cancels: bool = False
    """Whether only the wish to cancel is taken in; nothing is run."""

    @property
    def has_message(self) -> bool:
        """Whether there is a message."""
        return self.message is not ABSENT

    @property
    def names_a_run(self) -> bool:
        """Whether the call says which run it means."""
        return self.run_id is not None or self.checkpoint_id is not None

    @property
    def brings_something(self) -> bool:
        """Whether the run is given anything, and not only to go on."""
        return self.has_message or bool(self.responses)
