"""Questions whether calls may be made, and the batches of them that a session keeps until they are answered."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.content import Content
from perdure.agents.repair import is_of_a_tool, is_question, tool_question_id
from perdure.data import frozen, mutable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STATE_KEY: Final = "tool_approval"


@frozen
class Asked:
    """A question that was asked: its id, the call that it is about, and the call that is made if the answer is yes.

    The two are one, unless a tool has asked in the middle of its call: then that is what goes on.
    """

    id: str
    about: Content
    makes: Content

    @classmethod
    def whether(cls, call: Content) -> Asked:
        """The question whether a call may be made."""
        return cls(call.call_id or "", call, call)

    @property
    def is_of_a_tool(self) -> bool:
        """Whether a tool has asked, which is to be given the answer."""
        return self.id.startswith(tool_question_id(self.makes, ""))

    def to_tool(self, answer: Content) -> Content:
        """An answer as the tool gets it that has asked: to the question under the id that it has there."""
        return replace(answer, id=self.id.removeprefix(tool_question_id(self.makes, "")))

    def question(self) -> Content:
        """The question, once more."""
        more = {"call_id": self.makes.call_id} if self.is_of_a_tool else {}
        return Content.from_function_approval_request(self.id, self.about, **more)

    def plain(self) -> dict[str, Any]:
        """As plain data, for a session."""
        return {"id": self.id, "about": self.about.to_dict(), "makes": self.makes.to_dict()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Asked:
        """The question of what `plain` gave."""
        return cls(plain["id"], Content.from_dict(plain["about"]), Content.from_dict(plain["makes"]))


@mutable
class Batch:
    """What one answer of a model has led to: questions, and calls that need none and wait for the others."""

    asked: list[Asked]
    parked: list[Content] = field(default_factory=list[Content])
    owner: str = ""
    """Who asks. Agents that share a session may ask side by side, under one id."""
    key: str = ""
    """What a session knows it by: who asks, and the id of its first question."""

    def __post_init__(self) -> None:
        self.key = self.key or (f"{self.owner}/{self.asked[0].id}" if self.asked else "")

    def plain(self) -> dict[str, Any]:
        """As plain data, for a session."""
        asked, parked = [each.plain() for each in self.asked], [each.to_dict() for each in self.parked]
        return {"owner": self.owner, "asked": asked, "parked": parked}

    @classmethod
    def of(cls, key: str, plain: Mapping[str, Any]) -> Batch:
        """The batch of what `plain` gave."""
        parked = [Content.from_dict(each) for each in plain["parked"]]
        return cls([Asked.of(each) for each in plain["asked"]], parked, plain.get("owner", ""), key)


def questions_of(contents: Iterable[Content], calls: Mapping[str | None, Content]) -> list[Asked]:
    """What was asked in a message; a tool's question is about what it says, and lets the tool's call go on.

    `calls` are those of the conversation, by id.
    """
    found: list[Asked] = []
    for content in contents:
        about = content.function_call
        if is_question(content) and content.id is not None and about is not None:
            makes = calls.get(content.call_id) if is_of_a_tool(content) else about
            if makes is not None:
                found.append(Asked(content.id, about, makes))
    return found


def keep_batch(session: Any, batch: Batch) -> None:
    """Let a session know what is asked. It takes the place of a question of the same agent under the same id."""
    ids = {asked.id for asked in batch.asked}
    others = kept_batches(session)
    for other in others:
        if other.owner == batch.owner:
            other.asked = [asked for asked in other.asked if asked.id not in ids]
    keep_batches(session, [*(other for other in others if other.asked), batch])


def drop_questions(session: Any, owner: str, calls: Iterable[str | None]) -> None:
    """Let a session forget what was asked about calls that are done."""
    done, batches = set(calls), kept_batches(session)
    for batch in batches:
        if batch.owner == owner:
            batch.asked = [asked for asked in batch.asked if asked.makes.call_id not in done]
    keep_batches(session, [batch for batch in batches if batch.asked])


def waiting_ids(session: Any) -> set[str]:
    """The ids of the calls that a session knows to wait."""
    calls = [call for batch in kept_batches(session) for call in (*(each.makes for each in batch.asked), *batch.parked)]
    return {call.call_id for call in calls if call.call_id}


def keep_batches(session: Any, batches: Sequence[Batch]) -> None:
    """Let a session know what is still asked."""
    state = _state_of(session)
    if state is None:
        return
    if batches:
        # By name, and not as a list: agents that share a session change each their own.
        state[STATE_KEY] = {batch.key: batch.plain() for batch in batches}
    else:
        state.pop(STATE_KEY, None)


def kept_batches(session: Any) -> list[Batch]:
    """What a session knows to be asked."""
    state = _state_of(session)
    found: Any = None if state is None else state.get(STATE_KEY)
    if not isinstance(found, Mapping):
        return []
    return [Batch.of(key, plain) for key, plain in cast("Mapping[str, Any]", found).items()]


def _state_of(session: Any) -> MutableMapping[str, Any] | None:
    state = getattr(session, "state", None)
    return cast("MutableMapping[str, Any]", state) if isinstance(state, MutableMapping) else None
