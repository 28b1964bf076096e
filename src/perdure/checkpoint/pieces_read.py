"""Reading what checkpoints and journals are made of: deliveries, requests, outputs, whole snapshots."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import unquote

from perdure.codec import Encoded, Kept, decode, loads, piece, references, verified, with_parts
from perdure.kernel import (
    CHUNK_LENGTH,
    Answered,
    Cancelled,
    Delayed,
    Delivery,
    Limits,
    Output,
    Request,
    Snapshot,
    Suspended,
    Trail,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from perdure.codec import Codec

Entry: TypeAlias = str | bytes
"""What stands at a path: the hash of a part, or the text itself."""


class PieceReader:
    """Reads the same from the parts of one checkpoint. Values stay encoded until they are asked for.

    With `brings_parts` each value has its parts with it: what was read from a journal is written into the checkpoint
    that makes the journal void; and what stands in a checkpoint itself goes with it.
    """

    def __init__(
        self, codec: Codec, parts: Mapping[str, bytes], checkpoint_id: str, *, brings_parts: bool = False
    ) -> None:
        self._codec = codec
        self._parts = parts
        self._checkpoint_id = checkpoint_id
        self._brings_parts = brings_parts

    def snapshot(self, tree: dict[str, Any], counts: tuple[int, int, int]) -> Snapshot:
        """A whole snapshot, from its contents."""
        turn, iteration, since_input = counts
        return Snapshot(
            turn=turn,
            iteration=iteration,
            since_input=since_input,
            deliveries=tuple(map(self.delivery, self._read(tree.get("deliveries")) or ())),
            fan_in=self._fan_in(self._read(tree.get("fan_in")) or {}),
            state={
                (unquote(scope), key): self.stored(address, f"state[{key!r}]")
                for scope, keys in tree.get("state", {}).items()
                for key, address in keys.items()
            },
            executors={
                executor_id: self.stored(address, f"state of executor {executor_id!r}")
                for executor_id, address in tree.get("executor", {}).items()
            },
            requests={
                request_id: self.request(self._read(address)) for request_id, address in tree.get("request", {}).items()
            },
            answered=self.answered(tree),
            received=self._trail(tree.get("received", {}), str),
            outputs=self._trail(tree.get("outputs", {}), self.output),
            children={
                unquote(executor_id): self.snapshot(child, self.counts(child))
                for executor_id, child in tree.get("child", {}).items()
            },
            kwargs=self.stored(tree["kwargs"], "run kwargs") if "kwargs" in tree else None,
            suspended=tuple(map(self._suspended, self._read(tree.get("suspended")) or ())),
            delayed=tuple(map(self._delayed, self._read(tree.get("delayed")) or ())),
            carried={key: self.stored(address, f"record {key!r}") for key, address in tree.get("carried", {}).items()},
            cancelled=Cancelled(*self._read(tree["cancelled"])) if "cancelled" in tree else None,
            limits=Limits(*self._read(tree["limits"])) if "limits" in tree else Limits(),
        )

    def _suspended(self, tree: dict[str, Any]) -> Suspended:
        return Suspended(self.delivery(tree["delivery"]), tree["wake_at"], tree["awaits"])

    def _delayed(self, tree: dict[str, Any]) -> Delayed:
        return Delayed(
            tree["due"],
            tree["source"],
            tree["send"],
            self.inline(tree["value"], f"message of executor {tree['source']!r}"),
            tree["asked_for"],
            tuple(tree["targets"]),
            tuple(tree["fan_ins"]),
        )

    def counts(self, tree: dict[str, Any]) -> tuple[int, int, int]:
        """The counts of a sub-workflow: turn, supersteps of the turn, supersteps since the last input."""
        turn, iteration, since_input = self._read(tree["counts"])
        return turn, iteration, since_input

    def answered(self, tree: dict[str, Any]) -> Trail[Answered]:
        """The requests that have been answered."""
        return self._trail(tree.get("answered", {}), lambda pair: Answered(*pair))

    def _fan_in(self, tree: dict[str, dict[str, list[Any]]]) -> dict[str, dict[str, tuple[Kept, ...]]]:
        return {
            group_id: {
                source: tuple(self.inline(value, f"message of executor {source!r}") for value in values)
                for source, values in buffer.items()
            }
            for group_id, buffer in tree.items()
        }

    def _read(self, entry: Entry | None) -> Any:
        return None if entry is None else loads(self._text(entry))

    def _text(self, entry: Entry) -> bytes:
        return entry if isinstance(entry, bytes) else verified(self._parts, entry)

    def stored(self, entry: Entry, path: str) -> Kept:
        """A value that stands at a path of its own."""
        text = self._text(entry)
        return self._kept(Encoded(text, (), references(text), immutable=False), path)

    def inline(self, tree: object, path: str) -> Kept:
        """A value inside of a document."""
        return self._kept(piece(tree), path)

    def _kept(self, encoded: Encoded, path: str) -> Kept:
        if encoded.refs and self._brings_parts:
            encoded = encoded.with_parts(with_parts(encoded.refs, self._parts))
        return Kept(path=path, encoded=encoded, stored=self._parts, checkpoint_id=self._checkpoint_id)

    def _type(self, tree: object, path: str) -> object:
        return decode(self._codec, self.inline(tree, path))

    def request(self, tree: dict[str, Any]) -> Request:
        """A request."""
        path = f"request {tree['id']!r}"
        return Request(
            tree["id"],
            tree["executor"],
            self.inline(tree["data"], path),
            self._type(tree["request_type"], path),
            self._type(tree["response_type"], path),
            opened_at=tree.get("opened_at"),
            deadline=tree.get("deadline"),
            default=self.inline(tree["default"], f"default of {path}") if "default" in tree else None,
            approves=tree.get("approves"),
            resumes=tree.get("resumes"),
            refusals=tuple(tree.get("refusals", ())),
        )

    def delivery(self, tree: dict[str, Any]) -> Delivery:
        """A delivery."""
        path = f"message for executor {tree['target']!r}"
        return Delivery(
            tree["target"],
            tuple(tree["sources"]),
            tuple(self.inline(value, path) for value in tree["values"]),
            tree["send"],
            is_gathered=tree.get("gathered", False),
            asked_for=tree.get("asked_for"),
            answers=self.request(tree["answers"]) if "answers" in tree else None,
            activation_id=tree.get("home"),
            woken_at=tree.get("woken_at"),
        )

    def output(self, tree: dict[str, Any]) -> Output:
        """An output."""
        path = f"output of executor {tree['executor']!r}"
        data = self.inline(tree["data"], path)
        return Output(tree["executor"], tree["kind"], data, is_whole=tree.get("whole", False))

    def _trail(self, chunks: Mapping[str, Entry], read: Callable[[Any], Any]) -> Trail[Any]:
        in_order = [chunks[index] for index in sorted(chunks, key=int)]
        loaded = [tuple(map(read, chunk)) for chunk in self._chunks(in_order)]
        if loaded and len(loaded[-1]) < CHUNK_LENGTH:
            return Trail(tuple(loaded[:-1]), loaded[-1])
        return Trail(tuple(loaded), ())

    def _chunks(self, entries: Iterable[Entry]) -> Iterator[list[Any]]:
        for entry in entries:
            match self._read(entry):
                case {"~": "index", "chunks": inner}:
                    yield from self._chunks(inner)
                case chunk:
                    yield chunk


def tree_of(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The contents by their first names: `state/<scope>/<key>`, `child/<id>/...` and so on, nested."""
    tree: dict[str, Any] = {}
    for path, entry in entries.items():
        _place(tree, path, entry)
    return tree


def _place(tree: dict[str, Any], path: str, entry: Entry) -> None:
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
