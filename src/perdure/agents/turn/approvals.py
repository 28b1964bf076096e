"""Approvals: which calls an answer allows.

The call that is made is the one that was asked about, from the session or the conversation. An answer says yes or no.
Its own arguments are compared and never used.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.messages.content import Content, function_result
from perdure.agents.messages.conversation import (
    is_approval_request,
    is_approval_response,
    is_tool_question,
    tool_question_id,
)
from perdure.errors import AgentInvalidResponseException

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from perdure.agents.messages.message import Message

APPROVALS_KEY: Final = "tool_approval"
"""Where a session's state keeps open questions."""

REJECTED: Final = "the call was not made: the user has rejected it"


@dataclass(frozen=True, slots=True)
class Question:
    """An open question: its id, the call it is about, and the call to make if the answer is yes.

    The two calls are the same, unless a tool asked during its call: then the tool's call continues.
    """

    id: str
    about: Content
    makes: Content

    @classmethod
    def approval_of(cls, call: Content) -> Question:
        """Ask for approval of a call."""
        return cls(call.call_id or "", call, call)

    @property
    def is_of_tool(self) -> bool:
        """Return True if a tool asked, which gets the answer."""
        return self.id.startswith(tool_question_id(self.makes, ""))

    def to_content(self) -> Content:
        """Return the question as a content."""
        more = {"call_id": self.makes.call_id} if self.is_of_tool else {}
        return Content.from_function_approval_request(self.id, self.about, **more)

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for a session."""
        return {"id": self.id, "about": self.about.to_dict(), "makes": self.makes.to_dict()}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Question:
        """Read the output of `to_dict`."""
        return cls(plain["id"], Content.from_dict(plain["about"]), Content.from_dict(plain["makes"]))


@dataclass(slots=True)
class Batch:
    """The questions of one model response, and its other calls, which wait for the answers."""

    questions: list[Question]
    waiting: list[Content] = field(default_factory=list[Content])
    owner: str = ""
    """The agent that asks. Agents that share a session may ask at the same time under the same id."""
    key: str = ""
    """The batch's name in the session: its owner and the id of its first question."""

    def __post_init__(self) -> None:
        self.key = self.key or (f"{self.owner}/{self.questions[0].id}" if self.questions else "")

    def to_dict(self) -> dict[str, Any]:
        """Convert to plain data for a session."""
        asked, waiting = [each.to_dict() for each in self.questions], [each.to_dict() for each in self.waiting]
        return {"owner": self.owner, "asked": asked, "parked": waiting}

    @classmethod
    def from_dict(cls, key: str, plain: Mapping[str, Any]) -> Batch:
        """Read the output of `to_dict`."""
        waiting = [Content.from_dict(each) for each in plain["parked"]]
        return cls([Question.from_dict(each) for each in plain["asked"]], waiting, plain.get("owner", ""), key)


def find_questions(contents: Iterable[Content], calls: Mapping[str | None, Content]) -> list[Question]:
    """Return the questions in a message. `calls` are the calls of the conversation by id.

    A tool's question is about the call it names, and continues the tool's own call.
    """
    found: list[Question] = []
    for content in contents:
        about = content.function_call
        if is_approval_request(content) and content.id is not None and about is not None:
            makes = calls.get(content.call_id) if is_tool_question(content) else about
            if makes is not None:
                found.append(Question(content.id, about, makes))
    return found


def state_of(session: Any) -> MutableMapping[str, Any] | None:
    """Return the state of a session of any kind; None if it has none."""
    state = getattr(session, "state", None)
    return cast("MutableMapping[str, Any]", state) if isinstance(state, MutableMapping) else None


def load_batches(session: Any) -> list[Batch]:
    """Return the open questions of a session."""
    found: Any = (state_of(session) or {}).get(APPROVALS_KEY)
    if not isinstance(found, Mapping):
        return []
    return [Batch.from_dict(key, plain) for key, plain in cast("Mapping[str, Any]", found).items()]


def store_batches(session: Any, batches: Sequence[Batch]) -> None:
    """Replace the open questions of a session."""
    state = state_of(session)
    if state is not None and batches:
        # A dict and not a list: agents that share a session each change their own entries.
        state[APPROVALS_KEY] = {batch.key: batch.to_dict() for batch in batches}
    elif state is not None:
        state.pop(APPROVALS_KEY, None)


def add_batch(session: Any, batch: Batch) -> None:
    """Add questions to a session. They replace questions of the same agent with the same ids."""
    ids = {question.id for question in batch.questions}
    others = load_batches(session)
    for other in others:
        if other.owner == batch.owner:
            other.questions = [question for question in other.questions if question.id not in ids]
    store_batches(session, [*(other for other in others if other.questions), batch])


def drop_questions(session: Any, owner: str, calls: Iterable[str | None]) -> None:
    """Remove an agent's questions about calls that are done."""
    done, batches = set(calls), load_batches(session)
    for batch in batches:
        if batch.owner == owner:
            batch.questions = [question for question in batch.questions if question.makes.call_id not in done]
    store_batches(session, [batch for batch in batches if batch.questions])


def waiting_call_ids(session: Any) -> set[str]:
    """Return the ids of the calls that wait for answers."""
    batches = load_batches(session)
    calls = [call for batch in batches for call in (*(each.makes for each in batch.questions), *batch.waiting)]
    return {call.call_id for call in calls if call.call_id}


@dataclass(frozen=True, slots=True)
class Decision:
    """A call to make or to reject: it was answered, or it waited for other answers of its batch."""

    call: Content
    answers: tuple[Content, ...] = ()
    is_approved: bool = True
    is_for_tool: bool = False
    """True if the tool itself asked."""

    def rejection(self) -> Content:
        """Return the result of a rejected call."""
        return function_result(self.call, REJECTED)


@dataclass(slots=True)
class Resolved:
    """The decisions of a conversation's answers, and the questions of the same batches that are still open."""

    decisions: list[Decision] = field(default_factory=list[Decision])
    open: list[Question] = field(default_factory=list[Question])
    batches: list[Batch] = field(default_factory=list[Batch])
    """The batches that the session keeps."""


def resolve_answers(messages: Sequence[Message], session: Any, owner: str = "") -> Resolved:
    """Return the decisions of a conversation's answers. The session is not changed.

    Raises:
        AgentInvalidResponseException: an answer without a question, or about another call.
    """
    batches = load_batches(session)
    resolved = Resolved(batches=batches)
    if not any(is_approval_response(content) for message in messages for content in message.contents):
        return resolved
    for answered in _Conversation(messages, batches, owner).find_answers():
        resolved.open += [question for question in answered.batch.questions if answered.answer_to(question) is None]
        resolved.decisions += answered.decide()
    resolved.batches = [batch for batch in batches if batch.questions]
    return resolved


@dataclass(frozen=True, slots=True)
class _AnsweredBatch:
    """A batch and the answers to its questions."""

    batch: Batch
    _answers: list[tuple[Question, Content]] = field(default_factory=list["tuple[Question, Content]"])

    def add(self, question: Question, answer: Content) -> None:
        """Add an answer. Of several answers to one question, one that does not say yes wins."""
        given = self.answer_to(question)
        if given is None:
            self._answers.append((question, answer))
        elif given.approved is True and answer.approved is not True:
            self._answers[:] = [(each, answer if each is question else other) for each, other in self._answers]

    def answer_to(self, question: Question) -> Content | None:
        """Return the answer to this question object. Ids are not compared: they may repeat."""
        return next((answer for each, answer in self._answers if each is question), None)

    def decide(self) -> list[Decision]:
        """Return the decisions and remove their questions from the batch."""
        decisions: list[Decision] = []
        for group in _group_by_tool(self.batch.questions):
            given = [answer for question in group if (answer := self.answer_to(question)) is not None]
            if len(given) == len(group):
                decisions.append(_decide(group, given))
                decided = set(map(id, group))
                self.batch.questions = [each for each in self.batch.questions if id(each) not in decided]
        if decisions:
            decisions += [Decision(call) for call in self.batch.waiting]
            self.batch.waiting = []
        return decisions


def _group_by_tool(questions: Sequence[Question]) -> list[list[Question]]:
    """Group the questions that one call waits for: a tool gets all its answers at once."""
    by_tool: dict[str | None, list[Question]] = {}
    groups: list[list[Question]] = []
    for each in questions:
        group = by_tool.get(each.makes.call_id) if each.is_of_tool else None
        if group is not None:
            group.append(each)
            continue
        groups.append([each])
        if each.is_of_tool:
            by_tool[each.makes.call_id] = groups[-1]
    return groups


def _decide(group: Sequence[Question], given: Sequence[Content]) -> Decision:
    first = group[0]
    if not first.is_of_tool:
        return Decision(first.makes, tuple(given), all(answer.approved is True for answer in given))
    # A tool gets its answers whatever they say, each under the id that the tool used.
    prefix = tool_question_id(first.makes, "")
    answers = [
        replace(answer, id=question.id.removeprefix(prefix)) for question, answer in zip(group, given, strict=True)
    ]
    return Decision(first.makes, tuple(answers), is_for_tool=True)


class _Conversation:
    """The places of questions, answers and results in a conversation. The session's questions take precedence."""

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
        self._last_response = max(
            (place for place, each in enumerate(messages) if _is_model_response(each)), default=-1
        )
        """The last response of the model: answers before it have had their effect."""
        every = (each for message in messages for each in message.contents if each.type == "function_call")
        calls: dict[str | None, Content] = {each.call_id: each for each in every}
        self._asked_here = [
            Batch([each for each in find_questions(message.contents, calls) if not self._is_done(each.makes, place)])
            for place, message in enumerate(messages)
        ]

    def find_answers(self) -> list[_AnsweredBatch]:
        """Return each batch with answers. Calls that are done are left out."""
        found: dict[int, _AnsweredBatch] = {}
        for place in range(self._last_response + 1, len(self._messages)):
            for answer in filter(is_approval_response, self._messages[place].contents):
                match = self._find_question(answer, place)
                if match is None:
                    self._require_done(answer, place)
                    continue
                batch, question = match
                if not self._is_done(question.makes, place):
                    found.setdefault(id(batch), _AnsweredBatch(batch)).add(question, answer)
        return list(found.values())

    def _find_question(self, answer: Content, place: int) -> tuple[Batch, Question] | None:
        for batches in (self._own, self._others, *([each] for each in reversed(self._asked_here[:place]))):
            found = [(batch, each) for batch in batches for each in batch.questions if each.id == answer.id]
            if found:
                return _match_call(answer, found)
        return None

    def _is_done(self, call: Content, place: int) -> bool:
        """Return True if the call's result came after `place`."""
        return self._results.get(call.call_id, -1) > place

    def _require_done(self, answer: Content, place: int) -> None:
        """Require a result for an answer without a question: a truncated conversation may start with an answer."""
        if self._results.get((answer.function_call or answer).call_id or answer.id, -1) <= place:
            raise AgentInvalidResponseException(
                f"there is no question for approval {answer.id!r}; answer with the session in which it was asked, or "
                "give the message with the question before the answer"
            )


def _is_model_response(message: Message) -> bool:
    return message.role == "assistant" and any(not is_approval_request(content) for content in message.contents)


def _match_call(answer: Content, found: Sequence[tuple[Batch, Question]]) -> tuple[Batch, Question]:
    """Return the question whose call the answer names. Raises AgentInvalidResponseException."""
    call = answer.function_call
    if call is None and len(found) > 1:
        raise AgentInvalidResponseException(
            f"{len(found)} questions have the id {answer.id!r}, and the answer doesn't name its call; "
            "answer with `request.to_function_approval_response(...)`"
        )
    match = next((each for each in found if call is None or _essence(call) == _essence(each[1].about)), None)
    if match is None:
        question = found[0][1]
        raise AgentInvalidResponseException(
            f"the answer to {question.id!r} is about another call than the {question.about.name!r} call that was asked "
            "about; answer with `request.to_function_approval_response(...)`"
        )
    return match


def _essence(call: Content) -> tuple[Any, ...]:
    return call.call_id, call.name, call.parse_arguments() or {}
