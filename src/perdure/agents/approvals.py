"""Calls that somebody has to allow: what is asked, what waits for the answer, and which call an answer lets be made.

What is made is the call that was asked about, from the session or the conversation. An answer says yes or no to it; the
arguments that it carries are compared, and never used.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agent_errors import AgentInvalidResponseException
from perdure.agents.content import Content
from perdure.agents.repair import is_answer, is_of_a_tool, is_question
from perdure.agents.tool_results import result_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from perdure.agents.messages import Message

STATE_KEY: Final = "tool_approval"
REJECTED: Final = "the call was not made: the user has rejected it"


@dataclass(frozen=True, slots=True)
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
        return self.makes.call_id != self.about.call_id

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


@dataclass(slots=True)
class Batch:
    """What one answer of a model has led to: questions, and calls that need none and wait for the others."""

    asked: list[Asked]
    parked: list[Content] = field(default_factory=list[Content])
    key: str = ""
    """What a session knows it by: the id of its first question."""

    def __post_init__(self) -> None:
        self.key = self.key or (self.asked[0].id if self.asked else "")

    def plain(self) -> dict[str, Any]:
        """As plain data, for a session."""
        return {"asked": [each.plain() for each in self.asked], "parked": [each.to_dict() for each in self.parked]}

    @classmethod
    def of(cls, key: str, plain: Mapping[str, Any]) -> Batch:
        """The batch of what `plain` gave."""
        parked = [Content.from_dict(each) for each in plain["parked"]]
        return cls([Asked.of(each) for each in plain["asked"]], parked, key)


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


@dataclass(frozen=True, slots=True)
class Decision:
    """A call that an answer was given for, or that waited for one that has come."""

    call: Content
    answers: tuple[Content, ...] = ()
    is_approved: bool = True

    def rejection(self) -> Content:
        """What the model is told of a call that may not be made."""
        return result_of(self.call, REJECTED)


@dataclass(slots=True)
class Settled:
    """What answers have decided, and what of the same batches is still open."""

    decisions: list[Decision] = field(default_factory=list[Decision])
    open: list[Asked] = field(default_factory=list[Asked])
    batches: list[Batch] = field(default_factory=list[Batch])
    """What the session keeps from now on."""


def settled(messages: Sequence[Message], session: Any) -> Settled:
    """What the answers in a conversation decide. Asking changes nothing.

    Raises:
        AgentInvalidResponseException: an answer to nothing that was asked, or about another call.
    """
    known = _kept(session)
    found = Settled(batches=known)
    if not any(is_answer(content) for message in messages for content in message.contents):
        return found
    for batch, answers in _Conversation(messages, known).answered():
        found.decisions += _decided(batch, answers)
        found.open += [asked for asked in batch.asked if asked.id not in answers]
    found.batches = [batch for batch in known if batch.asked]
    return found


def _decided(batch: Batch, answers: Mapping[str, Content]) -> list[Decision]:
    """What the answers decide, and leave in the batch what they don't. A tool is told all that it has asked at once."""
    decisions: list[Decision] = []
    for makes in {asked.makes.call_id: asked.makes for asked in batch.asked}.values():
        group = [asked for asked in batch.asked if asked.makes.call_id == makes.call_id]
        given = tuple([answers[asked.id] for asked in group if asked.id in answers])
        if len(given) < len(group):
            continue
        # A tool that has asked is told the answer, whatever it is.
        is_approved = group[0].is_of_a_tool or all(answer.approved is True for answer in given)
        decisions.append(Decision(makes, given, is_approved))
        batch.asked = [asked for asked in batch.asked if asked not in group]
    if decisions:
        decisions += [Decision(call) for call in batch.parked]
        batch.parked = []
    return decisions


class _Conversation:
    """Where in a conversation something was asked, answered and done. A session knows better what was asked."""

    def __init__(self, messages: Sequence[Message], known: Sequence[Batch]) -> None:
        self._messages = messages
        self._known = known
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

    def answered(self) -> Iterator[tuple[Batch, dict[str, Content]]]:
        """Each batch that somebody has answered something of, and the answers. What was done is left out."""
        found: dict[int, tuple[Batch, dict[str, Content]]] = {}
        for place in range(self._heard + 1, len(self._messages)):
            for answer in filter(is_answer, self._messages[place].contents):
                match = self._asked(answer, place)
                if match is None:
                    self._require_done(answer, place)
                    continue
                batch, asked = match
                if not self._is_done(asked.makes, place):
                    require_same_call(answer, asked)
                    found.setdefault(id(batch), (batch, {}))[1].setdefault(asked.id, answer)
        yield from found.values()

    def _asked(self, answer: Content, place: int) -> tuple[Batch, Asked] | None:
        for batch in (*self._known, *reversed(self._told[:place])):
            asked = next((each for each in batch.asked if each.id == answer.id), None)
            if asked is not None:
                return batch, asked
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


def require_same_call(answer: Content, asked: Asked) -> None:
    """Raise AgentInvalidResponseException if an answer is about another call than the one that was asked about."""
    call = answer.function_call
    if call is not None and _essence(call) != _essence(asked.about):
        raise AgentInvalidResponseException(
            f"the answer to {asked.id!r} is about another call of {call.name!r} than the one of {asked.about.name!r} "
            "that was asked about; answer with `request.to_function_approval_response(...)`"
        )


def _essence(call: Content) -> tuple[Any, ...]:
    return call.call_id, call.name, call.parse_arguments() or {}


def keep_batch(session: Any, batch: Batch) -> None:
    """Let a session know what is asked. It takes the place of a question with the same id that nobody has answered."""
    ids = {asked.id for asked in batch.asked}
    others = _kept(session)
    for other in others:
        other.asked = [asked for asked in other.asked if asked.id not in ids]
    keep_batches(session, [*(other for other in others if other.asked), batch])


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


def _kept(session: Any) -> list[Batch]:
    state = _state_of(session)
    found: Any = None if state is None else state.get(STATE_KEY)
    if not isinstance(found, Mapping):
        return []
    return [Batch.of(key, plain) for key, plain in cast("Mapping[str, Any]", found).items()]


def _state_of(session: Any) -> MutableMapping[str, Any] | None:
    state = getattr(session, "state", None)
    return cast("MutableMapping[str, Any]", state) if isinstance(state, MutableMapping) else None
