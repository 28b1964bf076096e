"""Commits and what is read of them: checkpoints, blobs, runs. A commit is written completely, or not at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from perdure.errors import CheckpointNotFoundError, LeaseLostError, StaleHeadError, WorkflowCheckpointException
from perdure.records import Blob, HeadStatus, KeepLast, LatestOnly, Manifest, Retention, RunStatus, WholeCheckpoint
from perdure.storage import Openings, Store, reads_at_once
from perdure.testing.stores.base import (
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
    refused,
    text_blob,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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

    async def test_run_has_the_status_of_its_last_commit(self, store: Store, fresh: RunDriver) -> None:
        commits: list[tuple[HeadStatus, str | None, bool]] = [
            ("running", None, False),
            ("waiting", SOON, False),
            ("sleeping", LATE, False),
            ("idle", None, True),
            ("cancelled", None, False),
        ]
        for position, (status, wake_at, settled) in enumerate(commits):
            await fresh.commit(status=status, wake_at=wake_at, settled=settled)
            record = await fresh.record()
            assert (record.head, record.position) == (f"r@{position}", position)
            assert (record.status, record.wake_at, record.settled) == (status, wake_at, settled)
            await store.close()
            assert await fresh.record() == record

    @pytest.mark.parametrize("reason", ["stale head", "lost lease", "released", "position", "checkpoint", "other run"])
    async def test_refused_commit_writes_nothing(self, store: Store, run: RunDriver, reason: str) -> None:
        await run.note(finished("a", "kept"))
        await run.post(command("a", "kept"))
        blob = raw_blob(b"lost" * 3000)
        further: Further = {"consumed": ("a",), "events": events("lost", blobs=(text_blob("lost"),))}
        writer = run
        error: type[Exception] = WorkflowCheckpointException
        match reason:
            case "stale head":
                error, further["expected_head"] = StaleHeadError, "r@-1"
            case "lost lease":
                error = LeaseLostError
                await store.acquire("r")
            case "released":
                error = LeaseLostError
                await run.release()
            case "position":
                further["manifest"] = {"position": 0}
            case "checkpoint":
                further["checkpoint_id"] = "r@0"
            case _:
                writer = await run.another("s")
                further["checkpoint_id"] = "r@0"
        caught = await refused(error, writer.commit({"a": blob}, **further))
        if isinstance(caught, StaleHeadError):
            assert (caught.expected, caught.head) == ("r@-1", "r@0")
        await run.require(head="r@0", events=0)
        assert [*await store.ids(), *await run.noted(), *await run.inbox()] == ["r@0", "a=kept", "a=kept"]
        assert (await run.events(), await store.run("s")) == ([], None)
        await store.collect()
        assert await store.blobs([blob.hash, text_blob("lost").hash]) == {}

    async def test_positions_grow_and_may_have_gaps(self, store: Store, run: RunDriver) -> None:
        await run.commit(checkpoint_id="at 5", manifest={"position": 5})
        await refused(WorkflowCheckpointException, run.commit(checkpoint_id="at 3", manifest={"position": 3}))
        await run.commit(checkpoint_id="at 7", manifest={"position": 7})
        await run.require(position=7)
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

    async def test_concurrent_commits_of_many_runs_all_succeed(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(8)]

        async def advance(run: RunDriver) -> None:
            for step in range(4):
                await run.commit({"a": text_blob(f"{run.run_id} {step}"), "b": text_blob(f"common {step}")})

        await asyncio.gather(*(advance(run) for run in runs))
        for run in runs:
            assert (await run.record()).position == 3
            assert [manifest.position for manifest in await store.manifests(run_id=run.run_id)] == [0, 1, 2, 3]
        assert len(await store.ids()) == 32


class ForkConformance(StoreSuite):
    """An older checkpoint becomes the head again, or the start of another run."""

    async def test_rewinding_moves_the_head_and_keeps_later_checkpoints(self, store: Store, fresh: RunDriver) -> None:
        for step in range(4):
            await fresh.commit({"a": text_blob(f"v{step}")}, settled=step == 3)
        await fresh.rewind("r@1", nonce="renewed")
        await fresh.release()
        await fresh.reacquire()
        await fresh.require(head="r@1", position=3, nonce="renewed", settled=False)
        assert await read_contents(store, "r@3") == {"a": b'"v3"'}
        await fresh.commit()
        await fresh.require(head="r@4", position=4)
        assert (await store.manifest("r@4")).previous_id == "r@1"
        assert list(await store.ids()) == ["r@0", "r@1", "r@2", "r@3", "r@4"]

    async def test_rewinding_is_refused_without_lease_head_or_target(self, store: Store, run: RunDriver) -> None:
        await run.commit()
        await run.another("s", commits=1)
        await refused(StaleHeadError, store.rewind(run.lease, expected_head="r@0", to="r@0", nonce="n"))
        for missing in ("s@0", "nowhere"):
            await refused(CheckpointNotFoundError, store.rewind(run.lease, expected_head="r@1", to=missing, nonce="n"))
        await store.acquire("r")
        await refused(LeaseLostError, run.rewind("r@0"))
        await run.require(head="r@1", nonce="nonce of r")

    async def test_status_follows_the_head_to_other_checkpoints(self, store: Store, fresh: RunDriver) -> None:
        await fresh.commit(status="sleeping", wake_at=SOON)
        await fresh.commit(status="waiting", wake_at=LATE)
        await fresh.commit(status="idle", settled=True)
        at = {"r@1": ("waiting", LATE), "r@0": ("sleeping", SOON), "r@2": ("idle", None)}
        for to, (status, wake_at) in at.items():
            await fresh.rewind(to, nonce=f"nonce of {to}")
            await store.close()
            await fresh.require(head=to, status=status, wake_at=wake_at)
        for head, deleted in (("r@1", "r@2"), ("r@0", "r@1")):
            await store.delete(deleted)
            await fresh.require(head=head, status=at[head][0], wake_at=at[head][1])

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


class ListingConformance(StoreSuite):
    """Runs are listed in the order in which they began."""

    async def test_runs_are_listed_in_the_order_in_which_they_began(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.runs()) == []
        names = ["m", "z", "a", "k"]
        runs = [await RunDriver.start(store, clock, name, commits=1) for name in names]
        for run in reversed(runs):
            await run.commit()
            await run.release()
        await RunDriver.start(store, clock, "never began")
        await RunDriver.start(store, clock, "a fork", parent="k@0")
        assert [record.run_id for record in await store.runs()] == [*names, "a fork"]
        await store.close()
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


class OpeningConformance(StoreSuite):
    """A combined read returns the same as separate reads."""

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


def _opened(store: Store) -> Openings:
    """Return the store if it supports combined reads."""
    if not reads_at_once(store):
        pytest.skip("this store has no combined reads")
    return store


class ReadingConformance(StoreSuite):
    """Checkpoints come in commit order, blobs with everything they refer to."""

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
