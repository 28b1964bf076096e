"""What every store must do, as a test class to subclass. Needs pytest.

class TestMyStore(StoreConformance):
    def open_store(self, directory, *, retention, clock):
        return MyStore(directory / "runs", retention=retention, clock=clock)
"""

from __future__ import annotations

import asyncio
import functools
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, ParamSpec

import pytest

from perdure.errors import (
    CheckpointNotFoundError,
    ClaimLostError,
    RunNotFoundError,
    StaleHeadError,
    WorkflowCheckpointException,
)
from perdure.records import Commit, JournalRecord, KeepFor, KeepLast, LatestOnly, Manifest, NewRun, Part, Retention

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from pathlib import Path

    from perdure.clock import Clock
    from perdure.records import Claim, RunRecord
    from perdure.stores.port import Store

P = ParamSpec("P")

ODD_IDS = (
    "plain",
    "with space",
    "a/b",
    "a%2Fb",
    "a:b*c?d",
    "UPPER",
    "upper",
    ".hidden",
    "x.json",
    "naïve",
    "日本語",
    "👩‍👩‍👧",
    "~tilde",
    "%7Etilde",
    "-",
    "n" * 200,
    "n" * 199 + "m",
    "日" * 200,
    "日" * 199 + "月",
)
REFUSED_IDS = ("", "new\nline", "nul\0", "n" * 300, "\x1b[31m")


class ManualClock:
    """A clock that stands still until it is told to go on. Its ids are numbers."""

    def __init__(self) -> None:
        self._now = datetime(2024, 1, 1, tzinfo=UTC)
        self._ids = 0

    def now(self) -> datetime:
        """The time that it was set to."""
        return self._now

    def new_id(self) -> str:
        """The next number."""
        self._ids += 1
        return f"id-{self._ids}"

    def advance(self, by: timedelta) -> None:
        """Let time pass."""
        self._now += by


class RunDriver:
    """Advances one run in a store, as an engine would, and knows where it should be."""

    def __init__(self, store: Store, clock: Clock, run_id: str, workflow_name: str) -> None:
        self.store = store
        self.clock = clock
        self.run_id = run_id
        self.workflow_name = workflow_name
        self.claim: Claim | None = None
        self.head: str | None = None
        self.position = -1

    @classmethod
    async def start(
        cls, store: Store, clock: Clock, run_id: str, *, workflow_name: str = "flow", parent: str | None = None
    ) -> RunDriver:
        """Claim a new run, a fork if there is a `parent`."""
        driver = cls(store, clock, run_id, workflow_name)
        driver.head = parent
        driver.claim = await store.claim(run_id, create=new_run(run_id, workflow_name, parent=parent))
        return driver

    def next_commit(
        self, values: Mapping[str, Part] | None = None, *, settled: bool = False, checkpoint_id: str | None = None
    ) -> Commit:
        """The commit that would follow; `values` by path, each with its part."""
        contents = values or {}
        manifest = Manifest(
            checkpoint_id=checkpoint_id or f"{self.run_id}@{self.position + 1}",
            run_id=self.run_id,
            workflow_name=self.workflow_name,
            position=self.position + 1,
            previous_id=self.head,
            timestamp=self.clock.now().isoformat(),
            iteration_count=self.position + 1,
            header=b'{"note":"f\xc3\xbcr dich","numbers":[1,2.5,null]}',
            toc={path: part.hash for path, part in contents.items()},
        )
        return Commit(manifest, tuple(contents.values()), self.head, settled)

    async def write(self, commit: Commit, *further: Part) -> str:
        """Commit it, with further parts that its own refer to."""
        assert self.claim is not None
        await self.store.commit(self.claim, replace(commit, parts=(*commit.parts, *further)))
        self.head = commit.manifest.checkpoint_id
        self.position = commit.manifest.position
        return self.head

    async def commit(
        self,
        values: Mapping[str, Part] | None = None,
        *further: Part,
        settled: bool = False,
        checkpoint_id: str | None = None,
    ) -> str:
        """Write the next commit; its id."""
        return await self.write(self.next_commit(values, settled=settled, checkpoint_id=checkpoint_id), *further)

    async def rewind(self, to: str, *, nonce: str = "another") -> None:
        """Move the head back."""
        assert self.claim is not None
        assert self.head is not None
        await self.store.rewind(self.claim, expected_head=self.head, to=to, nonce=nonce)
        self.head = to

    async def note(self, *records: JournalRecord, durable: bool = True) -> None:
        """Record what the superstep in progress has finished."""
        assert self.claim is not None
        await self.store.record(self.claim, head=self.head, records=records, durable=durable)

    async def noted(self) -> Sequence[str]:
        """What the journal holds: of each record its key and its data."""
        return [f"{record.key}={record.data.decode()}" for record in await self.store.journal(self.run_id)]

    async def release(self) -> None:
        """Give the run free."""
        assert self.claim is not None
        await self.store.release(self.claim)

    async def record(self) -> RunRecord:
        """The run as the store knows it."""
        record = await self.store.run(self.run_id)
        assert record is not None
        return record


def new_run(run_id: str, workflow_name: str = "flow", *, parent: str | None = None) -> NewRun:
    """What a run begins as."""
    return NewRun(
        run_id=run_id,
        workflow_name=workflow_name,
        created_at="2024-01-01T00:00:00+00:00",
        nonce=f"nonce of {run_id}",
        input_digest="digest",
        parent_checkpoint_id=parent,
    )


def text_part(text: str, *refs: Part) -> Part:
    """A small part: a JSON string."""
    return Part.of(f'"{text}"'.encode(), tuple(part.hash for part in refs))


def raw_part(data: bytes, *refs: Part) -> Part:
    """A part of any bytes."""
    return Part.of(data, tuple(part.hash for part in refs), kind="raw")


def finished(key: str, data: str = "", *parts: Part) -> JournalRecord:
    """A record that comes with the parts that it refers to."""
    return JournalRecord(key, data.encode(), tuple(part.hash for part in parts), parts)


def _in_a_loop(test: Callable[P, Coroutine[object, object, None]]) -> Callable[P, None]:
    # Each test has an event loop of its own, whatever plugins pytest has.
    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return run


class StoreConformance:
    """Subclass it, say how your store is opened, and pytest runs all of it."""

    def open_store(self, directory: Path, *, retention: Retention, clock: Clock) -> Store:
        """A new, empty store. It may use `directory`."""
        raise NotImplementedError(f"{type(self).__name__} must define open_store")

    @pytest.fixture
    def clock(self) -> ManualClock:
        """The store's clock."""
        return ManualClock()

    @pytest.fixture
    def store(self, tmp_path: Path, clock: ManualClock) -> Store:
        """A store that keeps everything."""
        return self.open_store(tmp_path, retention=Retention(), clock=clock)

    # Claims

    @_in_a_loop
    async def test_an_unknown_run_is_claimed_only_with_what_it_begins_as(self, store: Store) -> None:
        with pytest.raises(RunNotFoundError):
            await store.claim("r")
        assert (await store.claim("r", create=new_run("r"))).run_id == "r"

    @_in_a_loop
    async def test_a_token_is_larger_than_all_before_it(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        tokens = [run.claim.token if run.claim else 0]
        for _ in range(3):
            claim = await store.claim("r")
            tokens.append(claim.token)
            await store.release(claim)
        assert tokens == sorted(set(tokens))

    @_in_a_loop
    async def test_a_run_has_an_owner_until_it_is_released(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.claim is not None
        assert (await run.record()).owner == run.claim.owner
        await run.release()
        assert (await run.record()).owner is None

    @_in_a_loop
    async def test_a_run_that_committed_nothing_never_began(self, store: Store) -> None:
        claim = await store.claim("r", create=new_run("r"))
        assert await store.run("r") is None
        await store.release(claim)
        assert await store.run("r") is None
        with pytest.raises(RunNotFoundError):
            await store.claim("r")

    @_in_a_loop
    async def test_a_run_that_never_began_begins_as_its_last_claim_says(self, store: Store, clock: ManualClock) -> None:
        await store.claim("r", create=replace(new_run("r"), nonce="first"))
        run = RunDriver(store, clock, "r", "flow")
        run.claim = await store.claim("r", create=replace(new_run("r"), nonce="second"))
        await run.commit()
        assert (await run.record()).nonce == "second"

    @_in_a_loop
    async def test_a_run_that_has_begun_stays_as_it_began(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.claim("r", create=replace(new_run("r"), nonce="late"))
        assert (await run.record()).nonce == "nonce of r"

    @_in_a_loop
    async def test_releasing_a_replaced_claim_changes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        newer = await store.claim("r")
        await run.release()
        assert (await run.record()).owner == newer.owner

    # Commits

    @_in_a_loop
    async def test_a_checkpoint_comes_back_as_it_was_written(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw")
        await run.commit()
        commit = run.next_commit({"state/ключ": text_part("v"), "empty": raw_part(b"")})
        await run.write(commit)
        manifest = await store.manifest("r@1")
        assert replace(manifest, toc=dict(manifest.toc)) == replace(commit.manifest, toc=dict(commit.manifest.toc))
        assert manifest.checksum() == commit.manifest.checksum()

    @_in_a_loop
    async def test_a_header_comes_back_byte_by_byte(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
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
            commit = run.next_commit()
            await run.write(replace(commit, manifest=replace(commit.manifest, header=header)))
        assert [manifest.header for manifest in await store.manifests(run_id="r")] == headers

    @_in_a_loop
    async def test_a_commit_moves_the_head(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for position in range(3):
            await run.commit()
            record = await run.record()
            assert (record.head, record.position) == (f"r@{position}", position)

    @_in_a_loop
    async def test_a_run_is_settled_as_its_last_commit_says(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for settled in (False, True, False):
            await run.commit(settled=settled)
            assert (await run.record()).settled is settled

    @_in_a_loop
    async def test_a_run_is_recorded_as_it_began(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r", workflow_name="flöw")
        await run.commit()
        record = await run.record()
        began = new_run("r", "flöw")
        assert (record.workflow_name, record.created_at, record.nonce, record.input_digest) == (
            began.workflow_name,
            began.created_at,
            began.nonce,
            began.input_digest,
        )

    @_in_a_loop
    async def test_a_stale_commit_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        part = text_part("lost")
        commit = replace(run.next_commit({"a": part}), expected_head="r@-1")
        with pytest.raises(StaleHeadError) as caught:
            await run.write(commit)
        assert (caught.value.expected, caught.value.head) == ("r@-1", "r@0")
        await self._assert_untouched(run, part)

    @_in_a_loop
    async def test_a_commit_with_a_replaced_claim_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.claim("r")
        part = text_part("lost")
        with pytest.raises(ClaimLostError):
            await run.commit({"a": part})
        await self._assert_untouched(run, part)

    @_in_a_loop
    async def test_a_commit_after_the_release_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.release()
        part = text_part("lost")
        with pytest.raises(ClaimLostError):
            await run.commit({"a": part})
        await self._assert_untouched(run, part)

    @_in_a_loop
    async def test_a_commit_whose_number_was_passed_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        part = text_part("lost")
        commit = run.next_commit({"a": part})
        with pytest.raises(WorkflowCheckpointException):
            await run.write(replace(commit, manifest=replace(commit.manifest, position=0)))
        await self._assert_untouched(run, part)

    @_in_a_loop
    async def test_numbers_may_be_left_out(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        commit = run.next_commit({})
        await run.write(replace(commit, manifest=replace(commit.manifest, position=5)))
        assert (await run.record()).position == 5
        assert [manifest.position for manifest in await store.manifests(run_id="r")] == [0, 5]

    @_in_a_loop
    async def test_a_checkpoint_is_never_replaced(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        other = await RunDriver.start(store, clock, "s")
        part = text_part("lost")
        with pytest.raises(WorkflowCheckpointException):
            await other.commit({"a": part}, checkpoint_id="r@0")
        await self._assert_untouched(run, part)
        assert await store.run("s") is None

    async def _assert_untouched(self, run: RunDriver, part: Part) -> None:
        assert (await run.record()).head == "r@0"
        assert await run.store.ids() == ["r@0"]
        await run.store.collect()
        assert await run.store.parts([part.hash]) == {}

    @_in_a_loop
    async def test_of_two_commits_on_one_head_one_is_refused(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        assert run.claim is not None
        rivals = [run.next_commit(checkpoint_id=name) for name in ("left", "right")]
        outcomes = await asyncio.gather(*(store.commit(run.claim, rival) for rival in rivals), return_exceptions=True)
        assert sorted(type(outcome).__name__ for outcome in outcomes) == ["NoneType", "StaleHeadError"]
        winner = rivals[outcomes.index(None)].manifest.checkpoint_id
        assert list(await store.ids()) == ["r@0", winner]

    @_in_a_loop
    async def test_runs_that_commit_at_once_all_get_through(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(8)]

        async def advance(run: RunDriver) -> None:
            for step in range(4):
                await run.commit({"a": text_part(f"{run.run_id} {step}"), "b": text_part(f"common {step}")})

        await asyncio.gather(*(advance(run) for run in runs))
        for run in runs:
            assert (await run.record()).position == 3
            assert [manifest.position for manifest in await store.manifests(run_id=run.run_id)] == [0, 1, 2, 3]
        assert len(await store.ids()) == 32

    @_in_a_loop
    async def test_a_refused_commit_spoils_no_other_beside_it(self, store: Store, clock: ManualClock) -> None:
        good = await RunDriver.start(store, clock, "good")
        bad = await RunDriver.start(store, clock, "bad")
        assert bad.claim is not None
        outcomes = await asyncio.gather(
            store.commit(bad.claim, replace(bad.next_commit(), expected_head="nowhere")),
            good.commit({"a": text_part("kept")}),
            return_exceptions=True,
        )
        assert isinstance(outcomes[0], StaleHeadError)
        assert list(await store.ids()) == ["good@0"]

    @_in_a_loop
    async def test_any_printable_string_is_an_id(self, store: Store, clock: ManualClock) -> None:
        for name in ODD_IDS:
            run = await RunDriver.start(store, clock, name)
            await run.commit({"a": text_part(f"first of {ODD_IDS.index(name)}")}, checkpoint_id=name)
            await run.commit()
            await run.release()
        for name in ODD_IDS:
            assert await _contents(store, name) == {"a": f'"first of {ODD_IDS.index(name)}"'.encode()}
            record = await store.run(name)
            assert record is not None
            assert record.head == f"{name}@1"

    @_in_a_loop
    async def test_what_can_not_be_an_id_is_refused(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for name in REFUSED_IDS:
            with pytest.raises(WorkflowCheckpointException):
                await store.claim(name, create=new_run(name))
            with pytest.raises(WorkflowCheckpointException):
                await store.manifest(name)
            commit = run.next_commit()
            with pytest.raises(WorkflowCheckpointException):
                await run.write(replace(commit, manifest=replace(commit.manifest, checkpoint_id=name)))
        assert list(await store.ids()) == []

    # Rewinding and forks

    @_in_a_loop
    async def test_rewinding_moves_the_head_and_keeps_what_came_after(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(4):
            await run.commit({"a": text_part(f"v{step}")}, settled=step == 3)
        await run.rewind("r@1", nonce="renewed")
        record = await run.record()
        assert (record.head, record.position, record.nonce, record.settled) == ("r@1", 3, "renewed", False)
        later = await store.manifest("r@3")
        assert await store.parts(later.toc.values()) == {text_part("v3").hash: b'"v3"'}

    @_in_a_loop
    async def test_after_rewinding_the_numbers_go_on(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit({"a": text_part(f"v{step}")})
        await run.rewind("r@0")
        await run.commit({"a": text_part("other")})
        record = await run.record()
        assert (record.head, record.position) == ("r@3", 3)
        assert (await store.manifest("r@3")).previous_id == "r@0"
        assert list(await store.ids()) == ["r@0", "r@1", "r@2", "r@3"]

    @_in_a_loop
    async def test_a_rewound_run_keeps_its_head_over_a_new_claim(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.rewind("r@1")
        await run.release()
        run.claim = await store.claim("r")
        record = await run.record()
        assert (record.head, record.position) == ("r@1", 2)

    @_in_a_loop
    async def test_rewinding_is_refused_without_claim_head_or_target(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        other = await RunDriver.start(store, clock, "s")
        await other.commit()
        assert run.claim is not None
        with pytest.raises(StaleHeadError):
            await store.rewind(run.claim, expected_head="r@0", to="r@0", nonce="n")
        for missing in ("s@0", "nowhere"):
            with pytest.raises(CheckpointNotFoundError):
                await store.rewind(run.claim, expected_head="r@1", to=missing, nonce="n")
        await store.claim("r")
        with pytest.raises(ClaimLostError):
            await run.rewind("r@0")
        record = await run.record()
        assert (record.head, record.nonce) == ("r@1", "nonce of r")

    @_in_a_loop
    async def test_a_fork_rests_on_its_parent_until_its_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await source.commit({"a": text_part(f"v{step}")})
        fork = await RunDriver.start(store, clock, "f", parent="r@1")
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("r@1", -1, "r@1")
        await fork.commit({"a": text_part("v1")})
        record = await fork.record()
        assert (record.head, record.position, record.parent_checkpoint_id) == ("f@0", 0, "r@1")
        assert (await source.record()).head == "r@2"

    @_in_a_loop
    async def test_a_fork_survives_its_release_before_the_first_commit(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit()
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.release()
        fork.claim = await store.claim("f")
        await fork.commit()
        assert (await fork.record()).head == "f@0"

    @_in_a_loop
    async def test_a_fork_needs_not_write_what_its_parent_has(self, store: Store, clock: ManualClock) -> None:
        small, large = text_part("small"), raw_part(b"large" * 20_000)
        source = await RunDriver.start(store, clock, "r")
        await source.commit({"small": small, "large": large})
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.write(replace(fork.next_commit({"small": small, "large": large}), parts=()))
        await store.delete("r@0")
        await store.collect()
        assert await _contents(store, "f@0") == {"small": small.data, "large": large.data}

    # Journals

    @_in_a_loop
    async def test_a_record_comes_back_as_it_was_recorded(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        refs = (text_part("x").hash, text_part("y").hash)
        contents = [b"", b'{"a":[1,2.50]}', b"\xff\x00\n", "ünï\u2028\r\n日本".encode(), b"large " * 30_000]
        records = [JournalRecord(f"key {number}", data, refs[:number]) for number, data in enumerate(contents)]
        await run.note(*records[:3])
        await run.note(*records[3:])
        assert list(await store.journal("r")) == records

    @_in_a_loop
    async def test_any_string_is_a_key(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        keys = [*ODD_IDS, *REFUSED_IDS, "file \udcff", "a\u2028b", "\n"]
        for key in keys:
            await run.note(finished(key, "first"))
        await run.note(*(finished(key, "second") for key in keys))
        assert [(record.key, record.data) for record in await store.journal("r")] == [(key, b"second") for key in keys]

    @_in_a_loop
    async def test_an_unknown_run_and_a_fresh_head_have_no_records(self, store: Store, clock: ManualClock) -> None:
        assert list(await store.journal("nowhere")) == []
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note()
        assert await run.noted() == []

    @_in_a_loop
    async def test_a_later_record_takes_the_place_of_the_one_with_its_key(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "1"), finished("b", "1", text_part("of b")))
        await run.note(finished("c", "1"), finished("a", "2"))
        await run.note(finished("b", "2"), finished("d", "1"), finished("b", "3"))
        assert await run.noted() == ["a=2", "b=3", "c=1", "d=1"]
        assert [record.refs for record in await store.journal("r")] == [()] * 4

    @_in_a_loop
    async def test_records_can_be_read_whether_they_are_durable_or_not(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        for number, durable in enumerate((False, False, True, False)):
            await run.note(finished(f"{number}", "x"), durable=durable)
        await store.close()
        assert await run.noted() == ["0=x", "1=x", "2=x", "3=x"]

    @_in_a_loop
    async def test_records_outlast_the_claim_that_wrote_them(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "first"))
        run.claim = await store.claim("r", create=new_run("r"))
        await run.note(finished("b", "second"))
        await run.release()
        assert await run.noted() == ["a=first", "b=second"]
        run.claim = await store.claim("r")
        await run.note(finished("c", "third"))
        assert await run.noted() == ["a=first", "b=second", "c=third"]

    @_in_a_loop
    async def test_a_commit_voids_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit({"a": text_part(f"v{step}")})
            assert await run.noted() == []
            await run.note(finished("one", f"{step}"), durable=False)
            await run.note(finished("two", f"{step}"))
            assert await run.noted() == [f"one={step}", f"two={step}"]

    @_in_a_loop
    async def test_a_refused_commit_leaves_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "kept"))
        for refused in (replace(run.next_commit(), expected_head="elsewhere"), run.next_commit(checkpoint_id="r@0")):
            with pytest.raises(WorkflowCheckpointException):
                await run.write(refused)
        assert await run.noted() == ["a=kept"]

    @_in_a_loop
    async def test_rewinding_drops_the_journal_for_good(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.note(finished("a"))
        await run.rewind("r@0", nonce="second")
        assert await run.noted() == []
        await run.note(finished("b"))
        await run.rewind("r@2", nonce="third")
        assert await run.noted() == []
        await run.note(finished("c"))
        await run.rewind("r@2", nonce="fourth")
        assert await run.noted() == []

    @_in_a_loop
    async def test_deleting_the_head_drops_the_journal(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        await run.note(finished("a", "kept"))
        await store.delete("r@0")
        assert await run.noted() == ["a=kept"]
        await store.delete("r@2")
        assert await run.noted() == []
        with pytest.raises(StaleHeadError):
            await run.note(finished("late"))
        run.head = "r@1"
        await run.note(finished("b", "after"))
        assert await run.noted() == ["b=after"]

    @_in_a_loop
    async def test_a_run_that_is_gone_takes_its_journal_with_it(self, store: Store, clock: ManualClock) -> None:
        part = raw_part(b"part" * 3000)
        for _ in range(2):
            run = await RunDriver.start(store, clock, "r")
            assert await run.noted() == []
            await run.commit()
            assert await run.noted() == []
            await run.note(finished("a", "", part))
            await store.delete("r@0")
            assert await run.noted() == []
            with pytest.raises(StaleHeadError):
                await run.note(finished("late"))
        assert await store.collect() == 1

    @_in_a_loop
    async def test_before_the_first_commit_records_are_kept_while_the_run_is_claimed(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.note(finished("a", "early"))
        assert await run.noted() == ["a=early"]
        await run.release()
        assert await run.noted() == []
        run = await RunDriver.start(store, clock, "r")
        assert await run.noted() == []
        await run.note(finished("b", "early"))
        run = await RunDriver.start(store, clock, "r")
        assert await run.noted() == []
        await run.note(finished("c", "early"))
        await run.commit()
        assert await run.noted() == []

    @_in_a_loop
    async def test_a_stale_record_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        part = text_part("lost")
        assert run.claim is not None
        with pytest.raises(StaleHeadError):
            await store.record(run.claim, head="r@0", records=[finished("early", "", part)])
        await run.commit()
        for head in (None, "r@1", "elsewhere"):
            with pytest.raises(StaleHeadError) as caught:
                await store.record(run.claim, head=head, records=[finished("a", "", part)])
            assert (caught.value.expected, caught.value.head) == (head, "r@0")
        await self._assert_unrecorded(run, part)

    @_in_a_loop
    async def test_a_record_without_a_claim_writes_nothing(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        part = text_part("lost")
        newer = await store.claim("r")
        with pytest.raises(ClaimLostError):
            await run.note(finished("a", "", part))
        await store.release(newer)
        with pytest.raises(ClaimLostError):
            await run.note(finished("a", "", part))
        await self._assert_unrecorded(run, part)

    async def _assert_unrecorded(self, run: RunDriver, part: Part) -> None:
        assert await run.noted() == []
        await run.store.collect()
        assert await run.store.parts([part.hash]) == {}

    @_in_a_loop
    async def test_records_of_many_at_once_all_get_through(self, store: Store, clock: ManualClock) -> None:
        runs = [await RunDriver.start(store, clock, f"r{number}") for number in range(4)]
        await asyncio.gather(*(run.commit() for run in runs))
        await asyncio.gather(
            *(
                run.note(finished(f"{number}", run.run_id, text_part(f"{number}")), durable=number % 3 == 0)
                for number in range(10)
                for run in runs
            )
        )
        for run in runs:
            assert await run.noted() == [f"{number}={run.run_id}" for number in range(10)]

    @_in_a_loop
    async def test_what_is_written_at_once_is_written_in_order(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        other = await RunDriver.start(store, clock, "s")
        await run.commit()
        assert run.claim is not None
        outcomes = await asyncio.gather(
            run.note(finished("before")),
            other.note(finished("of the other", "x")),
            store.commit(run.claim, run.next_commit()),
            store.record(run.claim, head="r@1", records=[finished("after", "y")]),
            store.record(run.claim, head="r@0", records=[finished("late")]),
            return_exceptions=True,
        )
        assert [type(outcome).__name__ for outcome in outcomes] == ["NoneType"] * 4 + ["StaleHeadError"]
        assert await run.noted() == ["after=y"]
        assert await other.noted() == ["of the other=x"]

    @_in_a_loop
    async def test_a_fork_has_a_journal_of_its_own(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        await source.commit()
        await source.note(finished("a", "source"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        assert await fork.noted() == []
        await fork.note(finished("a", "fork"))
        await fork.release()
        fork.claim = await store.claim("f")
        assert await fork.noted() == ["a=fork"]
        await source.commit()
        assert await source.noted() == []
        assert await fork.noted() == ["a=fork"]
        await fork.commit()
        assert await fork.noted() == []

    @_in_a_loop
    async def test_a_fork_whose_parent_is_deleted_has_no_journal(self, store: Store, clock: ManualClock) -> None:
        source = await RunDriver.start(store, clock, "r")
        for _ in range(2):
            await source.commit()
        await source.note(finished("a", "source"))
        fork = await RunDriver.start(store, clock, "f", parent="r@0")
        await fork.note(finished("a", "fork"))
        await store.delete("r@0")
        assert await fork.noted() == []
        assert await source.noted() == ["a=source"]

    @_in_a_loop
    async def test_the_parts_of_records_are_there_with_all_that_they_refer_to(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf, kept = raw_part(b"\xffleaf"), text_part("of the head")
        twig = raw_part(b"twig" * 5000, leaf, kept)
        branch = text_part("branch", twig)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": kept})
        await run.note(JournalRecord("a", b"", (branch.hash,), (leaf, twig, branch)))
        await run.note(JournalRecord("b", b"", (twig.hash,)))
        assert [record.parts for record in await store.journal("r")] == [(), ()]
        expected = {part.hash: part.data for part in (branch, twig, leaf, kept)}
        assert await store.collect() == 0
        for _ in range(2):
            assert await store.parts([branch.hash]) == expected
            assert await asyncio.to_thread(store.read_parts, [branch.hash]) == expected
            await store.close()

    @_in_a_loop
    async def test_parts_of_a_journal_go_when_it_is_void(self, store: Store, clock: ManualClock) -> None:
        adopted, leaf, dropped = (raw_part(name * 3000) for name in (b"adopted", b"leaf", b"dropped"))
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        tree = raw_part(b"tree" * 3000, leaf)
        await run.note(finished("a", "", adopted, dropped))
        await run.note(JournalRecord("b", b"", (tree.hash,), (tree, leaf)), durable=False)
        assert await store.collect() == 0
        await run.commit({"a": adopted})
        assert await store.collect() == 3
        assert await store.parts([adopted.hash, tree.hash, dropped.hash]) == {adopted.hash: adopted.data}

    @_in_a_loop
    async def test_parts_of_a_replaced_record_are_not_kept_by_it(self, store: Store, clock: ManualClock) -> None:
        first, second = raw_part(b"first" * 3000), raw_part(b"second" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.note(finished("a", "", first))
        await run.note(finished("a", "", second))
        assert await store.collect() == 1
        assert await store.parts([first.hash, second.hash]) == {second.hash: second.data}

    @_in_a_loop
    async def test_a_part_that_others_have_too_stays_when_the_journal_goes(
        self, store: Store, clock: ManualClock
    ) -> None:
        small, large = text_part("shared"), raw_part(b"shared" * 3000)
        run, other = [await RunDriver.start(store, clock, name) for name in "rs"]
        await run.commit({"small": small, "large": large})
        await other.commit()
        await other.note(finished("a", "", small, large))
        await run.note(finished("b", "", small, large))
        await run.commit()
        await store.delete("r@0")
        await store.collect()
        assert await store.parts([small.hash, large.hash]) == {small.hash: small.data, large.hash: large.data}

    @_in_a_loop
    async def test_a_journal_can_grow_by_far(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        leaf = text_part("leaf")
        await run.note(finished("first", "", text_part("root", leaf), leaf))
        for step in range(120):
            value = text_part(f"{step} " * 1000)
            await run.note(JournalRecord("state", b"", (value.hash,), (value,)), durable=False)
            await run.note(finished(f"step {step}", f"{step}"), durable=False)
        journal = await store.journal("r")
        assert [record.key for record in journal] == ["first", "state", *(f"step {step}" for step in range(120))]
        await store.close()
        assert await store.journal("r") == journal
        last = text_part("119 " * 1000)
        assert journal[1].refs == (last.hash,)
        assert (await store.parts([*journal[0].refs, last.hash])).keys() >= {leaf.hash, last.hash}

    # Order

    @_in_a_loop
    async def test_the_latest_is_the_newest_commit_whatever_its_time(self, store: Store, clock: ManualClock) -> None:
        first = await RunDriver.start(store, clock, "b")
        second = await RunDriver.start(store, clock, "a")
        await first.commit()
        await second.commit()
        clock.advance(timedelta(days=-1))
        await first.commit()
        assert await _latest(store, "flow") == "b@1"
        await second.commit()
        assert await _latest(store, "flow") == "a@1"

    @_in_a_loop
    async def test_workflows_have_each_their_latest(self, store: Store, clock: ManualClock) -> None:
        assert await store.latest(workflow_name="flow") is None
        for name in ("x", "y"):
            await (await RunDriver.start(store, clock, f"run of {name}", workflow_name=name)).commit()
        assert await _latest(store, "x") == "run of x@0"
        assert await _latest(store, "y") == "run of y@0"
        assert await store.latest(workflow_name="z") is None

    @_in_a_loop
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

    # Parts

    @_in_a_loop
    async def test_parts_come_with_all_that_they_refer_to(self, store: Store, clock: ManualClock) -> None:
        leaf = text_part("leaf")
        twig = raw_part(b"twig" * 5000, leaf)
        branch = text_part("branch", twig, leaf)
        unrelated = text_part("unrelated")
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"tree": branch, "other": unrelated}, twig, leaf)
        expected = {part.hash: part.data for part in (leaf, twig, branch)}
        assert await store.parts([branch.hash]) == expected
        assert await asyncio.to_thread(store.read_parts, [branch.hash]) == expected

    @_in_a_loop
    async def test_parts_can_be_read_blocking_inside_a_loop(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        part = text_part("seen")
        await run.commit({"a": part})
        assert store.read_parts([part.hash]) == {part.hash: part.data}

    @_in_a_loop
    async def test_a_part_that_is_missing_is_left_out(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        present, absent = text_part("present"), text_part("absent")
        await run.commit({"a": present})
        assert await store.parts([absent.hash, present.hash]) == {present.hash: present.data}
        assert await store.parts([]) == {}

    @_in_a_loop
    async def test_parts_of_any_size_and_content_come_back(self, store: Store, clock: ManualClock) -> None:
        parts = [
            raw_part(b""),
            raw_part(b"\n{}\n"),
            raw_part(bytes(range(256)) * 20_000),
            Part.of(b'{"a": [1, 2.50]}'),
            Part.of(b"[1,1.0,-0.0,1e+400,NaN]"),
            Part.of(b'"\\ud800"'),
            Part.of(b"null"),
            Part.of(b'{"b":1,"a":"\xf0\x9f\x98\x80"}'),
            Part.of(b'["' + b"x" * 10_000 + b'"]'),
        ]
        run = await RunDriver.start(store, clock, "r")
        await run.commit({str(number): part for number, part in enumerate(parts)})
        await run.commit({"again": parts[-2]})
        assert await _contents(store, "r@0") == {str(number): part.data for number, part in enumerate(parts)}

    @_in_a_loop
    async def test_a_checkpoint_keeps_its_parts_when_others_go(self, store: Store, clock: ManualClock) -> None:
        first, second = text_part("A"), text_part("B")
        run = await RunDriver.start(store, clock, "r")
        for part in (first, second, first):
            await run.commit({"a": part})
        await store.delete("r@0")
        await store.collect()
        assert await _contents(store, "r@2") == {"a": first.data}
        assert await _contents(store, "r@1") == {"a": second.data}

    @_in_a_loop
    async def test_what_the_head_has_needs_not_be_written_again(self, store: Store, clock: ManualClock) -> None:
        leaf = text_part("leaf")
        kept = {f"small {number}": text_part(f"{number}" * 100, leaf) for number in range(40)}
        kept |= {f"large {number}": raw_part(bytes([number]) * 9000, leaf) for number in range(3)}
        run = await RunDriver.start(store, clock, "r")
        await run.commit(kept, leaf)
        for step in range(3):
            changed = text_part(f"step {step}")
            await run.write(replace(run.next_commit({**kept, "changed": changed}), parts=(changed,)))
        for position in range(3):
            await store.delete(f"r@{position}")
        await store.collect()
        assert await _contents(store, "r@3") == {
            **{path: part.data for path, part in kept.items()},
            "changed": text_part("step 2").data,
        }
        closure = await store.parts(part.hash for part in kept.values())
        assert leaf.hash in closure

    @_in_a_loop
    async def test_what_is_handed_out_is_the_callers_own(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        part = text_part("v")
        toc = {"a": part.hash}
        commit = run.next_commit({"a": part})
        await run.write(replace(commit, manifest=replace(commit.manifest, toc=toc)))
        toc["a"] = "changed"
        manifest = await store.manifest("r@0")
        if isinstance(manifest.toc, dict):
            manifest.toc["b"] = "added"
        parts = await store.parts([part.hash])
        if isinstance(parts, dict):
            parts.clear()
        assert dict((await store.manifest("r@0")).toc) == {"a": part.hash}
        assert await store.parts([part.hash]) == {part.hash: part.data}

    # Forgetting

    @_in_a_loop
    async def test_a_deleted_checkpoint_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(3):
            await run.commit()
        assert await store.delete("r@1") is True
        assert await store.delete("r@1") is False
        with pytest.raises(CheckpointNotFoundError):
            await store.manifest("r@1")
        assert list(await store.ids()) == ["r@0", "r@2"]
        assert (await run.record()).head == "r@2"

    @_in_a_loop
    async def test_when_the_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for step in range(3):
            await run.commit(settled=step == 1)
        await store.delete("r@2")
        record = await run.record()
        assert (record.head, record.position, record.settled) == ("r@1", 2, True)
        assert await _latest(store, "flow") == "r@1"
        run.head = "r@1"
        await run.commit()
        assert (await run.record()).head == "r@3"

    @_in_a_loop
    async def test_when_a_rewound_head_is_deleted_the_newest_remaining_takes_over(
        self, store: Store, clock: ManualClock
    ) -> None:
        run = await RunDriver.start(store, clock, "r")
        for _ in range(4):
            await run.commit()
        await run.rewind("r@1")
        await store.delete("r@1")
        assert (await run.record()).head == "r@3"

    @_in_a_loop
    async def test_a_run_whose_checkpoints_are_all_deleted_is_gone(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await run.commit()
        await run.release()
        for checkpoint_id in ("r@1", "r@0"):
            await store.delete(checkpoint_id)
        assert await store.run("r") is None
        assert await store.latest(workflow_name="flow") is None
        again = await RunDriver.start(store, clock, "r")
        await again.commit()
        assert (await again.record()).position == 0

    @_in_a_loop
    async def test_the_latest_survives_deletions_of_newer_ones(self, store: Store, clock: ManualClock) -> None:
        runs = {name: await RunDriver.start(store, clock, name) for name in "qrs"}
        written = [await runs[name].commit() for name in "qrsrqqsr"]
        while written:
            assert await _latest(store, "flow") == written[-1]
            await store.delete(written.pop())
        assert await store.latest(workflow_name="flow") is None

    @_in_a_loop
    async def test_a_deleted_id_can_be_used_again(self, store: Store, clock: ManualClock) -> None:
        first = await RunDriver.start(store, clock, "r")
        await first.commit()
        await first.commit(checkpoint_id="mine")
        await store.delete("mine")
        second = await RunDriver.start(store, clock, "s")
        await second.commit({"a": text_part("again")}, checkpoint_id="mine")
        assert (await store.manifest("mine")).run_id == "s"
        assert (await first.record()).head == "r@0"
        assert [manifest.checkpoint_id for manifest in await store.manifests(run_id="r")] == ["r@0"]

    @_in_a_loop
    async def test_collecting_removes_what_nobody_needs_and_nothing_else(
        self, store: Store, clock: ManualClock
    ) -> None:
        leaf, shared = raw_part(b"leaf" * 3000), raw_part(b"shared" * 3000)
        gone = raw_part(b"gone" * 3000)
        tree = text_part("tree", leaf)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": gone, "b": shared})
        await run.commit({"b": shared, "c": tree}, leaf)
        assert await store.collect() == 0
        await store.delete("r@0")
        assert await store.collect() == 1
        assert await store.collect() == 0
        assert await store.parts([gone.hash]) == {}
        assert (await store.parts([tree.hash, shared.hash])).keys() == {leaf.hash, shared.hash, tree.hash}

    @_in_a_loop
    async def test_a_collected_part_can_be_written_again(self, store: Store, clock: ManualClock) -> None:
        part = raw_part(b"again" * 3000)
        run = await RunDriver.start(store, clock, "r")
        await run.commit({"a": part})
        await run.commit()
        await store.delete("r@0")
        await store.collect()
        await run.commit({"a": part})
        assert await _contents(store, "r@2") == {"a": part.data}

    # Retention

    async def _history(
        self, directory: Path, retention: Retention, steps: int, *, every: timedelta = timedelta(0)
    ) -> tuple[RunDriver, Sequence[str]]:
        clock = ManualClock()
        run = await RunDriver.start(self.open_store(directory, retention=retention, clock=clock), clock, "r")
        for step in range(steps):
            await run.commit({"a": text_part(f"v{step}")})
            clock.advance(every)
        return run, list(await run.store.ids())

    @_in_a_loop
    async def test_latest_only_keeps_the_newest(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 5)
        assert ids == ["r@4"]
        assert await _contents(run.store, "r@4") == {"a": b'"v4"'}
        assert await _latest(run.store, "flow") == "r@4"
        await run.store.close()

    @_in_a_loop
    async def test_keep_last_keeps_so_many(self, tmp_path: Path) -> None:
        run, ids = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 7)
        assert ids == ["r@4", "r@5", "r@6"]
        await run.store.close()

    @_in_a_loop
    async def test_keep_last_counts_what_there_is(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(3)), 3)
        await run.store.delete("r@1")
        await run.commit()
        assert list(await run.store.ids()) == ["r@0", "r@2", "r@3"]
        await run.store.close()

    @_in_a_loop
    async def test_keep_for_keeps_what_is_young(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(hours=2)))
        run, ids = await self._history(tmp_path, retention, 6, every=timedelta(hours=1))
        assert ids == ["r@3", "r@4", "r@5"]
        await run.store.close()

    @_in_a_loop
    async def test_the_head_is_kept_however_old_it_is(self, tmp_path: Path) -> None:
        retention = Retention(checkpoints=KeepFor(timedelta(0)), finished_runs=KeepFor(timedelta(days=30)))
        run, ids = await self._history(tmp_path, retention, 4, every=timedelta(days=1))
        assert ids == ["r@3"]
        assert isinstance(run.clock, ManualClock)
        run.clock.advance(timedelta(days=365))
        other = await RunDriver.start(run.store, run.clock, "s")
        await other.commit()
        await other.commit()
        assert (await run.record()).head == "r@3"
        assert "r@3" in await run.store.ids()
        await run.store.close()

    @_in_a_loop
    async def test_what_a_fork_rests_on_is_kept_until_it_has_its_own(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=LatestOnly()), 2)
        fork = await RunDriver.start(run.store, run.clock, "f", parent="r@1")
        await fork.release()
        await run.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@3"]
        await run.store.collect()
        assert await _contents(run.store, "r@1") == {"a": b'"v1"'}
        fork.claim = await run.store.claim("f")
        await fork.commit()
        await run.commit()
        assert list(await run.store.ids()) == ["f@0", "r@4"]
        await run.store.close()

    @_in_a_loop
    async def test_after_rewinding_only_the_new_line_is_kept(self, tmp_path: Path) -> None:
        run, _ = await self._history(tmp_path, Retention(checkpoints=KeepLast(4)), 4)
        await run.rewind("r@1")
        assert list(await run.store.ids()) == ["r@0", "r@1", "r@2", "r@3"]
        await run.commit()
        assert list(await run.store.ids()) == ["r@1", "r@2", "r@3", "r@4"]
        await run.store.close()

    @_in_a_loop
    async def test_finished_runs_go_when_they_are_old(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        unfinished = await RunDriver.start(store, clock, "unfinished")
        await unfinished.commit()
        await unfinished.release()
        held = await RunDriver.start(store, clock, "held")
        await held.commit(settled=True)
        clock.advance(timedelta(days=8))
        young = await RunDriver.start(store, clock, "young")
        await young.commit(settled=True)
        await young.release()
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert await store.run("finished") is None
        assert list(await store.ids()) == ["unfinished@0", "held@0", "young@0", "busy@0"]
        again = await RunDriver.start(store, clock, "finished")
        await again.commit()
        assert (await again.record()).position == 0
        await store.close()

    @_in_a_loop
    async def test_a_finished_run_that_a_fork_rests_on_is_kept(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished = await RunDriver.start(store, clock, "finished")
        await finished.commit()
        await finished.commit(settled=True)
        await finished.release()
        fork = await RunDriver.start(store, clock, "fork", parent="finished@0")
        clock.advance(timedelta(days=8))
        busy = await RunDriver.start(store, clock, "busy")
        await busy.commit()
        assert list(await store.ids()) == ["finished@0", "finished@1", "busy@0"]
        await fork.commit()
        await busy.commit()
        assert list(await store.ids()) == ["busy@0", "fork@0", "busy@1"]
        await store.close()

    @_in_a_loop
    async def test_parts_of_what_was_forgotten_go_by_themselves(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(checkpoints=LatestOnly()), clock=clock)
        run = await RunDriver.start(store, clock, "r")
        parts = [raw_part(f"{step} ".encode() * 2000) for step in range(450)]
        for part in parts:
            await run.commit({"a": part})
        left = await store.parts(part.hash for part in parts)
        assert parts[-1].hash in left
        assert len(left) < 300
        await store.close()

    @_in_a_loop
    async def test_the_journal_of_a_finished_run_goes_with_it(self, tmp_path: Path) -> None:
        clock = ManualClock()
        store = self.open_store(tmp_path, retention=Retention(finished_runs=KeepFor(timedelta(days=7))), clock=clock)
        finished_run = await RunDriver.start(store, clock, "r")
        await finished_run.commit(settled=True)
        await finished_run.note(finished("a", "", raw_part(b"next turn" * 3000)))
        await finished_run.release()
        clock.advance(timedelta(days=8))
        await (await RunDriver.start(store, clock, "s")).commit()
        assert await store.run("r") is None
        assert await finished_run.noted() == []
        assert await store.collect() == 1
        await store.close()

    @_in_a_loop
    async def test_parts_of_journals_go_by_themselves(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        parts = [raw_part(f"{step} ".encode() * 2000) for step in range(450)]
        for number, part in enumerate(parts):
            await run.note(finished("a", "", part), durable=False)
            if number % 5 == 4:
                await run.commit()
        left = await store.parts(part.hash for part in parts)
        assert len(left) < 300

    # Lives

    def test_a_store_outlives_the_event_loops_that_use_it(self, store: Store, clock: ManualClock) -> None:
        run = asyncio.run(RunDriver.start(store, clock, "r"))
        for position in range(3):
            assert asyncio.run(run.commit()) == f"r@{position}"
        asyncio.run(store.close())

    @_in_a_loop
    async def test_a_closed_store_opens_again_when_it_is_used(self, store: Store, clock: ManualClock) -> None:
        run = await RunDriver.start(store, clock, "r")
        await run.commit()
        await store.close()
        assert list(await store.ids()) == ["r@0"]
        await run.commit()
        await store.close()
        await store.close()
        assert (await run.record()).head == "r@1"
        await store.close()

    @_in_a_loop
    async def test_two_stores_are_two_places(self, tmp_path: Path, clock: ManualClock) -> None:
        stores = [self.open_store(tmp_path / name, retention=Retention(), clock=clock) for name in ("one", "two")]
        assert stores[0].place != stores[1].place
        await (await RunDriver.start(stores[0], clock, "r")).commit()
        assert list(await stores[1].ids()) == []
        for store in stores:
            await store.close()


async def _latest(store: Store, workflow_name: str) -> str:
    manifest = await store.latest(workflow_name=workflow_name)
    assert manifest is not None
    return manifest.checkpoint_id


async def _contents(store: Store, checkpoint_id: str) -> Mapping[str, bytes]:
    manifest = await store.manifest(checkpoint_id)
    parts = await store.parts(manifest.toc.values())
    return {path: parts[part] for path, part in manifest.toc.items()}
