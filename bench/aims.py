"""The aims of perdure, and whether this run meets them. Lines without an aim are information."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from bench.footprint import Footprint
from bench.peer import Durability, Store
from bench.peers.limits import SQLITE
from bench.units import duration, number, size
from bench.works.history import ENTRY_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from bench.footprint import Refusal
    from bench.summary import Line, Results

_OURS: Final = {"perdure", "perdure Log"}
_KB: Final = 1000
_RESUME_SHARE: Final = 0.9
_TURN_COMMITS: Final = 12
"""A turn of an agent takes at most this many times a raw SQLite commit."""
_TURN_BYTES: Final = 50 * _KB
_PAGE_SECONDS: Final = 0.005
_FLAT: Final = 1.5
"""The end takes at most this many times what the beginning takes."""


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim and the measured value."""

    line: str
    what: str
    wanted: str
    measured: str
    is_met: bool | None
    """None for information without an aim."""
    peer: str = ""
    """The value of the best peer."""


def aims(results: Results, footprints: Sequence[Footprint | Refusal]) -> list[Aim]:
    """Return every aim that this run has measured."""
    return [
        *_superstep(results),
        *_history(results),
        *_resume(results),
        *_fan(results),
        *_ballast(results),
        *_crowd(results),
        *_listing(results),
        *_install(results, footprints),
        *_conversation(results),
    ]


def _superstep(results: Results) -> Iterator[Aim]:
    for key, store, limit, floor in (
        ("A", Store.NONE, None, "create_task"),
        ("C", Store.SQLITE, 2.5, "a raw SQLite commit"),
    ):
        line = results.find(key, "perdure", store)
        if line is None or line.floor is None:
            continue
        measured = f"{number(line.floor)} x ({duration(line.median)})"
        peer = _best(results, key, store)
        told = "" if peer is None or peer.floor is None else f"{_named(peer)} {number(peer.floor)} x"
        wanted = "" if limit is None else f"at most {limit} x {floor}"
        is_met = None if limit is None else line.floor <= limit
        yield Aim(key, line.entry.work.title, wanted, measured, is_met, told)


def _history(results: Results) -> Iterator[Aim]:
    peer = min((line for line in results.of("D") if _is_peer(line)), key=lambda line: line.median, default=None)
    for name, share in (("perdure Log", 3), ("perdure", 1)):
        lines = [line for line in results.of("D") if line.entry.peer.name == name]
        what = f"history grows, {'Log' if share > 1 else 'plain list'}"
        for line in lines:
            if peer is not None and line.entry.store is Store.SQLITE:
                wanted = "at most " + ("1/3 of " if share > 1 else "") + "the best peer's time"
                told = f"{_named(peer)} {duration(peer.median)}"
                yield Aim(
                    "D", f"{what}, SQLite", wanted, duration(line.median), line.median * share <= peer.median, told
                )
            yield from _bytes_of_history(results, line, f"{what}, {line.entry.store.value}")


def _bytes_of_history(results: Results, line: Line, what: str) -> Iterator[Aim]:
    assert line.written is not None, "a history counts bytes"
    payload = line.points[-1].superstep * ENTRY_BYTES
    share = line.written / payload
    others = [each for each in results.of("D") if each.entry.store is line.entry.store and each.written is not None]
    told = [f"{o.entry.peer.name} {number((o.written or 0) / payload)} x" for o in others if not _is_ours(o)]
    yield Aim("D", what, "writes at most 5 x the payload", f"{number(share)} x", share <= 5, ", ".join(told))  # noqa: PLR2004
    growth = _growth(line)
    measured = f"the last quarter {number(growth)} x the first"
    yield Aim("D", what, f"writes the same in each superstep ({_FLAT} x)", measured, growth <= _FLAT)


def _growth(line: Line) -> float:
    """Return the bytes of the last quarter of the supersteps, relative to the first quarter."""
    first, last = line.quarters
    return last.written / max(1, first.written)


def _resume(results: Results) -> Iterator[Aim]:
    keys = ("E 100", "E 1000", "E 5000")
    lines = [line for key in keys if (line := results.find(key, "perdure", Store.SQLITE)) is not None]
    for line in lines:
        peer = results.find(line.entry.work.key, "langgraph", Store.SQLITE)
        if peer is not None:
            what, told = line.entry.work.title, duration(peer.median)
            is_met = line.median <= _RESUME_SHARE * peer.median
            yield Aim("E", what, f"at most {_RESUME_SHARE} x langgraph's", duration(line.median), is_met, told)
    if len(lines) == len(keys):
        growth = lines[-1].median / lines[0].median
        yield Aim(
            "E", "resume, from the fewest to the most", f"flat ({_FLAT} x)", f"{number(growth)} x", growth <= _FLAT
        )


def _fan(results: Results) -> Iterator[Aim]:
    for kept, store, limit in (("", Store.NONE, 60e-6), (" durable", Store.SQLITE, 150e-6)):
        lines = [line for n in (100, 1000) if (line := results.find(f"F {n}{kept}", "perdure", store)) is not None]
        for line in lines:
            peer = _best(results, line.entry.work.key, None)
            told = "" if peer is None else f"{_named(peer)} {duration(peer.median)}"
            wanted = f"at most {duration(limit)} a branch"
            yield Aim("F", line.entry.work.title, wanted, duration(line.median), line.median <= limit, told)
        if len(lines) > 1:
            growth = lines[1].median / lines[0].median
            yield Aim(
                "F",
                f"one to many and back{kept}",
                f"linear ({_FLAT} x)",
                f"a branch {number(growth)} x",
                growth <= _FLAT,
            )


def _ballast(results: Results) -> Iterator[Aim]:
    for kind, bare in (("key", "none"), ("bytes", "empty"), ("str", "empty")):
        line = results.find(f"G {kind}", "perdure", Store.SQLITE)
        if line is None or line.written is None:
            continue
        title = line.entry.work.title
        yield Aim("G", title, "at most 2 ms", duration(line.median), line.median <= 2e-3, _told(results, kind))  # noqa: PLR2004
        yield Aim("G", title, "writes at most 1 KB", size(line.written), line.written <= _KB)
        base = results.find(f"G {bare}", "perdure", Store.SQLITE)
        if base is not None and base.written is not None:
            # Any commit of SQLite writes whole pages, so this says what the ballast adds. It is not judged: if the run
            # without it was the one that wrote more, that one was disturbed.
            yield Aim(
                "G", title, "", f"{line.written - base.written:+,.0f} B against nothing in its place", is_met=None
            )
    nested = results.find("G nested", "perdure", Store.SQLITE)
    peer = results.find("G nested", "langgraph", Store.SQLITE)
    if nested is not None and peer is not None:
        is_met = nested.median <= peer.median
        title, told = nested.entry.work.title, duration(peer.median)
        yield Aim("G", title, "at most langgraph's", duration(nested.median), is_met, told)


def _told(results: Results, kind: str) -> str:
    peer = _best(results, f"G {kind}", None)
    return "" if peer is None else f"{_named(peer)} {duration(peer.median)}"


def _crowd(results: Results) -> Iterator[Aim]:
    line, peer = results.find("H", "perdure", Store.SQLITE), results.find("H", "burr", Store.SQLITE)
    if line is not None and peer is not None:
        rate, theirs = 1 / line.median, 1 / peer.median
        yield Aim("H", line.entry.work.title, "at least burr's rate", number(rate), rate >= theirs, number(theirs))


def _listing(results: Results) -> Iterator[Aim]:
    for key in ("K runs", "K requests"):
        line = results.find(key, "perdure", Store.SQLITE)
        if line is not None:
            is_met = line.median <= _PAGE_SECONDS
            wanted = f"at most {duration(_PAGE_SECONDS)}"
            yield Aim("K", line.entry.work.title, wanted, duration(line.median), is_met)


def _install(results: Results, footprints: Sequence[Footprint | Refusal]) -> Iterator[Aim]:
    line = results.find("I", "perdure", Store.NONE)
    if line is not None:
        peer = _best(results, "I", Store.NONE)
        told = "" if peer is None else f"{_named(peer)} {duration(peer.median)}"
        yield Aim("I", "import", "", duration(line.median), is_met=None, peer=told)
    known = {each.peer: each for each in footprints if isinstance(each, Footprint)}
    ours, theirs = known.get("perdure"), known.get("agent-framework")
    if ours is not None and theirs is not None:
        told = f"{theirs.packages}"
        yield Aim("I", "packages", "", f"{ours.packages}", is_met=None, peer=told)
        told = size(theirs.bytes)
        yield Aim("I", "size", "below agent-framework's", size(ours.bytes), ours.bytes < theirs.bytes, told)


def _conversation(results: Results) -> Iterator[Aim]:
    commit = results.find("limits", SQLITE, Store.SQLITE)
    for key in ("J 250", "J 1000"):
        others = [line for line in results.of(key) if _is_peer(line)]
        for line in (line for line in results.of(key) if _is_ours(line)):
            what, turns = f"{line.entry.work.title}, {line.entry.store.value}", line.points[-1].superstep
            growth, told = _growth(line), ", ".join(f"{_named(each)} {number(_growth(each))} x" for each in others)
            measured = f"the last quarter {number(growth)} x the first"
            yield Aim("J", what, f"writes the same in each turn ({_FLAT} x)", measured, growth <= _FLAT, told)
            if commit is not None and line.entry.store is Store.SQLITE:
                ratio = line.median / turns / commit.median
                wanted = f"a turn at most {_TURN_COMMITS} x a raw SQLite commit"
                yield Aim("J", what, wanted, f"{number(ratio)} x", ratio <= _TURN_COMMITS)
            if line.written is not None and line.entry.store is Store.SQLITE:
                written = line.written / turns
                yield Aim("J", what, "writes at most 50 KB a turn", size(written), written <= _TURN_BYTES)
            # Every library hands the model the whole conversation, so the slowdown has no aim.
            told = ", ".join(f"{_named(each)} {number(_slowdown(each))} x" for each in others)
            measured = f"a turn takes {number(_slowdown(line))} x the time"
            yield Aim("J", what, "", measured, is_met=None, peer=told)


def _slowdown(line: Line) -> float:
    """Return the time of a turn in the last quarter, relative to the first quarter."""
    first, last = line.quarters
    return last.seconds / first.seconds


def _best(results: Results, key: str, store: Store | None) -> Line | None:
    """The fastest of the others, with that store or with any."""
    lines = [line for line in results.of(key) if _is_peer(line) and store in {None, line.entry.store}]
    return min(lines, key=lambda line: line.median, default=None)


def _named(line: Line) -> str:
    """Return the peer's name, its store, and its durability if it is weaker than ours."""
    store = "" if line.entry.store is Store.NONE else f", {line.entry.store.value}"
    is_safe = line.entry.durability in {Durability.NONE, Durability.SYNCED}
    return f"{line.entry.peer.name}{store}{'' if is_safe else f' ({line.entry.durability.value})'}"


def _is_ours(line: Line) -> bool:
    return line.entry.peer.name in _OURS


def _is_peer(line: Line) -> bool:
    return not _is_ours(line) and line.entry.peer.name != "machine"
