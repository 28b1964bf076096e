"""Look into checkpoints with the store alone, as plain data: nothing is imported, nothing is called.

Values are JSON data. An object of a class is a dict of its fields with the stored name of its type as `$type`; bytes
are `{"$type": "bytes", "base64": ...}`; a date, time, duration, decimal, UUID or path is a string; tuples, sets and
queues are lists. A value is read when it is first looked at, so that large values that nobody looks at cost nothing.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast
from urllib.parse import unquote

from perdure.checkpoint import EXECUTOR_STATE_KEY, SAVED_FIELDS_PATH, entries_of, header_of, naming, require_graph
from perdure.codec import MALFORMED, dumps, plain_data, references, verified
from perdure.errors import CheckpointDamagedError, RunNotFoundError
from perdure.records import Manifest, digest

if TYPE_CHECKING:
    from perdure.storage.port import Store

_Entry: TypeAlias = str | bytes
_INDEX = b'{"~":"index"'
_ABSENT = object()


class Values(Mapping[str, Any]):
    """Plain values by name. Each is read when it is first asked for; this blocks while the store reads."""

    def __init__(self, paths: Mapping[str, str], read: Callable[[str], Any]) -> None:
        self._paths = paths
        self._read = read

    def __getitem__(self, name: str) -> Any:
        return self._read(self._paths[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __repr__(self) -> str:
        return f"<{len(self)} values: {', '.join(self)}>"


@dataclass(frozen=True, slots=True)
class PendingMessage:
    """A message that waits for an executor.

    Attributes:
        sources: The executors that sent it. A fan-in has several.
        target: The executor that handles it, or several for a delayed message.
        value: The message as plain data. A fan-in's is a list.
        due: The time until which it is delayed.
        answers: The id of the request that it answers.
    """

    sources: tuple[str, ...]
    target: str
    value: Any
    due: str | None = None
    answers: str | None = None


class SnapshotView:
    """The content of a run, or of a sub-workflow in it, as plain data."""

    def __init__(self, reader: _EntryReader, prefix: str = "") -> None:
        self.reader = reader
        self._prefix = prefix

    def _values(self, kind: str) -> Values:
        start = f"{self._prefix}{kind}/"
        found = {path.removeprefix(start): path for path in self.reader.entries if path.startswith(start)}
        return Values(found, self.reader.read)

    def _document(self, name: str) -> Any:
        path = self._prefix + name
        return self.reader.read(path) if path in self.reader.entries else None

    @cached_property
    def _saved(self) -> Mapping[str, Any]:
        """The fields of a checkpoint that a program made by hand."""
        return self._document(SAVED_FIELDS_PATH) or {}

    @property
    def state(self) -> Mapping[str, Any]:
        """The shared state by key."""
        if self._saved:
            return {key: value for key, value in self._saved["state"].items() if key != EXECUTOR_STATE_KEY}
        return self._values("state/")

    @property
    def scopes(self) -> Mapping[str, Mapping[str, Any]]:
        """The state that is not shared, by scope: `private:<executor>` or `named:<name>`."""
        found: dict[str, dict[str, str]] = {}
        for path in self._values("state"):
            scope, _, key = path.partition("/")
            if scope:
                found.setdefault(unquote(scope), {})[key] = f"{self._prefix}state/{path}"
        return {scope: Values(paths, self.reader.read) for scope, paths in found.items()}

    @property
    def executors(self) -> Mapping[str, Any]:
        """The saved states of executors by id."""
        return self._saved["state"].get(EXECUTOR_STATE_KEY, {}) if self._saved else self._values("executor")

    @property
    def messages(self) -> tuple[PendingMessage, ...]:
        """The messages that wait for the next superstep, and those that are delayed."""
        if self._saved:
            every = [each for sent in self._saved["messages"].values() for each in sent]
            return tuple(PendingMessage((each["source_id"],), each["target_id"] or "", each["data"]) for each in every)
        waiting = [
            PendingMessage(
                tuple(each["sources"]),
                each["target"],
                each["values"] if each.get("gathered") or len(each["values"]) != 1 else each["values"][0],
                answers=each["answers"]["id"] if "answers" in each else None,
            )
            for each in self._document("deliveries") or ()
        ]
        delayed = [
            PendingMessage(
                (each["source"],), ", ".join((*each["targets"], *each["fan_ins"])), each["value"], each["due"]
            )
            for each in self._document("delayed") or ()
        ]
        return (*waiting, *delayed)

    @property
    def fan_in(self) -> Mapping[str, Mapping[str, Sequence[Any]]]:
        """The messages that fan-ins have gathered so far, by group and source."""
        return self._document("fan_in") or {}

    @property
    def requests(self) -> Mapping[str, Mapping[str, Any]]:
        """The open requests by id: executor, data, types, schema, opened_at, deadline and so on."""
        return self._saved["pending_request_info_events"] if self._saved else self._values("request")

    @property
    def suspended(self) -> Sequence[Mapping[str, Any]]:
        """The activations that wait for a time (`wake_at`) or an answer (`awaits`), each with its `delivery`."""
        return self._document("suspended") or ()

    @property
    def outputs(self) -> Sequence[Mapping[str, Any]]:
        """The outputs of the turn in order: executor, kind, data."""
        values = self._values("outputs")
        return [each for number in sorted(values, key=int) for each in values[number]]

    @property
    def spent(self) -> Mapping[str, float]:
        """The spending of the run, by resource."""
        return cast("list[Any]", self._document("limits") or [None, {}, {}])[2]

    @property
    def budget(self) -> Mapping[str, float]:
        """The budget of the run, by resource."""
        return cast("list[Any]", self._document("limits") or [None, {}, {}])[1]

    @property
    def cancelled(self) -> Sequence[str | None] | None:
        """The time, the sender and the reason of a cancellation; None if the run was not cancelled."""
        return self._document("cancelled")

    @property
    def sub_workflows(self) -> Mapping[str, SnapshotView]:
        """The content of sub-workflows by the id of their executor."""
        names = dict.fromkeys(path.split("/", 1)[0] for path in self._values("child"))
        return {unquote(name): SnapshotView(self.reader, f"{self._prefix}child/{name}/") for name in names}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data. This reads every value."""
        return {
            "state": dict(self.state),
            "scopes": {scope: dict(values) for scope, values in self.scopes.items()},
            "executors": dict(self.executors),
            "messages": [
                {"sources": [*each.sources], "target": each.target, "value": each.value, "due": each.due}
                | ({} if each.answers is None else {"answers": each.answers})
                for each in self.messages
            ],
            "fan_in": self.fan_in,
            "requests": dict(self.requests),
            "suspended": list(self.suspended),
            "outputs": list(self.outputs),
            "spent": self.spent,
            "budget": self.budget,
            "cancelled": self.cancelled,
            "sub_workflows": {name: child.to_dict() for name, child in self.sub_workflows.items()},
        }


class CheckpointView(SnapshotView):
    """A checkpoint as plain data, read with the store alone.

    Attributes:
        kind: What the commit took in: `entry` a message, `response` answers, `superstep` its effects, `inbox` commands
            and timers, `resume`, `edit` a fork's change; `saved` was made by a program.
        iteration: The number of supersteps of the turn.
        turn: The number of messages that the run has taken so far.
        version: The version of the workflow that wrote it, if it is known.
    """

    def __init__(self, manifest: Manifest, reader: _EntryReader) -> None:
        super().__init__(reader)
        header = header_of(manifest)
        self.checkpoint_id = manifest.checkpoint_id
        self.run_id = manifest.run_id
        self.workflow_name = manifest.workflow_name
        self.previous_checkpoint_id = manifest.previous_id
        self.timestamp = datetime.fromisoformat(manifest.timestamp)
        self.iteration = manifest.iteration_count
        self.kind: str = header.get("kind", "saved")
        self.turn: int = header["turn"]
        self.version: int | None = header.get("definition_version")
        self.graph_signature_hash: str = header["graph_signature_hash"]

    @property
    def graph(self) -> Mapping[str, Any]:
        """The stored signature of the graph: `start_executor`, `executors`, `edge_groups`; empty if it has none."""
        return self.reader.graph().get("signature", {})

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON data. This reads every value."""
        names = ("checkpoint_id", "run_id", "workflow_name", "previous_checkpoint_id", "iteration", "kind", "turn")
        own = {name: getattr(self, name) for name in (*names, "version", "graph_signature_hash")}
        return {**own, "timestamp": self.timestamp.isoformat(), **super().to_dict(), "graph": self.graph}


@dataclass(frozen=True)
class _EntryReader:
    """Reads the entries of one checkpoint as plain data, each once."""

    checkpoint_id: str
    entries: Mapping[str, _Entry]
    blobs: Callable[[Iterable[str]], Mapping[str, bytes]]
    value_size_max: int | None
    _known: dict[str, Any] = field(default_factory=dict[str, Any])

    def read(self, path: str) -> Any:
        """Return the plain data of an entry. Raises CheckpointDamagedError."""
        if path not in self._known:
            plain = self._plain(path)
            self._known[path] = plain if self.value_size_max is None else cut(plain, self.value_size_max)
        return self._known[path]

    def graph(self) -> dict[str, Any]:
        """Return the stored description of the graph."""
        return require_graph(self._plain("graph")) if "graph" in self.entries else {}

    def _plain(self, path: str) -> Any:
        entry = self.entries[path]
        with naming(self.checkpoint_id):
            try:
                blobs = self.blobs([entry] if isinstance(entry, str) else references(entry))
                text = verified(blobs, entry) if isinstance(entry, str) else entry
                if text.startswith(_INDEX):
                    # Chunks of a long sequence of outputs are read like those of a long list.
                    text = b'{"~":"list"' + text.removeprefix(_INDEX)
                return plain_data(text, blobs, path=path, with_types=True)
            except MALFORMED as error:
                reason = f"{path!r} can't be read: {error or repr(error)}"
                raise CheckpointDamagedError(self.checkpoint_id, reason) from error


def cut(value: Any, size_max: int) -> Any:
    """Return plain data cut to about `size_max` characters, with a note where something is left out."""
    return _cut(value, [size_max])


def _cut(value: Any, room: list[int]) -> Any:
    """Take what a value needs from the room that is left."""
    if isinstance(value, str):
        kept = value[: max(room[0], 0)]
        room[0] -= len(kept)
        return value if len(kept) == len(value) else f"{kept}… (cut: {len(value):,} characters in all)"
    if isinstance(value, list):
        items = cast("list[Any]", value)
        shown: list[Any] = []
        while len(shown) < len(items) and room[0] > 0:
            shown.append(_cut(items[len(shown)], room))
        return shown if len(shown) == len(items) else [*shown, f"… (cut: {len(items):,} elements in all)"]
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value)
        found: dict[str, Any] = {}
        for key, inner in members.items():
            if room[0] <= 0:
                return {**found, "…": f"(cut: {len(members):,} members in all)"}
            room[0] -= len(key)
            found[key] = _cut(inner, room)
        return found
    room[0] -= len(str(value))
    return value


async def view(store: Store, checkpoint_id: str, value_size_max: int | None = None) -> CheckpointView:
    """Return a checkpoint as plain data. Its values are read when they are looked at."""
    return await _view(store, await store.manifest(checkpoint_id), value_size_max)


async def _view(store: Store, manifest: Manifest, value_size_max: int | None = None) -> CheckpointView:
    with naming(manifest.checkpoint_id):
        base = await store.blobs([] if manifest.base is None else [manifest.base])
    entries = entries_of(manifest, base)
    return CheckpointView(manifest, _EntryReader(manifest.checkpoint_id, entries, store.read_blobs, value_size_max))


@dataclass(frozen=True, slots=True)
class Change:
    """A difference between two checkpoints.

    Attributes:
        path: The place: an entry of the checkpoint, as in `state//cart`, then the place in its value, as in
            `state//cart/items/2`. `docs/checkpoint-format.md` lists the entries.
        before: The value in the first checkpoint; None if it was added.
        after: The value in the second checkpoint; None if it was removed.
    """

    path: str
    kind: Literal["added", "removed", "changed"]
    before: Any = None
    after: Any = None


@dataclass(frozen=True, slots=True)
class CheckpointDiff:
    """The differences from one checkpoint to another."""

    before: str
    after: str
    changes: tuple[Change, ...]


async def diff(store: Store, before: str, after: str, value_size_max: int | None = None) -> CheckpointDiff:
    """Compare two checkpoints. Entries of equal hash are not read."""
    views = [await view(store, each, value_size_max) for each in (before, after)]
    return await asyncio.to_thread(_diff, *views)


def _diff(before: CheckpointView, after: CheckpointView) -> CheckpointDiff:
    changes: list[Change] = []
    one, two = before.reader, after.reader
    for path in _differing(one.entries, two.entries):
        if path not in one.entries:
            changes.append(Change(path, "added", after=two.read(path)))
        elif path not in two.entries:
            changes.append(Change(path, "removed", one.read(path)))
        else:
            _compare(path, one.read(path), two.read(path), changes)
    return CheckpointDiff(before.checkpoint_id, after.checkpoint_id, tuple(changes))


def _differing(one: Mapping[str, _Entry], two: Mapping[str, _Entry]) -> list[str]:
    return [path for path in sorted({*one, *two}) if _hash(one.get(path)) != _hash(two.get(path))]


def _hash(entry: _Entry | None) -> str | None:
    return digest(entry) if isinstance(entry, bytes) else entry


def _compare(path: str, one: object, two: object, changes: list[Change]) -> None:
    """Add the differences between two plain values, as deep inside as they are."""
    if dumps(one) == dumps(two):
        return
    pairs: list[tuple[str, Any, Any]] = []
    if isinstance(one, dict) and isinstance(two, dict):
        old, new = cast("dict[str, Any]", one), cast("dict[str, Any]", two)
        if old.get("$type") == new.get("$type"):
            pairs = [(key, old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in dict.fromkeys([*old, *new])]
    elif isinstance(one, list) and isinstance(two, list):
        left, right = cast("list[Any]", one), cast("list[Any]", two)
        longest = max(len(left), len(right))
        padded = [[*each, *[_ABSENT] * (longest - len(each))] for each in (left, right)]
        pairs = [(str(place), *both) for place, both in enumerate(zip(*padded, strict=True))]
    for name, inner_one, inner_two in pairs:
        inner = f"{path}/{name}"
        if inner_one is _ABSENT:
            changes.append(Change(inner, "added", after=inner_two))
        elif inner_two is _ABSENT:
            changes.append(Change(inner, "removed", inner_one))
        else:
            _compare(inner, inner_one, inner_two, changes)
    if not pairs:
        changes.append(Change(path, "changed", one, two))


@dataclass(frozen=True, slots=True)
class RunDiff:
    """The comparison of two runs, superstep by superstep.

    Attributes:
        turn: The turn of the first superstep in which they differ; None if all supersteps that both have are equal.
        superstep: The number of that superstep in its turn. 0 is the input of the turn.
        last_equal: The checkpoints of both after the last superstep in which they are equal.
        diff: The differences after that superstep.
    """

    runs: tuple[str, str]
    turn: int | None
    superstep: int | None
    last_equal: tuple[str, str] | None
    diff: CheckpointDiff | None


async def diff_runs(store: Store, before: str, after: str, value_size_max: int | None = None) -> RunDiff:
    """Find the first superstep at which two runs diverge. Times, ids of requests and journal records do not count."""
    one, two = [await _history(store, run_id) for run_id in (before, after)]
    last_equal: tuple[str, str] | None = None
    for place in sorted(one.keys() & two.keys()):
        ids = (one[place].checkpoint_id, two[place].checkpoint_id)
        views = [await _view(store, each, value_size_max) for each in (one[place], two[place])]
        if ids[0] != ids[1] and await asyncio.to_thread(_content, *views):
            found = await asyncio.to_thread(_diff, *views)
            return RunDiff((before, after), *place, last_equal, found)
        last_equal = ids
    return RunDiff((before, after), None, None, last_equal, None)


async def _history(store: Store, run_id: str) -> dict[tuple[int, int], Manifest]:
    """Return the last checkpoint of each superstep on the way to a run's head, into the runs it was forked from."""
    record = await store.run(run_id)
    if record is None or record.head is None:
        raise RunNotFoundError(run_id)
    known: dict[str, Manifest] = {}
    found: dict[tuple[int, int], Manifest] = {}
    asked: set[str] = set()
    checkpoint_id: str | None = record.head
    while checkpoint_id is not None:
        if checkpoint_id not in known:
            owner = run_id if not asked else checkpoint_id.rpartition("@")[0]
            if owner in asked:
                break
            asked.add(owner)
            known |= {each.checkpoint_id: each for each in await store.manifests(run_id=owner)}
            continue
        manifest = known[checkpoint_id]
        found.setdefault((header_of(manifest)["turn"], manifest.iteration_count), manifest)
        checkpoint_id = manifest.previous_id
    return found


def _content(one: CheckpointView, two: CheckpointView) -> bool:
    """Return whether the content of two checkpoints differs, apart from times and ids."""
    kinds = {path.split("/", 1)[0] for path in _differing(one.reader.entries, two.reader.entries)}
    return any(_comparable(one, kind) != _comparable(two, kind) for kind in kinds)


def _comparable(view: SnapshotView, kind: str) -> object:
    match kind:
        case "state":
            return dict(view.state), {scope: dict(values) for scope, values in view.scopes.items()}
        case "executor":
            return dict(view.executors)
        case "deliveries" | "delayed":
            return [(each.sources, each.target, each.value) for each in view.messages]
        case "request":
            asked = [
                [each.get(key) for key in ("executor", "data", "response_type")] for each in view.requests.values()
            ]
            return sorted(asked, key=json.dumps)
        case "fan_in":
            return view.fan_in
        case "outputs":
            return view.outputs
        case "suspended":
            return [each["delivery"]["target"] for each in view.suspended]
        case "child":
            inner = ("state", "executor", "deliveries", "request", "fan_in", "outputs", "suspended")
            return {name: [_comparable(child, each) for each in inner] for name, child in view.sub_workflows.items()}
        case _:
            return None
