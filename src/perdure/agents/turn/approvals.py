"""Calls that somebody has to allow: which call an answer lets be made.

What is made is the call that was asked about, from the session or the conversation. An answer says yes or no to it; the
arguments that it carries are compared, and never used.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.messages.content import Content
from perdure.agents.messages.conversation import is_answer, is_of_a_tool, is_question, tool_question_id
from perdure.agents.tools.results import result_of
from perdure.data import frozen, mutable
from perdure.errors import AgentInvalidResponseException

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.messages.message import Message

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


REJECTED: Final = "the call was not made: the user has rejected it"


@frozen
class Decision:
    """A call that an answer was given for, or that waited for one that has come."""

    call: Content
    answers: tuple[Content, ...] = ()
    is_approved: bool = True
    is_for_tool: bool = False
    """Whether the tool has asked, and not somebody whether it may be called."""

    def rejection(self) -> Content:
        """What the model is told of a call that may not be made."""
        return result_of(self.call, REJECTED)


@mutable
class Settled:
    """What answers have decided, and what of the same batches is still open."""

    decisions: list[Decision] = field(default_factory=list[Decision])
    open: list[Asked] = field(default_factory=list[Asked])
    batches: list[Batch] = field(default_factory=list[Batch])
    """What the session keeps from now on."""


def settled(messages: Sequence[Message], session: Any, owner: str = "") -> Settled:
    """What the answers in a conversation decide. Asking changes nothing.

    Raises:
        AgentInvalidResponseException: an answer to nothing that was asked, or about another call.
    """
    known = kept_batches(session)
    found = Settled(batches=known)
    if not any(is_answer(content) for message in messages for content in message.contents):
        return found
    for answered in _Conversation(messages, known, owner).answered():
        found.open += [asked for asked in answered.batch.asked if answered.to(asked) is None]
        found.decisions += answered.decided()
    found.batches = [batch for batch in known if batch.asked]
    return found


@frozen
class _Answered:
    """A batch, and what was answered of it."""

    batch: Batch
    _answers: list[tuple[Asked, Content]] = field(default_factory=list["tuple[Asked, Content]"])

    def take(self, asked: Asked, answer: Content) -> None:
        """Take an answer. Of several to one question, one that does not say yes counts."""
        given = self.to(asked)
        if given is None:
            self._answers.append((asked, answer))
        elif given.approved is True and answer.approved is not True:
            self._answers[:] = [(each, answer if each is asked else other) for each, other in self._answers]

    def to(self, asked: Asked) -> Content | None:
        """The answer to a question: to this very one, whatever ids others have."""
        return next((answer for each, answer in self._answers if each is asked), None)

    def decided(self) -> list[Decision]:
        """What the answers decide; the batch is left with what they don't."""
        decisions: list[Decision] = []
        for group in _groups(self.batch.asked):
            given = [answer for asked in group if (answer := self.to(asked)) is not None]
            if len(given) == len(group):
                decisions.append(_decision(group, given))
                self.batch.asked = [each for each in self.batch.asked if not any(each is asked for asked in group)]
        if decisions:
            decisions += [Decision(call) for call in self.batch.parked]
            self.batch.parked = []
        return decisions


def _groups(asked: Sequence[Asked]) -> list[list[Asked]]:
    """The questions that one call waits for: a tool is told all that it has asked at once."""
    by_tool: dict[str | None, list[Asked]] = {}
    groups: list[list[Asked]] = []
    for each in asked:
        group = by_tool.get(each.makes.call_id) if each.is_of_a_tool else None
        if group is not None:
            group.append(each)
            continue
        groups.append([each])
        if each.is_of_a_tool:
            by_tool[each.makes.call_id] = groups[-1]
    return groups


def _decision(group: Sequence[Asked], given: Sequence[Content]) -> Decision:
    first = group[0]
    if not first.is_of_a_tool:
        return Decision(first.makes, tuple(given), all(answer.approved is True for answer in given))
    # A tool that has asked is told the answers, whatever they are.
    answers = tuple([asked.to_tool(answer) for asked, answer in zip(group, given, strict=True)])
    return Decision(first.makes, answers, is_for_tool=True)


class _Conversation:
    """Where in a conversation something was asked, answered and done. A session knows better what was asked."""

    def __init__(self, messages: Sequence[Message], known: Sequence[Batch], owner: str) -> None:
        self._messages = messages
        self._own = [batch for batch in known if batch.owner == owner]
        self._others = [batch for batch in known if batch.owner != owner]
        self._results = {
            content.call_id: place
            for place, message in enumerate(messages)
            for content in message.contents
            if content.type == "function_result"
        }
        self._heard = max((place for place, message in enumerate(messages) if _is_answer_of_model(message)), default=-1)
        """Where the model spoke last: answers before that have had their effect, whatever a history has kept of it."""
        every = (each for message in messages for each in message.contents if each.type == "function_call")
        calls: dict[str | None, Content] = {each.call_id: each for each in every}
        asked = [questions_of(message.contents, calls) for message in messages]
        self._told = [
            Batch([each for each in batch if not self._is_done(each.makes, place)]) for place, batch in enumerate(asked)
        ]

    def answered(self) -> list[_Answered]:
        """Each batch that somebody has answered something of, and the answers. What was done is left out."""
        found: dict[int, _Answered] = {}
        for place in range(self._heard + 1, len(self._messages)):
            for answer in filter(is_answer, self._messages[place].contents):
                match = self._asked(answer, place)
                if match is None:
                    self._require_done(answer, place)
                    continue
                batch, asked = match
                if not self._is_done(asked.makes, place):
                    found.setdefault(id(batch), _Answered(batch)).take(asked, answer)
        return list(found.values())

    def _asked(self, answer: Content, place: int) -> tuple[Batch, Asked] | None:
        """The question that an answer is to. What a session knows is not asked anew by a conversation."""
        for batches in (self._own, self._others, *([each] for each in reversed(self._told[:place]))):
            found = [(batch, asked) for batch in batches for asked in batch.asked if asked.id == answer.id]
            if found:
                return _meant(answer, found)
        return None

    def _is_done(self, call: Content, place: int) -> bool:
        """Whether the result of a call came after a place."""
        return self._results.get(call.call_id, -1) > place

    def _require_done(self, answer: Content, place: int) -> None:
        """A conversation that was cut may begin with an answer. That is well if it has led to something."""
        if self._results.get((answer.function_call or answer).call_id or answer.id, -1) <= place:
            raise AgentInvalidResponseException(
                f"an approval came for {answer.id!r}, and nothing with this id was asked; answer with the session in "
                "which it was asked, or give the message with the question before the answer"
            )


def _is_answer_of_model(message: Message) -> bool:
    """Whether a model has said something here. That something is still open may be asked again in between."""
    return message.role == "assistant" and any(not is_question(content) for content in message.contents)


def _meant(answer: Content, found: Sequence[tuple[Batch, Asked]]) -> tuple[Batch, Asked]:
    """Of the questions under an answer's id, the one that it is to. Raises AgentInvalidResponseException."""
    call = answer.function_call
    if call is None and len(found) > 1:
        raise AgentInvalidResponseException(
            f"{len(found)} questions have the id {answer.id!r}, and the answer does not say which call it is about; "
            "answer with `request.to_function_approval_response(...)`"
        )
    meant = next((each for each in found if call is None or _essence(call) == _essence(each[1].about)), None)
    if meant is None:
        asked = found[0][1]
        raise AgentInvalidResponseException(
            f"the answer to {asked.id!r} is about another call than the one of {asked.about.name!r} that was asked "
            "about; answer with `request.to_function_approval_response(...)`"
        )
    return meant


def _essence(call: Content) -> tuple[Any, ...]:
    return call.call_id, call.name, call.parse_arguments() or {}
