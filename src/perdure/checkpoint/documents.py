"""Kernel values as JSON documents: deliveries, requests, outputs, events, whole snapshots.

A `Layout` says which attribute of a class is which member of its document. It writes and reads them.
"""

from __future__ import annotations

import operator
from dataclasses import field, replace
from datetime import datetime, timedelta
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, get_origin
from urllib.parse import unquote

from perdure import kernel
from perdure.checkpoint.commands import schema_of, shown
from perdure.codec import (
    INLINE_LENGTH_MAX,
    Codec,
    Encoded,
    Kept,
    as_kept,
    decode,
    form_codec,
    loads,
    read_document,
    references,
    verified,
)
from perdure.data_classes import value_class
from perdure.typenames import describe, with_article
from perdure.types import is_instance_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


OUTPUT_LENGTH_MAX = 256
"""The limit for inline outputs is lower, because a chunk is written again with each output added to it."""

Tree: TypeAlias = dict[str, Any]

Kind: TypeAlias = Literal[
    "text", "moment", "number", "flag", "texts", "value", "values", "type", "request", "delivery", "event"
]
"""The kind of a member: plain data of a form, a tuple of strings, one or more kept values, a type, another document."""

_PLAIN: Mapping[Kind, type] = {"text": str, "moment": str, "number": int, "flag": bool}


@value_class
class Member:
    """A member of a document. An optional one is left out if it is None, False or empty."""

    attribute: str
    key: str
    kind: Kind = "text"
    is_optional: bool = False
    is_nullable: bool = False


@value_class
class Layout:
    """The document of a class. `path` names its values in errors, with members of the document."""

    cls: type
    path: str
    members: tuple[Member, ...]
    length_max: int = INLINE_LENGTH_MAX
    """The text of a longer value becomes a blob of its own."""
    _plan: tuple[tuple[str, Kind, bool], ...] = field(init=False)
    _parts: Callable[[object], tuple[Any, ...]] = field(init=False)

    def __post_init__(self) -> None:
        plan = tuple((member.key, member.kind, member.is_optional) for member in self.members)
        object.__setattr__(self, "_plan", plan)
        object.__setattr__(self, "_parts", operator.attrgetter(*(member.attribute for member in self.members)))

    def write(self, record: object, codec: Codec) -> Tree:
        """Return the document of a record. Raises EncodeError."""
        tree: Tree = {}
        for (key, kind, is_optional), part in zip(self._plan, self._parts(record), strict=True):
            if not (is_optional and (part is None or part is False or part == ())):
                tree[key] = part if kind in _PLAIN else self._write_part(kind, part, codec, tree)
        return tree

    def _write_part(self, kind: Kind, part: Any, codec: Codec, tree: Tree) -> Any:
        match kind:
            case "value":
                return inline(part, self.length_max)
            case "values":
                return [inline(each, self.length_max) for each in part]
            case "type":
                return codec.encode(part, path=self.path.format_map(tree))
            case "request":
                return request_tree(part, codec)
            case "delivery":
                return DELIVERY.write(part, codec)
            case "event":
                return event_tree(part, codec)
            case _:
                return part

    def read(self, tree: Tree, reader: DocumentReader) -> Any:
        """Return the record of a document. Raises KeyError, TypeError or ValueError if it is damaged."""
        path = self.path.format_map(tree)
        parts: dict[str, Any] = {}
        for member in self.members:
            if member.key in tree or not member.is_optional:
                part = tree[member.key]
                if part is not None or member.kind not in _PLAIN or not (member.is_optional or member.is_nullable):
                    part = reader.read_part(member.kind, part, path)
                parts[member.attribute] = part
        if self.cls is kernel.Delivery and "woken_at" not in parts and not (parts["values"] and parts["sources"]):
            raise ValueError("a message has no value or no source")
        return self.cls(**parts)


def require_form(tree: Any, form: Any) -> Any:
    """Return stored data if it has the form of a type expression. Raises TypeError."""
    if not _form_check(form)(tree):
        raise TypeError(f"{shown(tree)} is not {with_article(describe(form))}")
    return tree


# Each form is taken apart once. A page of requests checks thousands of members, which takes half of the time so.
@cache
def _form_check(form: Any) -> Callable[[Any], bool]:
    origin, args = get_origin(form), get_args(form)
    if form is Any:
        return lambda _: True
    if origin is UnionType and all(type(each) is type for each in args):
        return lambda tree: isinstance(tree, args)
    if origin is dict:
        check = _form_check(args[1])  # keys of JSON are texts
        return lambda tree: isinstance(tree, dict) and all(map(check, cast("dict[str, Any]", tree).values()))
    return lambda tree: is_instance_of(tree, form)


def require_moment(tree: Any) -> str:
    """Return a stored moment. Raises TypeError or ValueError."""
    text: str = require_form(tree, str)
    if datetime.fromisoformat(text).utcoffset() != timedelta():
        raise ValueError(f"{text!r} is not a moment in UTC")
    return text


def inline(value: object, length_max: int = INLINE_LENGTH_MAX) -> Encoded:
    """Return a kept value for a document: inline if it is short, else as a reference. Raises EncodeError."""
    return as_kept(value).require_encoded().inline(length_max)


REQUEST = Layout(
    kernel.Request,
    "request {id!r}",
    (
        Member("id", "id"),
        Member("executor_id", "executor"),
        Member("data", "data", "value"),
        Member("request_type", "request_type", "type"),
        Member("response_type", "response_type", "type"),
        Member("opened_at", "opened_at", "moment", is_optional=True),
        Member("deadline", "deadline", "moment", is_optional=True),
        Member("approves", "approves", is_optional=True),
        Member("resumes", "resumes", is_optional=True),
        Member("refusals", "refusals", "texts", is_optional=True),
        Member("default", "default", "value", is_optional=True),
    ),
)

DELIVERY = Layout(
    kernel.Delivery,
    "message for executor {target!r}",
    (
        Member("target_id", "target"),
        Member("sources", "sources", "texts"),
        Member("values", "values", "values"),
        Member("send", "send"),
        Member("is_gathered", "gathered", "flag", is_optional=True),
        Member("asked_for", "asked_for", is_optional=True),
        Member("answers", "answers", "request", is_optional=True),
        Member("activation_id", "home", is_optional=True),
        Member("woken_at", "woken_at", "moment", is_optional=True),
    ),
)

SUSPENDED = Layout(
    kernel.Suspended,
    "a suspended activation",
    (
        Member("delivery", "delivery", "delivery"),
        Member("wake_at", "wake_at", "moment", is_nullable=True),
        Member("awaits", "awaits", is_nullable=True),
    ),
)

DELAYED = Layout(
    kernel.Delayed,
    "message of executor {source!r}",
    (
        Member("due", "due", "moment"),
        Member("source_id", "source"),
        Member("send", "send"),
        Member("data", "value", "value"),
        Member("asked_for", "asked_for", is_nullable=True),
        Member("targets", "targets", "texts"),
        Member("fan_ins", "fan_ins", "texts"),
    ),
)

OUTPUT = Layout(
    kernel.Output,
    "output of executor {executor!r}",
    (
        Member("executor_id", "executor"),
        Member("kind", "kind"),
        Member("data", "data", "value"),
        Member("is_whole", "whole", "flag", is_optional=True),
    ),
    OUTPUT_LENGTH_MAX,
)

EVENT = Layout(
    kernel.PendingEvent,
    "data of a {type!r} event",
    (
        Member("type", "type"),
        Member("executor_id", "executor_id", is_optional=True),
        Member("path", "path", "texts", is_optional=True),
        Member("request_id", "request_id", is_optional=True),
        Member("iteration", "iteration", "number", is_optional=True),
        Member("lost", "lost", is_optional=True),
        Member("inner", "inner", "event", is_optional=True),
        Member("data", "data", "value", is_optional=True),
        Member("details", "details", "value", is_optional=True),
    ),
)
# The event and the checkpoint share the blob of an output.
_OUTPUT_EVENT = replace(EVENT, length_max=OUTPUT_LENGTH_MAX)


def request_tree(request: kernel.Request, codec: Codec) -> Tree:
    """Return the document of a request, with a schema for people and programs that answer without this program."""
    tree, schema = REQUEST.write(request, codec), schema_of(request.response_type)
    return tree if schema is None else {**tree, "schema": schema}


def read_request(text: bytes, blobs: Mapping[str, bytes], request_id: str) -> Tree:
    """Return the document of a request, without its types. Raises one of `MALFORMED` if it is damaged."""
    tree: Tree = require_form(loads(text), dict[str, Any])
    if REQUEST.read(tree, DocumentReader(form_codec(), blobs, "")).id != request_id:
        raise ValueError(f"it is the request {tree['id']!r}")
    require_form(tree.get("schema"), dict[str, Any] | None)
    return tree


def event_tree(event: kernel.PendingEvent, codec: Codec) -> Tree:
    """Return the document of an event. A value that can't be encoded is left out, so that events never fail a run."""
    data, details = event.data, event.details
    if data is None and details is None and not event.path and event.request_id is None and event.lost is None:
        # Most events say only who did something: this takes a fifth of the time.
        tree: Tree = {"type": event.type}
        if event.executor_id is not None:
            tree["executor_id"] = event.executor_id
        if event.iteration is not None:
            tree["iteration"] = event.iteration
        return tree
    if data is not None and (refusal := as_kept(data).refusal) is not None:
        event = replace(event, data=None, lost=str(refusal))
    if details is not None and (refusal := as_kept(details).refusal) is not None:
        event = replace(event, details=None, lost=str(refusal))
    layout = _OUTPUT_EVENT if event.type in ("output", "intermediate") else EVENT
    return layout.write(event, codec)


def fan_in_tree(buffers: Mapping[str, Mapping[str, tuple[object, ...]]]) -> Tree:
    """Return the document of the buffers of fan-in groups."""
    return {
        group: {source: [inline(value) for value in values] for source, values in buffer.items()}
        for group, buffer in buffers.items()
    }


Entry: TypeAlias = str | bytes
"""An entry at a path: the hash of a blob, or the text itself."""


@value_class
class DocumentReader:
    """Decodes the documents of a run. Values stay encoded until they are needed.

    With `brings_blobs`, each value holds its blobs: values read from a journal or from inline texts are written again
    into the next checkpoint.
    """

    codec: Codec
    blobs: Mapping[str, bytes]
    checkpoint_id: str
    brings_blobs: bool = False

    def read_part(self, kind: Kind, tree: Any, path: str) -> Any:
        """Decode a member of a document."""
        match kind:
            case "text" | "number" | "flag":
                return require_form(tree, _PLAIN[kind])
            case "moment":
                return require_moment(tree)
            case "texts":
                return tuple(require_form(tree, list[str]))
            case "value":
                return self.inline(tree, path)
            case "values":
                return tuple(self.inline(each, path) for each in require_form(tree, list))
            case "type":
                return decode(self.codec, self.inline(tree, path))
            case "request":
                return REQUEST.read(tree, self)
            case "delivery":
                return DELIVERY.read(tree, self)
            case "event":
                return EVENT.read(tree, self)

    def inline(self, tree: object, path: str) -> Kept:
        """Return a value inside a document."""
        return self._kept(read_document(tree), path)

    def stored(self, entry: Entry, path: str) -> Kept:
        """Return the value at a path of its own."""
        text = self._text(entry)
        return self._kept(Encoded(text, refs=references(text)), path)

    def _kept(self, encoded: Encoded, path: str) -> Kept:
        if self.brings_blobs:
            encoded = encoded.with_stored(self.blobs)
        return Kept(path=path, encoded=encoded, stored=self.blobs, checkpoint_id=self.checkpoint_id)

    def _text(self, entry: Entry) -> bytes:
        return entry if isinstance(entry, bytes) else verified(self.blobs, entry)

    def _all(self, tree: Tree, name: str, layout: Layout) -> tuple[Any, ...]:
        return tuple(layout.read(each, self) for each in require_form(self._loaded(tree, name) or [], list))

    def _loaded(self, tree: Tree, name: str) -> Any:
        return loads(self._text(tree[name])) if name in tree else None

    def _values(self, tree: Tree, name: str, path: str) -> dict[str, Kept]:
        return {key: self.stored(entry, path.format(key)) for key, entry in tree.get(name, {}).items()}

    def snapshot(self, tree: Tree, counts: tuple[int, int, int] | None = None) -> kernel.Snapshot:
        """Decode a snapshot from its tree of entries. A sub-workflow has its counts in it."""
        turn, iteration, since_input = counts or require_form(self._loaded(tree, "counts"), list[int])
        fan_in: Tree = self._loaded(tree, "fan_in") or {}
        return kernel.Snapshot(
            turn=turn,
            iteration=iteration,
            since_input=since_input,
            deliveries=self._all(tree, "deliveries", DELIVERY),
            fan_in={
                group_id: {
                    source: self.read_part("values", values, f"message of executor {source!r}")
                    for source, values in buffer.items()
                }
                for group_id, buffer in fan_in.items()
            },
            state={
                (unquote(scope), key): self.stored(entry, f"state[{key!r}]")
                for scope, keys in tree.get("state", {}).items()
                for key, entry in keys.items()
            },
            executors=self._values(tree, "executor", "state of executor {!r}"),
            requests={
                request_id: REQUEST.read(loads(self._text(entry)), self)
                for request_id, entry in tree.get("request", {}).items()
            },
            answered=self.answered(tree),
            received=self._trail(tree.get("received", {}), lambda each: require_form(each, str)),
            outputs=self._trail(tree.get("outputs", {}), lambda each: OUTPUT.read(each, self)),
            children={
                unquote(executor_id): self.snapshot(child) for executor_id, child in tree.get("child", {}).items()
            },
            kwargs=self.stored(tree["kwargs"], "run kwargs") if "kwargs" in tree else None,
            suspended=self._all(tree, "suspended", SUSPENDED),
            delayed=self._all(tree, "delayed", DELAYED),
            carried=self._values(tree, "carried", "record {!r}"),
            cancelled=_cancelled(*loads(self._text(tree["cancelled"]))) if "cancelled" in tree else None,
            limits=_limits(*loads(self._text(tree["limits"]))) if "limits" in tree else kernel.Limits(),
        )

    def answered(self, tree: Tree) -> kernel.Trail[kernel.Answered]:
        """Decode the records of answered requests."""
        return self._trail(
            tree.get("answered", {}), lambda record: kernel.Answered(*require_form(record, list[str | None]))
        )

    def _trail(self, chunks: Mapping[str, Entry], read: Callable[[Any], Any]) -> kernel.Trail[Any]:
        in_order = [chunks[index] for index in sorted(chunks, key=int)]
        loaded = [tuple(map(read, chunk)) for chunk in self._chunks(in_order)]
        if loaded and len(loaded[-1]) < kernel.CHUNK_LENGTH:
            return kernel.Trail(tuple(loaded[:-1]), loaded[-1])
        return kernel.Trail(tuple(loaded), ())

    def _chunks(self, entries: Iterable[Entry]) -> Iterator[list[Any]]:
        for entry in entries:
            match loads(self._text(entry)):
                case {"~": "index", "chunks": inner}:
                    yield from self._chunks(inner)
                case chunk:
                    yield require_form(chunk, list)


def _cancelled(at: object, by: object = None, reason: object = None) -> kernel.Cancelled:
    return kernel.Cancelled(require_moment(at), require_form(by, str | None), require_form(reason, str | None))


def _limits(deadline: object = None, *amounts: object) -> kernel.Limits:
    moment = None if deadline is None else require_moment(deadline)
    return kernel.Limits(moment, *(require_form(each, dict[str, int | float]) for each in amounts))


def tree_of(entries: Mapping[str, Entry]) -> Tree:
    """Arrange entries as a tree: `state/<scope>/<key>`, `child/<id>/...` and so on."""
    tree: Tree = {}
    for path, entry in entries.items():
        _place(tree, path, entry)
    return tree


def _place(tree: Tree, path: str, entry: Entry) -> None:
    kind, _, rest = path.partition("/")
    if not rest:
        tree[kind] = entry
    elif kind == "state":
        scope, _, key = rest.partition("/")
        tree.setdefault(kind, {}).setdefault(scope, {})[key] = entry
    elif kind == "child":
        executor_id, _, inner = rest.partition("/")
        _place(tree.setdefault(kind, {}).setdefault(executor_id, {}), inner, entry)
    else:
        tree.setdefault(kind, {})[rest] = entry
