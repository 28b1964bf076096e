"""Conversations: repair them for a model, and drop what a reader already knows.

A stored conversation may be incomplete: a process died before a call had its result, a user went on without approving
a call, an answer came late. The history keeps what happened. A model is shown a repaired copy, in which every call is
followed by its result and no approval requests are left.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeAlias, cast

from perdure.agents.messages.content import Content, function_error, function_result
from perdure.agents.messages.message import ATTRIBUTION, Message

INTERRUPTED: Final = "interrupted: there is no result, and it is unknown if the call had an effect"
UNDECIDED: Final = "the call was not made: it waits for approval, and nobody has answered yet"
_NEEDS_REPAIR: Final = frozenset(
    {"function_call", "function_result", "function_approval_request", "function_approval_response"}
)
_VALID_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_STEM_LENGTH_MAX: Final = 55
_ESCAPED_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SENT_FIELDS: Final = ("text", "call_id", "name", "arguments", "result", "exception", "items")


def sendable_name(name: str) -> str:
    """Return a tool name that providers accept. A valid name stays as it is, and different names stay different.

    Models invent names, and stored conversations keep them. One refused name would block the conversation for ever.
    """
    if _VALID_NAME.fullmatch(name):
        return name
    stem = re.sub("[^a-zA-Z0-9_-]+", "_", name)[:_STEM_LENGTH_MAX].strip("_") or "tool"
    return f"{stem}_{hashlib.sha256(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


def sendable_text(text: str) -> str:
    """Return a text that can be encoded as UTF-8: surrogate pairs are joined, and single surrogates replaced."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def sendable_messages(messages: Iterable[Message]) -> list[Message]:
    """Return messages whose tool names and texts every provider accepts. Messages that need no change are the same."""
    return [message.with_contents([_sendable_content(each) for each in message.contents]) for message in messages]


def find_renamed_tools(tools: Iterable[Any]) -> dict[str, str]:
    """Map the sent names of tools to their own, for tools whose names providers refuse."""
    names = [name for tool in tools if isinstance(name := getattr(tool, "name", None), str)]
    return {sent: name for name in names if (sent := sendable_name(name)) != name}


def restore_names(contents: Iterable[Content], renamed: Mapping[str, str]) -> list[Content]:
    """Return contents in which calls have the tools' own names again."""
    return [
        replace(each, name=renamed[each.name])
        if each.type == "function_call" and each.name is not None and each.name in renamed
        else each
        for each in contents
    ]


def _sendable_content(content: Content) -> Content:
    sendable = {name: _sendable(getattr(content, name)) for name in _SENT_FIELDS}
    if content.type == "function_call":
        sendable["name"] = sendable_name(content.name or "")
        sendable["arguments"] = _sendable_arguments(sendable["arguments"])
    changed = {name: value for name, value in sendable.items() if value is not getattr(content, name)}
    return replace(content, **changed) if changed else content


def _sendable(value: Any) -> Any:
    """Replace single surrogates in texts, lists and mappings. A value that needs no change is returned as it is."""
    if isinstance(value, str):
        return sendable_text(value)
    if isinstance(value, Content):
        return _sendable_content(value)
    if isinstance(value, Mapping):
        pairs = cast("Mapping[Any, Any]", value).items()
        changed = {_sendable(key): _sendable(each) for key, each in pairs}
        is_same = all(key in value and each is value[key] for key, each in changed.items())
    elif isinstance(value, list | tuple):
        given = cast("Sequence[Any]", value)
        changed = [_sendable(each) for each in given]
        is_same = all(new is old for new, old in zip(changed, given, strict=True))
    else:
        return value
    return cast("Any", value) if is_same else changed


def _sendable_arguments(arguments: Any) -> Any:
    """Replace single surrogates that are escaped in JSON: some libraries parse it before they send it."""
    if not isinstance(arguments, str) or not _ESCAPED_SURROGATE.search(arguments):
        return arguments
    try:
        parsed = json.loads(arguments)
    except ValueError:
        return arguments
    sendable = _sendable(parsed)
    return arguments if sendable is parsed else json.dumps(sendable)


def is_approval_request(content: Content) -> bool:
    """Return True for a request to approve a call of ours, not of the provider."""
    return content.type == "function_approval_request" and not is_hosted(content)


def is_approval_response(content: Content) -> bool:
    """Return True for the answer to such a request."""
    return content.type == "function_approval_response" and not is_hosted(content)


def is_hosted(content: Content) -> bool:
    """Return True if the approval is about a call that the provider makes: it is sent there unchanged."""
    call = content.function_call
    return call is not None and (call.type != "function_call" or bool(call.additional_properties.get("server_label")))


def is_tool_question(request: Content) -> bool:
    """Return True if a tool asked this during its call, so that the call it is about is not in the conversation.

    The ids decide: a tool's call and a call made inside it may have the same name.
    """
    return bool(request.call_id) and (request.id or "").startswith(tool_question_id(request, ""))


def tool_question_id(call: Content, own_id: str) -> str:
    """Return the id of a tool's question. It starts with the call's id, because parallel calls may reuse `own_id`."""
    return f"{call.call_id}/{own_id}"


def is_local_call(content: Content) -> bool:
    """Return True for a call that we have to make, not one that the provider has made."""
    return content.type == "function_call" and not content.informational_only


def content_types(messages: Iterable[Message]) -> set[str]:
    """Return the types of all contents in a conversation."""
    return {content.type for message in messages for content in message.contents}


def call_ids_in(messages: Iterable[Message]) -> Iterator[str]:
    """Yield the ids of all calls in a conversation."""
    for message in messages:
        for content in message.contents:
            for each in (content, content.function_call):
                if each is not None and each.call_id:
                    yield each.call_id


def repair_conversation(messages: Sequence[Message], *, is_complete: bool = True) -> list[Message]:
    """Return the conversation as a model accepts it. The given messages are not changed.

    A call without a result gets one that says so. Results follow their calls. Results without a call are dropped, and
    so are approval requests. `is_complete=False` means that the provider stores the conversation and gets only new
    messages, so the call of a result may be missing here.
    """
    if _NEEDS_REPAIR.isdisjoint(content_types(messages)):
        return [message for message in messages if message.contents]
    entries = _without_approvals(messages)
    if not is_complete:
        return [entry.message.with_contents(entry.contents) for entry in entries if entry.contents]
    pairs = _Pairs(entries)
    repaired: list[Message] = []
    for place, entry in enumerate(entries):
        kept = [content for content in entry.contents if id(content) not in pairs.moved]
        if kept:
            repaired.append(entry.message.with_contents(kept))
        if results := pairs.results_of(pairs.calls[place], place):
            repaired.append(pairs.existing_message(place, results) or Message("tool", results))
        if late := pairs.late.get(place):
            author = entry.message.author_name
            repaired.append(Message("assistant", list(late), author_name=author))
            repaired.append(Message("tool", pairs.results_of(late, place), author_name=author))
    return repaired


@dataclass(slots=True)
class _Entry:
    """A message and the contents of it that a model may see.

    Attributes:
        is_undecided: True if a call of this message waits for approval.
        answered: Ids of the calls that this message approves or rejects.
    """

    message: Message
    contents: list[Content]
    is_undecided: bool = False
    answered: set[str | None] = field(default_factory=set["str | None"])


def _without_approvals(messages: Sequence[Message]) -> list[_Entry]:
    """Remove approvals. A request whose call is nowhere else is replaced by the call."""
    calls = {each.call_id for message in messages for each in message.contents if each.type == "function_call"}
    # Ids may repeat: an answer belongs to a request before it.
    answered = {
        each.id: place
        for place, message in enumerate(messages)
        for each in message.contents
        if is_approval_response(each)
    }
    entries: list[_Entry] = []
    for place, message in enumerate(messages):
        entry = _Entry(message, [])
        for content in message.contents:
            if is_approval_response(content):
                entry.answered |= {content.id, (content.function_call or content).call_id}
            elif not is_approval_request(content):
                entry.contents.append(content)
            else:
                entry.is_undecided |= answered.get(content.id, -1) < place
                call = content.function_call
                if call is not None and call.call_id not in calls and not is_tool_question(content):
                    calls.add(call.call_id)
                    entry.contents.append(call)
        entries.append(entry)
    return entries


class _Pairs:
    """Match results with calls. Calls are identified by `id()`, because call ids may repeat.

    Attributes:
        calls: The calls of each message.
        moved: Results and calls that don't stay in their message.
        late: Calls that move to where their results came, because the model had gone on speaking before.
    """

    def __init__(self, entries: list[_Entry]) -> None:
        self._entries = entries
        self.calls: list[list[Content]] = []
        self._results: dict[int, Content] = {}
        self.moved: set[int] = set()
        self.late: dict[int, list[Content]] = {}
        hosted = {each.call_id for entry in entries for each in entry.contents if each.informational_only}
        early: defaultdict[str | None, deque[Content]] = defaultdict(deque)
        for place, entry in enumerate(entries):
            self.calls.append([each for each in entry.contents if is_local_call(each)])
            for content in entry.contents:
                if content.type == "function_result" and content.call_id not in hosted:
                    self.moved.add(id(content))
                    if not self._match(content, place):
                        early[content.call_id].append(content)
        for call in [call for calls in self.calls for call in calls if id(call) not in self._results]:
            if waiting := early[call.call_id]:
                self._results[id(call)] = waiting.popleft()

    def _match(self, result: Content, place: int) -> bool:
        """Give a result to the first open call of its id in the latest message that has one.

        Agents that share a history may use equal ids, so calls of the result's own author come first.
        """
        author = self._entries[place].message.author_name
        places = range(place, -1, -1)
        own = [each for each in places if author is not None and self._entries[each].message.author_name == author]
        for earlier in (*own, *places):
            for call in self.calls[earlier]:
                if call.call_id == result.call_id and id(call) not in self._results:
                    self._results[id(call)] = result
                    self._move_if_late(call, earlier, place)
                    return True
        return False

    def _move_if_late(self, call: Content, call_place: int, place: int) -> None:
        """Move a call that was decided late; otherwise the conversation could end with an older model message."""
        answered = (each for each in range(place, call_place, -1) if call.call_id in self._entries[each].answered)
        decided = next(answered, place)
        between = (entry for entry in self._entries[call_place + 1 : decided] if entry.message.role == "assistant")
        if not any(content.type == "text" and content.text for entry in between for content in entry.contents):
            return
        self.calls[call_place] = [each for each in self.calls[call_place] if each is not call]
        self.moved.add(id(call))
        self.late.setdefault(decided, []).append(call)

    def results_of(self, calls: Sequence[Content], place: int) -> list[Content]:
        """Return the results of calls in their order, with a substitute for each missing one."""
        is_undecided = self._entries[place].is_undecided
        return [
            self._results.get(id(call))
            or (function_result(call, UNDECIDED) if is_undecided else function_error(call, INTERRUPTED, "interrupted"))
            for call in calls
        ]

    def existing_message(self, place: int, results: Sequence[Content]) -> Message | None:
        """Return the next message if it holds exactly these results."""
        following = self._entries[place + 1].message if place + 1 < len(self._entries) else None
        if following is None or [id(each) for each in following.contents] != [id(each) for each in results]:
            return None
        return following


_Key: TypeAlias = tuple[str, str]


def drop_known_messages(messages: Sequence[Message], known: Iterable[Message]) -> list[Message]:
    """Return the messages that a reader of `known` has not seen, in order.

    Only messages attributed to a history can be dropped: a user who says the same twice means it.
    """
    if not any(ATTRIBUTION in message.additional_properties for message in messages):
        return list(messages)
    reader = _Reader(known)
    found: list[Message] = []
    for message in messages:
        new = list(message.contents)
        if ATTRIBUTION in message.additional_properties:
            new = [content for content in new if not reader.knows(message, content)]
        if new or not message.contents:
            found.append(message.with_contents(new))
    return found


class _Reader:
    """Everything a reader knows.

    Calls and results are matched by id, in any order: a call that needed approval is repeated with fewer fields. All
    other contents are matched by their text and author, in order. A message without an author may be anybody's.
    """

    def __init__(self, known: Iterable[Message]) -> None:
        self._ids: Counter[_Key] = Counter()
        self._places: defaultdict[_Key, list[tuple[int, str | None]]] = defaultdict(list)
        self._place = 0
        self._begin = sys.maxsize
        """The first known content that was repeated."""
        for place, (message, content) in enumerate((each, content) for each in known for content in each.contents):
            if (key := _call_key(content)) is not None:
                self._ids[key] += 1
            else:
                self._places[_text_key(message.role, content)].append((place, message.author_name))

    def knows(self, message: Message, content: Content) -> bool:
        """Return True if a content was seen before. Each one that was seen counts once."""
        if (key := _call_key(content)) is not None:
            is_known = self._ids[key] > 0
            self._ids[key] -= is_known
            return is_known
        known, author = self._places.get(_text_key(message.role, content), []), message.author_name
        same = [each for each in known if author is None or each[1] in {None, author}]
        # Two readers may have seen parallel messages in different orders, so look again from where the repetition
        # began. Equal texts before that are other messages.
        found = next((each for start in (self._place, self._begin) for each in same if each[0] >= start), None)
        if found is None:
            return False
        known.remove(found)
        self._begin = min(self._begin, found[0])
        self._place = max(self._place, found[0] + 1)
        return True


def _call_key(content: Content) -> _Key | None:
    if content.type in {"function_call", "function_result"} and content.call_id:
        return content.type, content.call_id
    return None


def _text_key(role: str, content: Content) -> _Key:
    return role, content.text or "" if content.type == "text" else json.dumps(content.to_dict(), default=str)
