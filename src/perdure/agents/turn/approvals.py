"""Approvals: which calls an answer allows, and the session's notes of approved calls.

The call that is made is the one that the session asked about. A question in the conversation proves nothing: whoever
supplies the messages could have written it. An answer says yes or no. Its own arguments are compared and never used.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, cast

from perdure.agents.messages import conversation
from perdure.agents.messages.content import Content, function_error
from perdure.errors import AgentInvalidResponseException

if TYPE_CHECKING:
    from perdure.agents.messages.message import Message

APPROVALS_KEY: Final = "tool_approval"
"""Where a session's state keeps open questions."""

APPROVED_CALLS_KEY: Final = "tools_made"
"""Where a session's state notes the calls that were made after approval."""

REJECTED: Final = "the call was not made: the user has rejected it"


@dataclass(frozen=True, slots=True)
class Question:
    """An open question: its id, the call it is about, and the call to make if the answer is yes.

    The two calls are the same, unless a tool asked during its call: then the tool's call continues.
    """

    id: str
    about: Content
    makes: Content

    @property
    def is_of_tool(self) -> bool:
        """Return True if a tool asked, which gets the answer."""
        return self.id.startswith(conversation.tool_question_id(self.makes, ""))

    def to_content(self) -> Content:
        """Return the question as a content."""
        more = {"call_id": self.makes.call_id} if self.is_of_tool else {}
        return Content.from_function_approval_request(self.id, self.about, **more)


@dataclass(slots=True)
class Batch:
    """The questions of one model response, and its other calls, which wait for the answers.

    Attributes:
        owner: The agent that asks. Agents that share a session may ask at the same time under the same id.
        key: The batch's name in the session: its owner and the id of its first question.
    """

    questions: list[Question]
    waiting: list[Content] = field(default_factory=list[Content])
    owner: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        self.key = self.key or (f"{self.owner}/{self.questions[0].id}" if self.questions else "")


def find_questions(contents: Iterable[Content], calls: Mapping[str | None, Content]) -> list[Question]:
    """Return the questions in a message. `calls` are the calls of the conversation by id.

    A tool's question is about the call it names, and continues the tool's own call.
    """
    found: list[Question] = []
    for content in contents:
        about = content.function_call
        if conversation.is_approval_request(content) and content.id is not None and about is not None:
            makes = calls.get(content.call_id) if conversation.is_tool_question(content) else about
            if makes is not None:
                found.append(Question(content.id, about, makes))
    return found


def _state_of(session: Any) -> MutableMapping[str, Any]:
    """Return the state of a session of any kind; an empty one if it has none."""
    state = getattr(session, "state", None)
    return cast("MutableMapping[str, Any]", state) if isinstance(state, MutableMapping) else {}


def _load(session: Any, key: str) -> dict[str, Any]:
    found = _state_of(session).get(key)
    return dict(cast("Mapping[str, Any]", found)) if isinstance(found, Mapping) else {}


def _store(session: Any, key: str, entries: Mapping[str, Any]) -> None:
    """Replace entries of a session. They are a dict: agents that share a session each change their own entries."""
    state = _state_of(session)
    if entries:
        state[key] = entries
    else:
        state.pop(key, None)


def load_batches(session: Any) -> list[Batch]:
    """Return the open questions of a session."""
    read = Content.from_dict
    return [
        Batch(
            [Question(each["id"], read(each["about"]), read(each["makes"])) for each in plain["asked"]],
            [read(each) for each in plain["parked"]],
            plain.get("owner", ""),
            key,
        )
        for key, plain in _load(session, APPROVALS_KEY).items()
    ]


def store_batches(session: Any, batches: Iterable[Batch]) -> None:
    """Replace the open questions of a session. Batches without questions are dropped."""
    plain = {
        batch.key: {
            "owner": batch.owner,
            "asked": [
                {"id": each.id, "about": each.about.to_dict(), "makes": each.makes.to_dict()}
                for each in batch.questions
            ],
            "parked": [each.to_dict() for each in batch.waiting],
        }
        for batch in batches
        if batch.questions
    }
    _store(session, APPROVALS_KEY, plain)


def add_batch(session: Any, batch: Batch) -> None:
    """Add questions to a session. They replace questions of the same agent with the same ids."""
    ids = {question.id for question in batch.questions}
    others = load_batches(session)
    for other in others:
        if other.owner == batch.owner:
            other.questions = [question for question in other.questions if question.id not in ids]
    store_batches(session, [*others, batch])


def drop_questions(session: Any, owner: str, calls: Iterable[str | None]) -> None:
    """Remove an agent's questions about calls that are done."""
    done, batches = set(calls), load_batches(session)
    for batch in batches:
        if batch.owner == owner:
            batch.questions = [question for question in batch.questions if question.makes.call_id not in done]
    store_batches(session, batches)


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


@dataclass(slots=True)
class Resolved:
    """The decisions of a conversation's answers, and the questions of the same batches that are still open."""

    batches: list[Batch]
    """The batches that the session keeps."""
    decisions: list[Decision] = field(default_factory=list[Decision])
    open: list[Question] = field(default_factory=list[Question])


def resolve_answers(
    messages: Sequence[Message], session: Any, owner: str = "", *, trusts_conversation: bool = False
) -> Resolved:
    """Return the decisions of a conversation's answers. The session is not changed.

    With `trusts_conversation`, questions in the messages count as well as those of the session.

    Raises:
        AgentInvalidResponseException: an answer without a question, or about another call.
    """
    resolved = Resolved(load_batches(session))
    if "function_approval_response" not in conversation.content_types(messages):
        return resolved
    talk = _Conversation(messages, resolved.batches, owner, trusts_conversation=trusts_conversation)
    answered: dict[int, Batch] = {}
    answers: dict[int, Content] = {}
    """Answers by the identity of their question: ids may repeat."""
    for place, answer in talk.answers():
        match = talk.find_question(answer, place)
        if match is None or talk.is_done(match[1].makes, place):
            continue
        batch, question = match
        answered[id(batch)] = batch
        given = answers.get(id(question))
        # Of several answers to one question, one that does not say yes wins.
        if given is None or (given.approved is True and answer.approved is not True):
            answers[id(question)] = answer
    for batch in answered.values():
        resolved.open += [question for question in batch.questions if id(question) not in answers]
        resolved.decisions += _decide(batch, answers)
    return resolved


def _decide(batch: Batch, answers: Mapping[int, Content]) -> list[Decision]:
    """Return the decisions of a batch and remove their questions from it. A tool gets all its answers at once."""
    groups: dict[object, list[Question]] = {}
    for each in batch.questions:
        groups.setdefault(each.makes.call_id if each.is_of_tool else id(each), []).append(each)
    decisions: list[Decision] = []
    for group in groups.values():
        given = [answers[id(each)] for each in group if id(each) in answers]
        if len(given) < len(group):
            continue
        call = group[0].makes
        if group[0].is_of_tool:
            # A tool gets its answers whatever they say, each under the id that the tool used.
            own_ids = [each.id.removeprefix(conversation.tool_question_id(call, "")) for each in group]
            told = [replace(answer, id=own_id) for answer, own_id in zip(given, own_ids, strict=True)]
            decisions.append(Decision(call, tuple(told), is_for_tool=True))
        else:
            decisions.append(Decision(call, tuple(given), given[0].approved is True))
        decided = set(map(id, group))
        batch.questions = [each for each in batch.questions if id(each) not in decided]
    if decisions:
        decisions += [Decision(call) for call in batch.waiting]
        batch.waiting = []
    return decisions


class _Conversation:
    """The positions of questions, answers and results in a conversation. The session's questions take precedence."""

    def __init__(
        self, messages: Sequence[Message], known: Sequence[Batch], owner: str, *, trusts_conversation: bool
    ) -> None:
        self._messages = messages
        own, others = [each for each in known if each.owner == owner], [each for each in known if each.owner != owner]
        every = [(place, content) for place, message in enumerate(messages) for content in message.contents]
        self._results = {content.call_id: place for place, content in every if content.type == "function_result"}
        calls: dict[str | None, Content] = {each.call_id: each for _, each in every if each.type == "function_call"}
        self._known = (own, others)
        self._asked_here = [
            Batch([each for each in find_questions(message.contents, calls) if not self.is_done(each.makes, place)])
            for place, message in enumerate(messages if trusts_conversation else ())
        ]

    def answers(self) -> list[tuple[int, Content]]:
        """Return the answers with their positions. Those before the model's last response have had their effect."""
        found: list[tuple[int, Content]] = []
        for place, message in enumerate(self._messages):
            if message.role == "assistant" and not all(map(conversation.is_approval_request, message.contents)):
                found = []
            else:
                found += [
                    (place, content) for content in message.contents if conversation.is_approval_response(content)
                ]
        return found

    def is_done(self, call: Content, place: int) -> bool:
        """Return True if the call's result came after `place`."""
        return self._results.get(call.call_id, -1) > place

    def find_question(self, answer: Content, place: int) -> tuple[Batch, Question] | None:
        """Return the question of an answer; None if its call is done. Raises AgentInvalidResponseException."""
        for batches in (*self._known, *([each] for each in reversed(self._asked_here[:place]))):
            found = [(batch, each) for batch in batches for each in batch.questions if each.id == answer.id]
            if found:
                return _match_call(answer, found)
        # A truncated conversation may start with an answer.
        if self._results.get((answer.function_call or answer).call_id or answer.id, -1) <= place:
            raise AgentInvalidResponseException(
                f"there is no question for approval {answer.id!r}; answer with the session in which it was asked: "
                "a question in the messages alone doesn't count, since whoever supplies them could have written it"
            )
        return None


def _match_call(answer: Content, found: Sequence[tuple[Batch, Question]]) -> tuple[Batch, Question]:
    """Return the question whose call the answer names. Raises AgentInvalidResponseException."""
    call = answer.function_call
    if call is None and len(found) > 1:
        raise AgentInvalidResponseException(
            f"{len(found)} questions have the id {answer.id!r}, and the answer doesn't name its call; "
            "answer with `request.to_function_approval_response(...)`"
        )
    for each in found:
        if call is None or _essence(call) == _essence(each[1].about):
            return each
    question = found[0][1]
    raise AgentInvalidResponseException(
        f"the answer to {question.id!r} is about another call than the {question.about.name!r} call that was asked "
        "about; answer with `request.to_function_approval_response(...)`"
    )


def _essence(call: Content) -> tuple[Any, ...]:
    return call.call_id, call.name, call.parse_arguments() or {}


@dataclass(frozen=True, slots=True)
class ApprovedCalls:
    """The session's notes of calls that an agent made after approval, until the model has their results."""

    session: Any
    owner: str
    notes_begin: bool
    """True if a call is noted before it is made. In a workflow its step does that."""

    def begin(self, call: Content) -> None:
        """Note a call before it is made."""
        if self.notes_begin:
            self._note(call, {"call": call.to_dict(), "result": None})

    def finish(self, call: Content, contents: Sequence[Content]) -> None:
        """Note the result of a call. A call that asks again is forgotten: that is a new question."""
        result = next((each for each in contents if each.type == "function_result"), None)
        self._note(call, None if result is None else {"call": call.to_dict(), "result": result.to_dict()})

    def missing_results(self, messages: Sequence[Message], *, is_complete: bool) -> list[Content]:
        """Return the results that a conversation lacks. Forget those that it has or can no longer ask for.

        `is_complete=False` means that the provider stores the conversation.
        """
        notes = self._own()
        if not notes:
            return []
        every = [content for message in messages for content in message.contents]
        known = {content.call_id for content in every if content.type == "function_result"}
        visible = set(conversation.call_ids_in(messages))
        found: list[Content] = []
        for note in notes.values():
            call, result = Content.from_dict(note["call"]), note.get("result")
            if call.call_id in known or (is_complete and call.call_id not in visible):
                self._note(call, None)
            elif result is None:
                found.append(function_error(call, conversation.INTERRUPTED, "interrupted"))
            else:
                found.append(Content.from_dict(result))
        return found

    def forget(self) -> None:
        """Forget all calls: the provider has their results."""
        for note in self._own().values():
            self._note(Content.from_dict(note["call"]), None)

    def _own(self) -> dict[str, Any]:
        notes = _load(self.session, APPROVED_CALLS_KEY)
        return {key: note for key, note in notes.items() if key.startswith(f"{self.owner}/")}

    def _note(self, call: Content, note: Mapping[str, Any] | None) -> None:
        notes = _load(self.session, APPROVED_CALLS_KEY)
        notes[f"{self.owner}/{call.call_id}"] = note
        _store(self.session, APPROVED_CALLS_KEY, {key: each for key, each in notes.items() if each is not None})
