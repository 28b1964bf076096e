"""Commits and what is read of them: checkpoints, blobs, runs. A commit is written completely, or not at all."""

from __future__ import annotations

import asyncio
import copy
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import (
    CheckpointNotFoundError,
    CommandWaitsError,
    LeaseLostError,
    StaleCommandError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Blob, KeepLast, LatestOnly, Manifest, Retention, RunStatus, WholeCheckpoint
from perdure.storage import Openings, Store, reads_at_once
from perdure.testing.stores.base import (
    HEAD,
    LATE,
    REFUSED_IDS,
    SOON,
    Further,
    RunDriver,
    StoreSuite,
    command,
    events,
    finished,
    halted,
    keeps,
    latest_id,
    new_run,
    raw_blob,
    read_contents,
    read_run,
    refused,
    text_blob,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from perdure.testing.clock import ManualClock


class LifeConformance(StoreSuite):
    """A store depends on its location, not on an event loop or on being open."""

    def test_store_outlives_its_event_loops_and_opens_again_after_it_is_closed(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = asyncio.run(RunDriver.start(store, clock, "r"))
        for position in range(3):
            assert asyncio.run(run.commit()) == f"r@{position}"
            for _ in range(position):
                asyncio.run(store.close())
        assert list(asyncio.run(store.ids())) == ["r@0", "r@1", "r@2"]
        asyncio.run(store.close())

    async def test_two_stores_share_nothing(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [self.open_store(tmp_path / name, retention=Retention(), clock=clock) for name in ("one", "two")]
        assert stores[0].place != stores[1].place
        await RunDriver.start(stores[0], clock, "r", commits=1)
        assert list(await stores[1].ids()) == []
        for store in stores:
            await store.close()

    async def test_store_that_was_closed_has_lost_nothing(self, store: Store, sample: RunDriver) -> None:
        await sample.note(finished("c", "of an attempt"), durable=False)
        newest = (await store.inbox("r"))[-1].number
        await sample.reacquire()
        for halt in (None, halted("failed"), halted("parked"), None):
            token = (await sample.reacquire()).token
            for _ in range(2):
                before = await read_run(store), await sample.record(), list(await store.runs())
                await store.close()
                assert (await read_run(store), await sample.record(), list(await store.runs())) == before
                await sample.release(halt=halt)
            assert (await sample.reacquire()).token > token
        assert (await sample.post(command("later")))[0] > newest


class CommitConformance(StoreSuite):
    """Committed data is read back unchanged; a refused commit leaves no trace."""

    async def test_checkpoint_and_run_come_back_as_they_were_written(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw", commits=1)
        commit = run.next_commit({"state/ключ": text_blob("v"), "empty": raw_blob(b"")})
        await run.write(commit)
        manifest, record, began = await store.manifest("r@1"), await run.record(), new_run("r", "flöw")
        assert replace(manifest, toc=dict(manifest.toc)) == replace(commit.manifest, toc=dict(commit.manifest.toc))
        assert manifest.checksum() == commit.manifest.checksum()
        for name in ("workflow_name", "created_at", "nonce", "input_digest"):
            assert getattr(record, name) == getattr(began, name)

    async def test_header_comes_back_byte_by_byte(self, store: Store, fresh: RunDriver) -> None:
        headers = [
            b"{}",
            b'{"b":1,"a":{"z":[1.0,1e100,-0.0,12345678901234567890123]}}',
            b'{ "spaced" : true }',
            b'{"twice":1,"twice":2}',
            b'{"toc":1,"parts":2,"checksum":3,"run_id":"other","position":null}',
            b'{"checkpoint_id":"r@5","workflow_name":"flow"}',
            '{"text":"ünï\u2028\\u0001\\"日本"}'.encode(),
            b"not json",
            b"\xff\x00",
            b"",
        ]
        for header in headers:
            await fresh.commit(manifest={"header": header})
        assert [manifest.header for manifest in await store.manifests(run_id="r")] == headers

    async def test_positions_may_have_gaps(self, store: Store, run: RunDriver) -> None:
        for position in (5, 7):
            await run.commit(checkpoint_id=f"at {position}", manifest={"position": position})
            await run.require(position=position)
        assert [manifest.position for manifest in await store.manifests(run_id="r")] == [0, 5, 7]

    async def test_one_of_two_commits_on_one_head_is_refused_alone(self, store: Store, run: RunDriver) -> None:
        other = await run.another("other")
        rivals = [run.next_commit(checkpoint_id=name) for name in ("left", "right")]
        *outcomes, of_other = await asyncio.gather(
            *(store.commit(run.lease, rival) for rival in rivals), other.commit(), return_exceptions=True
        )
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["StaleHeadError", "int"]
        winner = rivals[outcomes.index(0)].manifest.checkpoint_id
        assert (set(await store.ids()), of_other) == ({"r@0", winner, "other@0"}, "other@0")

    async def test_concurrent_writes_of_many_runs_all_succeed(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(8)]

        async def advance(run: RunDriver) -> None:
            for step in range(4):
                await run.commit({"a": text_blob(f"{run.run_id} {step}"), "b": text_blob(f"common {step}")})

        await asyncio.gather(*(advance(run) for run in runs))
        records = [finished(f"{number}", "", text_blob(f"{number}")) for number in range(10)]
        await asyncio.gather(*(run.note(each, durable=each is records[3]) for each in records for run in runs))
        for run in runs:
            assert (await run.record()).position == 3
            assert [manifest.position for manifest in await store.manifests(run_id=run.run_id)] == [0, 1, 2, 3]
            assert await run.noted() == [f"{number}=" for number in range(10)]
        assert len(await store.ids()) == 32


_LOST = raw_blob(b"lost" * 3000), text_blob("lost")


def _commit(run: RunDriver, **further: Any) -> Awaitable[object]:
    return run.commit({"a": _LOST[0]}, consumed=("a",), events=events("lost", blobs=_LOST[1:]), **further)


def _note(run: RunDriver, head: str | None = HEAD) -> Awaitable[object]:
    return run.store.record(run.lease, head=head, records=[finished("a", "", *_LOST)])


def _rewind(run: RunDriver, to: str, expected_head: str = HEAD) -> Awaitable[object]:
    return run.store.rewind(run.lease, expected_head=expected_head, to=to, nonce="lost")


def _post(run: RunDriver, path: str) -> Awaitable[object]:
    return run.post(command("new", "", *_LOST, expects=(path, _LOST[1].hash)))


_REFUSALS: Mapping[str, tuple[type[Exception], Callable[[RunDriver], Awaitable[object]]]] = {
    "commit on another head": (StaleHeadError, lambda run: _commit(run, expected_head="r@0")),
    "commit at a used position": (WorkflowCheckpointException, lambda run: _commit(run, manifest={"position": 6})),
    "commit before a later one": (WorkflowCheckpointException, lambda run: _commit(run, manifest={"position": 5})),
    "commit under an own id": (WorkflowCheckpointException, lambda run: _commit(run, checkpoint_id="r@0")),
    "commit under the id of another": (WorkflowCheckpointException, lambda run: _commit(run, checkpoint_id="s@0")),
    "commit without a command that it takes": (CommandWaitsError, lambda run: _commit(run, taken=("other", "z"))),
    "record on no head": (StaleHeadError, lambda run: _note(run, None)),
    "record on another head": (StaleHeadError, lambda run: _note(run, "r@0")),
    "rewinding from another head": (StaleHeadError, lambda run: _rewind(run, "r@0", "r@2")),
    "rewinding to a checkpoint of another": (CheckpointNotFoundError, lambda run: _rewind(run, "s@0")),
    "rewinding to no checkpoint": (CheckpointNotFoundError, lambda run: _rewind(run, "nowhere")),
    "command that expects another value": (StaleCommandError, lambda run: _post(run, "asked")),
    "command that expects a missing value": (StaleCommandError, lambda run: _post(run, "nothing")),
    "lease with the token of its owner": (LeaseLostError, lambda run: run.reacquire(token=run.lease.token)),
    "lease with a smaller token": (LeaseLostError, lambda run: run.reacquire(token=1)),
}
"""Calls that are refused, by the owner of the sample run: the error and the call."""


_FROM_ELSEWHERE = 2**60
"""A token from another source, as large as a clock's nanoseconds."""


class RefusalConformance(StoreSuite):
    """A refused call leaves no trace. It is no progress either: the number of attempts stays."""

    @pytest.mark.parametrize("call", _REFUSALS)
    async def test_refused_call_changes_nothing(self, store: Store, sample: RunDriver, call: str) -> None:
        error, refuse = _REFUSALS[call]
        await sample.reacquire()
        await sample.another("s", commits=1)
        before = await read_run(store), await sample.record(), list(await store.ids())
        caught: Any = await refused(error, refuse(sample))
        assert (await read_run(store), await sample.record(), list(await store.ids())) == before
        await store.collect()
        assert await store.blobs(blob.hash for blob in _LOST) == {}
        match caught:
            case StaleHeadError():
                assert (caught.head, caught.expected in {None, "r@0", "r@2"}) == (HEAD, True)
            case CommandWaitsError():
                assert (caught.run_id, caught.command_id) == ("r", "z")
            case StaleCommandError():
                assert (caught.run_id, caught.path) == ("r", "asked" if "another" in call else "nothing")
            case _:
                pass

    @pytest.mark.parametrize("is_replaced", [False, True])
    async def test_lost_lease_writes_nothing(self, store: Store, sample: RunDriver, *, is_replaced: bool) -> None:
        late = copy.copy(sample)
        assert (await sample.reacquire(token=_FROM_ELSEWHERE)).token == _FROM_ELSEWHERE
        if not is_replaced:
            await sample.release()
        before = await read_run(store), await sample.record()
        for call in (_commit(late), _note(late), _rewind(late, "r@0"), late.reacquire(token=_FROM_ELSEWHERE)):
            await refused(LeaseLostError, call)
        await late.release(halt=halted())
        assert (await read_run(store), await sample.record()) == before
        assert before[1].owner == (sample.lease.owner if is_replaced else None)
        await sample.reacquire(token=_FROM_ELSEWHERE + 1)
        await sample.commit()


class ForkConformance(StoreSuite):
    """An older checkpoint becomes the head again, or the start of another run."""

    async def test_rewinding_moves_the_head_and_keeps_later_checkpoints(self, store: Store, fresh: RunDriver) -> None:
        statuses: list[Further] = [
            {"status": "sleeping", "wake_at": SOON},
            {"status": "waiting", "wake_at": LATE},
            {"status": "idle", "wake_at": None, "settled": True},
        ]
        for step, status in enumerate(statuses):
            await fresh.commit({"a": text_blob(f"v{step}")}, **status)
        for to in (1, 0, 2, 1):
            await fresh.rewind(f"r@{to}", nonce=f"nonce {to}")
            await fresh.reacquire()
            expected = {"settled": False, **statuses[to]}
            await fresh.require(head=f"r@{to}", position=2, nonce=f"nonce {to}", **expected)
        assert await read_contents(store, "r@2") == {"a": b'"v2"'}
        await fresh.commit()
        await fresh.require(head="r@3", position=3)
        assert (await store.manifest("r@3")).previous_id == "r@1"
        assert list(await store.ids()) == ["r@0", "r@1", "r@2", "r@3"]

    async def test_fork_has_its_parent_as_head_until_its_first_commit(self, run: RunDriver) -> None:
        await run.commit()
        await run.commit(status="sleeping", wake_at=SOON)
        fork = await run.another("f", parent="r@1")
        await fork.release()
        await fork.reacquire()
        await fork.require(head="r@1", position=-1, parent_checkpoint_id="r@1", status="running", wake_at=None)
        await fork.commit()
        await fork.require(head="f@0", position=0, parent_checkpoint_id="r@1")
        assert (await run.record()).head == "r@2"

    async def test_fork_of_a_deleted_checkpoint_must_write_all_blobs(self, store: Store, fresh: RunDriver) -> None:
        leaf = text_blob("leaf")
        blobs = {"small": text_blob("small", leaf), "large": raw_blob(b"large" * 20_000)}
        await fresh.commit(blobs, leaf)
        await fresh.commit()
        fork = await fresh.another("f", parent="r@0")
        await store.delete("r@0")
        await store.collect()
        needed, deleted = (*blobs.values(), leaf), "'r@0', from which it was forked, was deleted"
        for missing in needed:
            others = tuple(blob for blob in needed if blob is not missing)
            await refused(WorkflowCheckpointException, fork.commit(blobs, blobs=others), match=deleted)
        await fork.commit(blobs, leaf)
        assert await read_contents(store, "f@0") == {path: blob.data for path, blob in blobs.items()}


PIECES = (
    b"{}",
    b'{"a":1,"b":["f\xc3\xbcr dich",null]}',
    b'{"lone":"\xed\xa0\x80"}',
    b'{"a":{"~":"part","part":"0123"}}',
    b'{"\\n":"\\u0000 , \\"parts\\": {"}',
    b'{"a":1,\n  "parts": {\n    "b": {"refs": [], "value": 1}}}',
    b'"no object"',
    b"no JSON \xff\0",
)
"""Entries of a manifest. The last ones are accepted only because a store does not check them."""


def _base(**blobs: Blob) -> Blob:
    """Return a blob with entries of a table of contents."""
    entries = ",".join(f'"{path}":"{blob.hash}"' for path, blob in blobs.items())
    return Blob.of(f"{{{entries}}}".encode(), tuple(blob.hash for blob in blobs.values()))


def _holding(refs: Iterable[Blob] = (), base: Blob | None = None, gone: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return values of a manifest that refers to these blobs."""
    return {"refs": tuple(blob.hash for blob in refs), "base": base and base.hash, "gone": tuple(gone)}


async def _require_whole(store: Store, manifest: Manifest, *blobs: Blob) -> None:
    """Check that everything the manifest needs is there, including these blobs."""
    found = await store.blobs(manifest.roots)
    assert found.keys() >= {*manifest.roots, *(blob.hash for blob in blobs)}
    assert {blob.hash: found[blob.hash] for blob in blobs} == {blob.hash: blob.data for blob in blobs}


class PieceConformance(StoreSuite):
    """A manifest is read back unchanged, and its blobs stay as long as it does."""

    @pytest.mark.parametrize("pieces", PIECES)
    async def test_manifest_comes_back_with_its_pieces(self, store: Store, fresh: RunDriver, pieces: bytes) -> None:
        inner = text_blob("inner")
        near, far = text_blob("near", inner), raw_blob(b"far" * 3000)
        base = _base(**{"state/a": near, "state/b": far})
        held = {"pieces": pieces, **_holding((near, far), base, gone=("state/b", "x/y"))}
        commit = fresh.next_commit({"request/1": text_blob("asked")}, inner, near, far, base, manifest=held)
        await fresh.write(commit)
        latest = await store.latest(workflow_name="flow")
        assert latest is not None
        for manifest in (await store.manifest("r@0"), latest, *(await store.manifests(run_id="r"))):
            assert manifest == commit.manifest
            assert manifest.checksum() == commit.manifest.checksum()
        await _require_whole(store, commit.manifest, inner, near, far, base)

    async def test_commit_and_fork_may_leave_out_blobs_of_the_base(self, store: Store, fresh: RunDriver) -> None:
        small = {f"state/{number}": text_blob(f"small {number}") for number in range(50)}
        large = raw_blob(b"large" * 3000)
        base = _base(**small, large=large)
        await fresh.commit({}, *small.values(), large, base, manifest=_holding(base=base))
        for step in range(3):
            held = text_blob(f"held {step}")
            await fresh.commit({}, held, manifest=_holding((held,), base, gone=("state/1",)))
            await store.collect()
            await _require_whole(store, await store.manifest(f"r@{step + 1}"), held, base, large, *small.values())
        fork = await fresh.another("f", parent="r@3")
        another = _base(**small, large=large)
        await fork.commit({}, another, manifest=_holding(base=another))
        for step in range(4):
            await store.delete(f"r@{step}")
        await store.collect()
        await _require_whole(store, await store.manifest("f@0"), another, large, *small.values())

    @keeps(checkpoints=LatestOnly())
    async def test_blobs_of_refs_and_base_are_collected_with_them(self, store: Store, fresh: RunDriver) -> None:
        deep = raw_blob(b"deep" * 3000)
        kept, small = text_blob("kept", deep), text_blob("small")
        base = _base(small=small, kept=kept)
        brief = raw_blob(b"brief" * 3000)
        await fresh.commit({}, deep, kept, small, base, brief, manifest=_holding((brief,), base))
        await fresh.commit(manifest=_holding(base=base))
        await store.collect()
        await _require_whole(store, await store.manifest("r@1"), base, small, kept, deep)
        assert not await store.blobs([brief.hash])
        await fresh.commit({"kept": kept}, deep)
        await store.collect()
        await _require_whole(store, await store.manifest("r@2"), kept, deep)
        assert not await store.blobs([base.hash, small.hash])

    @keeps(checkpoints=KeepLast(1))
    async def test_value_that_comes_back_survives_collections(self, store: Store, fresh: RunDriver) -> None:
        values = raw_blob(b"A" * 9000), raw_blob(b"B" * 9000), text_blob("small A"), text_blob("small B")
        for step in range(8):
            large, small = values[step % 2], values[2 + step % 2]
            await fresh.commit({"large": large}, small, manifest=_holding((small,)))
            if step % 3:
                await store.collect()
            await _require_whole(store, await store.manifest(f"r@{step}"), large, small)


def _opened(store: Store) -> Openings:
    """Return the store if it supports combined reads."""
    if not reads_at_once(store):
        pytest.skip("this store has no combined reads")
    return store


class ReadingConformance(StoreSuite):
    """Runs are listed in the order in which they began, checkpoints in commit order.

    Blobs come with everything they refer to. A combined read returns the same as separate reads.
    """

    async def test_latest_is_the_newest_commit_of_its_workflow(self, store: Store, clock: ManualClock) -> None:
        assert await store.latest(workflow_name="flow") is None
        first = await RunDriver.start(store, clock, "b", commits=1)
        second = await RunDriver.start(store, clock, "a", commits=1)
        await RunDriver.start(store, clock, "of another", workflow_name="other", commits=1)
        clock.advance(timedelta(days=-1))
        await first.commit()
        assert await latest_id(store, "flow") == "b@1"
        await second.commit()
        assert [await latest_id(store, name) for name in ("flow", "other")] == ["a@1", "of another@0"]
        assert await store.latest(workflow_name="none") is None

    async def test_checkpoints_are_listed_in_commit_order(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name, workflow_name=f"flow {name}") for name in "zay"}
        written = [await runs[name].commit() for name in "zazzyaz"]
        assert list(await store.ids()) == written
        assert [manifest.checkpoint_id for manifest in await store.manifests()] == written
        of_z = [checkpoint_id for checkpoint_id in written if checkpoint_id.startswith("z")]
        assert list(await store.ids(workflow_name="flow z")) == of_z
        assert [manifest.checkpoint_id for manifest in await store.manifests(workflow_name="flow z")] == of_z
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="z")] == of_z
        assert list(await store.manifests(workflow_name="flow z", run_id="a")) == []

    async def test_blobs_come_with_all_that_they_refer_to(self, store: Store, fresh: RunDriver) -> None:
        leaf, absent = text_blob("leaf"), text_blob("absent")
        twig = raw_blob(b"twig" * 5000, leaf)
        branch = text_blob("branch", twig, leaf)
        await fresh.commit({"tree": branch, "other": text_blob("unrelated")}, twig, leaf)
        expected = {blob.hash: blob.data for blob in (leaf, twig, branch)}
        assert await store.blobs([absent.hash, branch.hash]) == expected
        assert await asyncio.to_thread(store.read_blobs, [branch.hash]) == expected
        assert store.read_blobs([branch.hash, absent.hash]) == expected
        assert await store.blobs([]) == {}

    async def test_blobs_of_any_size_and_content_come_back(self, store: Store, fresh: RunDriver) -> None:
        blobs = [
            raw_blob(b""),
            raw_blob(b"\n{}\n"),
            raw_blob(bytes(range(256)) * 20_000),
            Blob.of(b'{"a": [1, 2.50]}'),
            Blob.of(b"[1,1.0,-0.0,1e+400,NaN]"),
            Blob.of(b'"\\ud800"'),
            Blob.of(b"null"),
            Blob.of(b'{"b":1,"a":"\xf0\x9f\x98\x80"}'),
            Blob.of(b'["' + b"x" * 10_000 + b'"]'),
        ]
        await fresh.commit({str(number): blob for number, blob in enumerate(blobs)})
        await fresh.commit({"again": blobs[-2]})
        assert await read_contents(store, "r@0") == {str(number): blob.data for number, blob in enumerate(blobs)}

    async def test_commit_may_leave_out_blobs_of_the_head(self, store: Store, fresh: RunDriver) -> None:
        leaf = text_blob("leaf")
        kept = {f"small {number}": text_blob(f"{number}" * 100, leaf) for number in range(40)}
        kept |= {f"large {number}": raw_blob(bytes([number]) * 9000, leaf) for number in range(3)}
        await fresh.commit(kept, leaf)
        for step in range(3):
            changed = text_blob(f"step {step}")
            await fresh.commit({**kept, "changed": changed}, blobs=(changed,))
            await store.delete(f"r@{step}")
        await store.collect()
        contents = {path: blob.data for path, blob in kept.items()}
        assert await read_contents(store, "r@3") == {**contents, "changed": text_blob("step 2").data}
        closure = await store.blobs(blob.hash for blob in kept.values())
        assert leaf.hash in closure

    async def test_callers_may_change_what_they_were_given(self, store: Store, fresh: RunDriver) -> None:
        blob = text_blob("v")
        toc = {"a": blob.hash}
        await fresh.commit({"a": blob}, events=events("a"), manifest={"toc": toc})
        await fresh.post(command("a"))
        toc["a"] = "changed"

        async def read() -> list[Any]:
            toc, blobs = (await store.manifest("r@0")).toc, await store.blobs([blob.hash])
            return [toc, blobs, await store.runs(), await store.inbox("r"), await store.events("r"), await store.ids()]

        for given in await read():
            if isinstance(given, (dict, list)):
                given.clear()
        assert [len(each) for each in await read()] == [1] * 6
        assert dict((await store.manifest("r@0")).toc) == {"a": blob.hash}

    async def test_runs_are_listed_in_the_order_in_which_they_began(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.runs()) == []
        names = ["m", "z", "a", "k"]
        runs = [await RunDriver.start(store, clock, name, commits=1) for name in names]
        for run in reversed(runs):
            await run.commit()
            await run.release()
        await RunDriver.start(store, clock, "never began")
        await RunDriver.start(store, clock, "a fork", parent="k@0")
        assert list(await store.runs()) == [await store.run(name) for name in [*names, "a fork"]]

    async def test_run_that_begins_again_is_listed_last(self, store: Store, clock: ManualClock) -> None:
        await RunDriver.start(store, clock, "r")
        for name in ("s", "t"):
            await RunDriver.start(store, clock, name, commits=1)
        await store.delete("s@0")
        for name in ("r", "s"):
            await RunDriver.start(store, clock, name, commits=1)
        assert [record.run_id for record in await store.runs()] == ["t", "r", "s"]

    async def test_runs_are_listed_by_workflow_and_status(self, store: Store, clock: ManualClock) -> None:
        for name, halt in {"a": halted(), "b": None, "c": halted("parked"), "d": halted(), "e": None}.items():
            run = await RunDriver.start(store, clock, name, workflow_name="two" if name == "d" else "one", commits=1)
            await run.commit(status="idle" if name == "e" else "waiting")
            await run.release(halt=halt)

        async def listed(workflow_name: str | None = None, status: RunStatus | None = None) -> str:
            return "".join(each.run_id for each in await store.runs(workflow_name=workflow_name, status=status))

        by_status = [await listed(status=status) for status in ("failed", "waiting", "idle", "parked", "exported")]
        assert by_status == ["ad", "b", "e", "c", ""]
        assert [await listed("one", "failed"), await listed("one"), await listed("none")] == ["a", "abce", ""]
        assert await listed() == "abcde"
        await store.acquire("a")
        assert await listed(status="waiting") == "ab"

    async def test_checkpoint_comes_with_its_blobs_and_its_run(self, store: Store, fresh: RunDriver) -> None:
        opened = _opened(store)
        leaf = text_blob("leaf")
        branch = raw_blob(b"branch" * 5000, leaf)
        await fresh.commit({"a": branch}, leaf)
        await fresh.commit({"b": text_blob("newer")})
        for checkpoint_id in ("r@0", "r@1"):
            manifest = await store.manifest(checkpoint_id)
            assert await opened.whole_checkpoint(checkpoint_id) == WholeCheckpoint(
                manifest, await store.blobs(manifest.roots), await fresh.record()
            )
        assert (await opened.whole_checkpoint("r@0")).blobs == {blob.hash: blob.data for blob in (leaf, branch)}

    async def test_combined_read_of_a_missing_checkpoint_is_refused(self, run: RunDriver) -> None:
        opened = _opened(run.store)
        await refused(CheckpointNotFoundError, opened.whole_checkpoint("r@1"))
        for name in REFUSED_IDS:
            for read in (opened.whole_checkpoint, opened.since_head):
                await refused(WorkflowCheckpointException, read(name))

    async def test_journal_comes_with_the_inbox(self, store: Store, run: RunDriver) -> None:
        opened = _opened(store)
        for nothing in (await opened.since_head("nowhere"), await opened.since_head("r")):
            assert [*nothing.journal, *nothing.inbox] == []
        await run.note(finished("a", "1"), finished("b", "2", text_blob("of b")))
        await run.post(command("c", "3", text_blob("of c")), command("d", "4"))
        since = await opened.since_head("r")
        assert [[*since.journal], [*since.inbox]] == [[*await store.journal("r")], [*await store.inbox("r")]]
        assert [[each.key for each in since.journal], [each.id for each in since.inbox]] == [["a", "b"], ["c", "d"]]
