"""A checkpoint is written as what changed: in itself, in parts, in a table of contents that rests on an older one."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest
from hypothesis import given, settings, strategies as st
from tests.checkpoint.chain import CODEC, Chain, kept, shown

from perdure import Log
from perdure.checkpoint import Reader, entries_of, is_settled
from perdure.checkpoint.manifest import TOC_LENGTH_MAX, WIDTH, known_paths
from perdure.checkpoint.writer import PIECES_LENGTH_MAX
from perdure.codec import loads, references
from perdure.errors import CheckpointDamagedError
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

KEYS = 5_000
OUTPUTS: Trail[Output] = Trail()

if TYPE_CHECKING:
    from collections.abc import Callable

    from perdure.records import Manifest

    Change: TypeAlias = Callable[[Snapshot, str, Any], Snapshot]


def delivered(value: object, target: str = "b") -> Delivery:
    return Delivery(target, ("a",), (kept(value),), send="a#0/0")


def pieces_of(manifest: Manifest) -> dict[str, Any]:
    return json.loads(manifest.pieces) if manifest.pieces else {}


def state_of(**values: object) -> dict[tuple[str, str], object]:
    return {("", key): kept(value) for key, value in values.items()}


def with_state(snapshot: Snapshot, **values: object) -> Snapshot:
    return replace(snapshot, state={**snapshot.state, **state_of(**values)}, iteration=snapshot.iteration + 1)


def wide(count: int = KEYS) -> Snapshot:
    """A run with many keys."""
    return Snapshot(turn=1, state=state_of(**{f"key-{number}": f"value {number}" for number in range(count)}))


def test_a_header_says_who_and_where_and_what_is_open() -> None:
    request = Request("q\ud800", "a", kept("?"), str, int)
    chain = Chain()
    chain.commit(Snapshot(turn=1))
    header = loads(chain.commit(Snapshot(turn=2, iteration=3, since_input=1, requests={"q\ud800": request})).header)
    assert header == {
        "format": 2,
        "workflow_name": "flow",
        "checkpoint_id": "r@1",
        "run_id": "r",
        "previous_checkpoint_id": "r@0",
        "timestamp": "2024-01-01",
        "iteration_count": 3,
        "graph_signature_hash": "signature",
        "kind": "superstep",
        "turn": 2,
        "since_input": 1,
        "definition_version": 1,
        "pending_request_info_events": {
            "q\ud800": {
                "type": "request_info",
                "request_id": "q\ud800",
                "source_executor_id": "a",
                "request_type": "str",
                "response_type": "int",
            }
        },
        "withheld_kwargs": [],
        "run": {
            "created_at": "2024-01-01T00:00:00+00:00",
            "nonce": "nonce",
            "input_digest": None,
            "parent_checkpoint_id": None,
        },
        "metadata": {},
        "version": "1.0",
    }


def test_what_comes_and_goes_is_no_blob() -> None:
    chain = Chain()
    chain.commit(Snapshot(deliveries=(delivered(1),)))
    for number in range(2, 5):
        manifest = chain.commit(Snapshot(deliveries=(delivered(number),), iteration=number))
        assert list(pieces_of(manifest)) == ["deliveries"]
        assert chain.brought == ()


def test_what_says_how_a_run_stands_is_seen_wherever_it_is() -> None:
    for waiting in (delivered(1), delivered("x" * 5_000)):
        manifest = Chain().commit(Snapshot(deliveries=(waiting,)))
        assert "deliveries" in known_paths(manifest)
        assert not is_settled(manifest)
    assert is_settled(Chain().commit(Snapshot(state=state_of(key=1))))


def test_a_value_that_changes_again_and_again_stands_in_the_checkpoint() -> None:
    chain = Chain()
    for number in range(6):
        manifest = chain.commit(Snapshot(executors={"a": kept([number])}))
        assert ("executor/a" in pieces_of(manifest)) == (number > 0)
        assert (not chain.brought) == (number > 0)


def test_each_change_is_written_at_most_twice() -> None:
    chain, written = Chain(), 0
    snapshots = [Snapshot(state=state_of(key=f"value {min(number, 3)}")) for number in range(10)]
    for snapshot in snapshots:
        chain.commit(snapshot)
        texts = [chain.require_head().pieces, *(blob.data for blob in chain.brought)]
        written += sum(text.count(b'"value 3"') for text in texts)
    assert written == 2


def test_a_value_that_changes_now_and_then_is_written_once_for_each_change() -> None:
    chain = Chain()
    for number in range(12):
        chain.commit(Snapshot(state=state_of(key=number // 3), iteration=number))
        assert "state//key" in chain.require_head().toc
        brought = [blob.data for blob in chain.brought if blob.data.isdigit()]
        assert brought == ([b"%d" % (number // 3)] if number % 3 == 0 else [])


def test_a_value_that_is_long_or_refers_to_blobs_is_a_blob() -> None:
    chain = Chain()
    for number in range(4):
        long, cut = f"{number}" + "x" * 2_000, [f"{number}" + "x" * 5_000]
        manifest = chain.commit(Snapshot(state=state_of(long=long, cut=cut), deliveries=(delivered(cut),)))
        assert pieces_of(manifest) == {}
        assert {"state//long", "state//cut", "deliveries"} <= manifest.toc.keys()


def test_what_stands_in_a_checkpoint_is_bounded() -> None:
    chain = Chain()
    for number in range(3):
        chain.commit(Snapshot(state=state_of(**{f"k{key}": f"{number}" + "x" * 900 for key in range(50)})))
    manifest = chain.require_head()
    assert 0 < len(manifest.pieces) < PIECES_LENGTH_MAX + 50 * 16
    assert len(entries_of(manifest, chain.blobs)) == 51


def test_a_chunk_that_is_brought_once_is_not_brought_again() -> None:
    chain, items = Chain(), [f"{number}" + "x" * 1_500 for number in range(20)]
    chain.commit(Snapshot(state=state_of(items=items)))
    whole = sum(len(blob.data) for blob in chain.brought)
    chain.commit(Snapshot(state=state_of(items=[*items, "another one"])))
    assert sum(len(blob.data) for blob in chain.brought) < whole / 2


def test_an_output_that_is_long_is_brought_once() -> None:
    chain, outputs = Chain(), OUTPUTS
    for number in range(40):
        outputs = outputs.extended([Output("a", "output", kept(f"{number:02}" + "x" * 3_000))])
        chain.commit(Snapshot(outputs=outputs, iteration=number))
        assert [len(blob.data) for blob in chain.brought if len(blob.data) > 3_000 and blob.refs == ()] == [3_004]


@pytest.mark.parametrize("kind", [Log, list])
@pytest.mark.parametrize("place", ["deliveries", "fan_in", "suspended", "delayed"])
def test_of_a_history_that_is_handed_on_what_was_added_is_brought(kind: Any, place: str) -> None:
    chain, history = Chain(), kind(f"{number} " + "x" * 400 for number in range(150))
    brought: list[int] = []
    for number in range(12):
        history.append(f"{number} " + "y" * 400)
        one = delivered(history)
        waiting: dict[str, Any] = {
            "deliveries": (delivered(number), one),
            "fan_in": {"group": {"a": one.values}},
            "suspended": (Suspended(one, "2024-01-02T00:00:00+00:00", None),),
            "delayed": (Delayed("2024-01-02T00:00:00+00:00", "a", "a#0/0", one.values[0], None, ("b",), ()),),
        }
        chain.commit(Snapshot(turn=1, iteration=number, **{place: waiting[place]}))
        brought.append(sum(len(blob.data) for blob in chain.brought))
    assert brought[0] > 60_000
    assert sum(brought[1:]) < 40_000


def test_one_change_among_many_keys_costs_that_change() -> None:
    chain, snapshot = Chain(), wide()
    chain.commit(snapshot)
    assert chain.written > KEYS * 50
    for number in range(1, 20):
        snapshot = with_state(snapshot, **{"key-7": f"changed {number}"})
        manifest = chain.commit(snapshot)
        assert chain.written < 1_000
        assert len(manifest.table()) < 5
    assert len(entries_of(chain.require_head(), chain.blobs)) == KEYS + 1
    assert chain.shows(snapshot)


def test_many_changes_one_by_one_cost_little_on_average() -> None:
    chain, snapshot, total = Chain(), wide(), 0
    chain.commit(snapshot)
    for number in range(120):
        snapshot = with_state(snapshot, **{f"key-{number}": f"changed {number}"})
        chain.commit(snapshot)
        total += chain.written
    assert total / 120 < KEYS * 60 / 20
    assert chain.shows(snapshot)


def test_the_table_of_contents_goes_on_in_another_life() -> None:
    chain, snapshot = Chain(), wide()
    chain.commit(snapshot)
    for number in range(10):
        snapshot = with_state(chain.resume(), **{f"key-{number}": f"changed {number}"})
        chain.commit(snapshot)
        assert chain.written < 2_000


def test_keys_that_are_removed_are_gone_and_may_come_back() -> None:
    chain, snapshot = Chain(), wide()
    chain.commit(snapshot)
    fewer = replace(snapshot, state={key: value for key, value in snapshot.state.items() if key[1] > "key-11"})
    manifest = chain.commit(fewer)
    assert manifest.base is not None
    assert "state//key-10" in manifest.gone
    assert chain.written < len(manifest.gone) * 100
    back = chain.commit(with_state(fewer, **{"key-10": "value 10", "key-0": "another"}))
    assert back.base == manifest.base
    assert "state//key-10" not in {*back.gone, *back.toc}
    few = chain.commit(Snapshot(state=state_of(**{"key-1": "value 1"})))
    assert len(few.table()) < KEYS


def test_a_table_of_contents_that_got_short_rests_on_nothing() -> None:
    chain, snapshot = Chain(), wide()
    chain.commit(snapshot)
    for number in range(10):
        chain.commit(Snapshot(state=state_of(last=number), iteration=number))
    assert chain.require_head().base is None
    assert chain.require_head().gone == ()


def test_a_short_table_of_contents_rests_on_nothing() -> None:
    chain = Chain()
    manifest = chain.commit(Snapshot(state=state_of(**{f"k{number}": number for number in range(50)})))
    assert manifest.base is None
    assert sum(map(len, manifest.toc)) < TOC_LENGTH_MAX


def test_what_is_read_without_the_rest_never_stands_in_the_base() -> None:
    request = Request("q", "a", kept("?"), str, str)
    outputs = OUTPUTS.extended(Output("a", "output", kept(number)) for number in range(200))
    answered = Snapshot().answered.extended(Answered(f"{number}", "2024-01-01") for number in range(100))
    chain = Chain()
    for number in range(3):
        snapshot = replace(wide(200), outputs=outputs, requests={"q": request}, answered=answered, iteration=number)
        chain.commit(replace(snapshot, deliveries=(delivered("x" * 3_000),)))
    manifest = chain.require_head()
    assert manifest.base is not None
    assert {"deliveries", "request/q", "outputs/0", "answered/0", "graph"} <= manifest.toc.keys()


def trail_paths(manifest: Manifest, trail: str) -> list[str]:
    return [path for path in known_paths(manifest) if path.startswith(f"{trail}/")]


@pytest.mark.parametrize("stride", [7, 32, 500])
def test_a_long_trail_takes_little_of_the_table_of_contents(stride: int) -> None:
    chain, outputs = Chain(), OUTPUTS
    one, sizes = Output("a", "output", kept(1)), list[int]()
    for number in range(0, CHUNK_LENGTH * (WIDTH * WIDTH + 3), stride):
        outputs = outputs.extended([one] * stride)
        manifest, chain.brought = chain.attempt(Snapshot(outputs=outputs, iteration=number))
        chain.blobs |= {blob.hash: blob.data for blob in chain.brought}
        chain.head, chain.position = manifest, manifest.position
        chain.writer.commit(manifest)
        sizes.append(len(trail_paths(manifest, "outputs")))
    assert max(sizes) <= 2 * WIDTH
    assert sizes[-1] <= 1 + 3 + stride // CHUNK_LENGTH + 1
    assert len(chain.read().outputs) == len(outputs)


def test_chunks_that_stand_together_are_read_and_go_on_and_go() -> None:
    chain = Chain()
    texts = (str(number) for number in range(10_000))
    outputs = answered = None
    for count in (CHUNK_LENGTH * (WIDTH - 1), 40, CHUNK_LENGTH * WIDTH):
        for _ in range(1 + count // 40 % 2):
            before = chain.resume() if outputs is not None else Snapshot()
            outputs = before.outputs.extended(Output("a", "output", kept(next(texts))) for _ in range(count))
            answered = before.answered.extended(Answered(next(texts), "2024-01-01") for _ in range(count))
            child = Snapshot(turn=1, outputs=outputs)
            chain.commit(replace(before, outputs=outputs, answered=answered, children={"b": child}))
            assert list(Reader(chain.require_head(), chain.blobs, CODEC).answered()) == list(answered)
        chain.go_on(None)
        chain.commit(replace(chain.read(), iteration=count))
    chain.resume()
    chain.commit(Snapshot(outputs=OUTPUTS.extended([Output("a", "output", kept("new"))] * 70)))
    assert sorted(trail_paths(chain.require_head(), "outputs")) == ["outputs/0", "outputs/1", "outputs/2"]
    assert not trail_paths(chain.require_head(), "answered")


def test_chunks_that_an_earlier_release_left_one_by_one_are_never_out_of_order() -> None:
    outputs = OUTPUTS.extended(Output("a", "output", kept(number)) for number in range(CHUNK_LENGTH * 255))
    chain = Chain()
    chain.commit(Snapshot(outputs=outputs))
    manifest, blobs = chain.require_head(), chain.blobs
    flat = {path: address for path, address in manifest.toc.items() if not path.startswith("outputs/")}
    for first in sorted(int(path.removeprefix("outputs/")) for path in trail_paths(manifest, "outputs")):
        address = manifest.toc[f"outputs/{first}"]
        inner = references(blobs[address]) and json.loads(blobs[address])["chunks"]
        flat |= {f"outputs/{first + place}": each for place, each in enumerate(inner or [address])}
    chain.head = replace(manifest, toc=flat)
    chain.go_on(Reader(chain.head, blobs, CODEC).written(chain.read()))
    snapshot = chain.resume()
    for number in range(2):
        more = [Output("a", "output", kept(-number))] * CHUNK_LENGTH
        snapshot = replace(snapshot, outputs=snapshot.outputs.extended(more))
        chain.commit(snapshot)
        assert chain.shows(snapshot)


def test_a_value_that_goes_and_comes_back_is_there() -> None:
    chain, many = Chain(), wide(200)
    for values in ("A", "B", "A", "A", "B", "B", "A"):
        chain.commit(Snapshot(state=state_of(key=values * 100)))
        chain.commit(with_state(many, key=values * 100))


def test_a_checkpoint_that_was_not_committed_is_forgotten() -> None:
    chain, long = Chain(), ["x" * 5_000]
    outputs = OUTPUTS.extended([Output("a", "output", kept("y" * 3_000))])
    chain.commit(Snapshot(state=state_of(key=1)))
    lost = Snapshot(state=state_of(key=long, other=2), outputs=outputs, deliveries=(delivered(long),))
    chain.attempt(lost)
    chain.commit(lost)
    more = outputs.extended([Output("a", "output", kept("z" * 3_000))])
    chain.attempt(replace(lost, state={}, outputs=more))
    chain.commit(replace(lost, outputs=more))
    chain.attempt(Snapshot())
    chain.commit(replace(lost, outputs=more))


def test_a_writer_that_does_not_know_the_head_writes_everything() -> None:
    chain, snapshot = Chain(), wide()
    chain.commit(snapshot)
    chain.go_on(None)
    manifest = chain.commit(snapshot)
    assert len(entries_of(manifest, chain.blobs)) == KEYS + 1


def test_pieces_that_refer_to_blobs_are_read_and_written_anew() -> None:
    """We write none; a later release might."""
    chain, text = Chain(), ["x" * 5_000]
    chain.commit(Snapshot(state=state_of(key=text), executors={"a": kept(1)}))
    head = chain.require_head()
    address = head.toc["state//key"]
    (ref,) = [each for each in chain.blobs if chain.blobs[each].startswith(b'"xx')]
    toc = {path: each for path, each in head.toc.items() if each != address}
    pieces = b'{"state//key":%b}' % chain.blobs[address]
    chain.head = replace(head, toc=toc, pieces=pieces, refs=(ref,))
    snapshot = chain.resume()
    assert shown(snapshot.state) == {("", "key"): text}
    chain.commit(replace(snapshot, iteration=1))


@pytest.mark.parametrize("pieces", [b"[]", b"{", b"7", b'{"deliveries":7}', b'{"deliveries":[{}]}'])
def test_pieces_that_are_none_are_damage(pieces: bytes) -> None:
    chain = Chain()
    head = chain.commit(Snapshot(deliveries=(delivered(1),)))
    damaged = replace(head, pieces=pieces)
    assert damaged.checksum() != head.checksum()
    with pytest.raises(CheckpointDamagedError, match="r@0"):
        Reader(damaged, chain.blobs, CODEC).snapshot()


@pytest.mark.parametrize("table", [b"[]", b"{", b'{"paths":["a"],"chunks":[]}', b'{"paths":7,"chunks":[]}', b"{}"])
def test_a_base_that_is_none_is_damage(table: bytes) -> None:
    chain = Chain()
    manifest = chain.commit(wide())
    assert manifest.base is not None
    with pytest.raises(CheckpointDamagedError, match="other bytes"):
        Reader(manifest, {**chain.blobs, manifest.base: table}, CODEC).snapshot()


TEXTS = st.sampled_from(["a", "b", "c" * 200, "d" * 900, "e" * 3_000])
VALUES = st.one_of(TEXTS, st.lists(TEXTS, max_size=4), st.integers(0, 3), st.just(["f" * 5_000, "g" * 5_000]))
NAMES = st.sampled_from("uvwxyz")


def later(snapshot: Snapshot) -> Snapshot:
    return replace(snapshot, iteration=snapshot.iteration + 1)


def _put(field: str) -> Change:
    def put(snapshot: Snapshot, name: str, value: object) -> Snapshot:
        key = ("named:a/b", name) if field == "state" else name
        return replace(snapshot, **{field: {**getattr(snapshot, field), key: kept(value)}})

    return put


def _set(**values: object) -> Change:
    def set_(snapshot: Snapshot, name: str, value: object) -> Snapshot:
        del name, value
        return replace(snapshot, **values)

    return set_


def _drop(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    del value
    state = {key: kept for key, kept in snapshot.state.items() if key[1] != name}
    return replace(snapshot, state=state, carried={}, children={}, requests={})


def _child(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    child = snapshot.children.get(name, Snapshot())
    inner = with_state(replace(child, deliveries=(delivered(value),)), **{name: value})
    return replace(snapshot, children={**snapshot.children, name: inner})


def _output(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    return replace(snapshot, outputs=snapshot.outputs.extended([Output(name, "output", kept(value))] * 5))


def _wait(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    suspended = Suspended(replace(delivered(value), activation_id=name), "2024-01-01T00:00:00+00:00")
    delayed = Delayed("2024-01-01T00:00:00+00:00", name, "s", kept(value), None, ("b",), ())
    return replace(snapshot, suspended=(*snapshot.suspended, suspended), delayed=(delayed,))


def _answer(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    answered = snapshot.answered.extended([Answered(name, "2024-01-01T00:00:00+00:00", what=str(value))])
    return replace(snapshot, requests={}, answered=answered)


def _ask(snapshot: Snapshot, name: str, value: object) -> Snapshot:
    return replace(snapshot, requests={**snapshot.requests, name: Request(name, "a", kept(value), str, str)})


CHANGES: dict[str, Change] = {
    "state": _put("state"),
    "executors": _put("executors"),
    "carried": _put("carried"),
    "drop": _drop,
    "child": _child,
    "many": lambda snapshot, name, value: with_state(snapshot, **{f"{name}{number}": value for number in range(60)}),
    "output": _output,
    "turn": lambda snapshot, name, value: replace(
        snapshot, outputs=OUTPUTS, received=snapshot.received.extended([name, str(value)])
    ),
    "deliver": lambda snapshot, name, value: replace(snapshot, deliveries=(delivered(value, name),) * 2),
    "idle": _set(deliveries=(), fan_in={}, suspended=(), delayed=()),
    "gather": lambda snapshot, name, value: replace(snapshot, fan_in={"group": {name: (kept(value),)}}),
    "ask": _ask,
    "answer": _answer,
    "wait": _wait,
    "limit": _set(limits=Limits("2024-01-01T00:00:00+00:00", {"tokens": 1}, {})),
    "unlimit": _set(limits=Limits()),
    "cancel": _set(cancelled=Cancelled("2024-01-01T00:00:00+00:00", "ada")),
    "go on": lambda snapshot, name, value: replace(snapshot, cancelled=None, kwargs=kept({name: value})),
}
"""What can happen to a run, each with a name and a value."""

STEPS = st.tuples(st.sampled_from(sorted(CHANGES)), NAMES, VALUES)
HANDLING = st.sampled_from(["commit", "commit", "commit", "fail", "resume", "forget"])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.lists(STEPS, max_size=4), HANDLING), max_size=12))
def test_whatever_happens_a_checkpoint_holds_the_run(lives: list[tuple[list[tuple[str, str, object]], str]]) -> None:
    chain, snapshot = Chain(), Snapshot(turn=0)
    chain.commit(snapshot)
    for changes, handling in lives:
        for change, name, value in changes:
            snapshot = CHANGES[change](snapshot, name, value)
        snapshot = later(snapshot)
        if handling == "fail":
            chain.attempt(snapshot)
            continue
        chain.commit(snapshot)
        if handling == "resume":
            snapshot = chain.resume()
        elif handling == "forget":
            chain.go_on(None)
