"""The pieces that stores are made of, each by itself."""

from __future__ import annotations

import asyncio
import gc
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, strategies as st

from perdure.errors import CheckpointDamagedError, WorkflowCheckpointException
from perdure.records import Blob, Manifest, Owner
from perdure.storage import Disk, this_process
from perdure.storage.file import lines
from perdure.storage.file.checkpoints import CheckpointFile, choose_inline, decode, encode, fits_inline
from perdure.storage.file.directory import Counter
from perdure.storage.owners import Owners
from perdure.storage.rules import file_name
from perdure.storage.worker import Worker
from perdure.testing.disk import EVERYTHING_SURVIVES, NOTHING_SURVIVES, SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

DISK = Disk()


class Resource:
    """Knows where it is used, and whether it is closed."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.is_closed = False

    def close(self) -> None:
        assert threading.current_thread() is self.thread
        self.is_closed = True


# The worker


async def test_a_job_has_its_result_and_its_error() -> None:
    worker = Worker("test", Resource)
    assert await asyncio.wrap_future(worker.submit(lambda resource: resource.is_closed)) is False
    with pytest.raises(ZeroDivisionError):
        await asyncio.wrap_future(worker.submit(lambda _: 1 // 0))
    assert worker.submit(lambda _: 7).result() == 7
    await worker.close()


async def test_a_closed_worker_opens_its_resource_again() -> None:
    worker = Worker("test", Resource)
    first = await asyncio.wrap_future(worker.submit(lambda resource: resource))
    await worker.close()
    assert first.is_closed
    second = await asyncio.wrap_future(worker.submit(lambda resource: resource))
    assert second is not first
    await worker.close()
    await worker.close()


async def test_closing_waits_for_the_jobs_before_it() -> None:
    worker = Worker("test", Resource)
    gate, done = threading.Event(), list[int]()
    worker.submit(lambda _: gate.wait())
    worker.submit(lambda _: done.append(1))
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    gate.set()
    await closing
    assert done == [1]


async def test_a_job_that_is_cancelled_before_it_starts_is_not_done() -> None:
    worker = Worker("test", Resource)
    gate, done = threading.Event(), list[int]()
    worker.submit(lambda _: gate.wait())
    assert worker.submit(lambda _: done.append(1)).cancel()
    gate.set()
    await worker.close()
    assert done == []


async def test_a_worker_is_closed_although_nobody_waits_for_it() -> None:
    worker = Worker("test", Resource)
    resource = await asyncio.wrap_future(worker.submit(lambda resource: resource))
    gate = threading.Event()
    worker.submit(lambda _: gate.wait())
    closing = asyncio.create_task(worker.close())
    await asyncio.sleep(0)
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    gate.set()
    resource.thread.join(timeout=30)
    assert resource.is_closed


async def test_unreferenced_worker_ends_its_thread() -> None:
    worker = Worker("test", Resource)
    resource = await asyncio.wrap_future(worker.submit(lambda resource: resource))
    del worker
    gc.collect()
    resource.thread.join(timeout=30)
    assert resource.is_closed


# Ids


@given(st.text(min_size=1, max_size=220), st.text(min_size=1, max_size=220))
def test_different_ids_have_different_file_names(first: str, second: str) -> None:
    assert (file_name(first) == file_name(second)) == (first == second)


@given(st.text(min_size=1, max_size=220))
def test_file_name_is_one_path_component(value: str) -> None:
    name = file_name(value)
    assert "/" not in name
    assert not name.startswith(".")
    assert name.isascii()
    assert 0 < len(name) <= 200


# Owners


def test_an_owner_on_another_machine_may_live(tmp_path: Path) -> None:
    stranger = Owner(id="abc", host="elsewhere", boot="another", pid=1)
    (tmp_path / "abc.lock").touch()
    assert not Owners(tmp_path).is_replaceable(stranger)


def test_an_owner_from_before_the_last_boot_is_dead(tmp_path: Path) -> None:
    me = this_process()
    assert Owners(tmp_path).is_dead(Owner(id="abc", host=me.host, boot="earlier", pid=me.pid))


def test_a_process_replaces_itself_but_is_not_dead(tmp_path: Path) -> None:
    owners = Owners(tmp_path)
    me = owners.enter()
    assert owners.is_replaceable(me)
    assert not owners.is_dead(me)


def test_id_from_a_file_can_not_escape_the_directory(tmp_path: Path) -> None:
    me = this_process()
    (tmp_path / "victim.lock").touch()
    Owners(tmp_path / "owners").is_replaceable(Owner(id="../victim", host=me.host, boot=me.boot, pid=1))
    assert (tmp_path / "victim.lock").exists()


# Lines


@given(values=st.lists(st.text(max_size=3000), max_size=12), torn=st.binary(max_size=50))
def test_lines_are_read_backward_as_forward(
    tmp_path_factory: pytest.TempPathFactory, values: list[str], torn: bytes
) -> None:
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(map(lines.encode, values)) + torn.replace(b"\n", b""))
    assert lines.read(DISK, path) == values
    assert list(lines.read_backward(DISK, path)) == values[::-1]
    lines.append(DISK, path, ["next"])
    assert lines.read(DISK, path) == [*values, "next"]


def test_a_whole_line_that_changed_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "file"
    lines.append(DISK, path, ["one", "two", "three"])
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        with pytest.raises(WorkflowCheckpointException, match="damaged"):
            list(lines.read_backward(DISK, path))
        with pytest.raises(WorkflowCheckpointException, match="damaged"):
            lines.read(DISK, path)


def test_numbers_go_on_from_what_was_reserved_when_the_machine_went_down(tmp_path: Path) -> None:
    path = tmp_path / "counter"
    disk = SimulatedDisk()
    disk.make_directory(tmp_path)

    def counter(disk: SimulatedDisk) -> Counter:
        return Counter(disk, path, lambda: 41)

    taken = [counter(disk).take() for _ in range(3)]
    assert taken == [42, 43, 44]
    disk.sync_directory(tmp_path)
    # As far as is known, any number up to the reserved ones was in use.
    for left in (disk.crash(NOTHING_SURVIVES), disk.crash(EVERYTHING_SURVIVES)):
        after = counter(left).take()
        assert after >= 42 + 1000
        assert counter(left).take() == after + 1


# Documents


def document(header: bytes, *blobs: Blob) -> CheckpointFile:
    manifest = Manifest("r@1", "r", "flow", 1, "r@0", "2024-01-01T00:00:00+00:00", 3, header, {"a": "b", "ä": "c"})
    return CheckpointFile(manifest, settled=True, sequence=7, blobs={blob.hash: blob for blob in blobs})


JSON: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@given(header=st.dictionaries(st.text(), JSON, max_size=4), values=st.lists(JSON, max_size=4))
def test_a_document_comes_back_as_it_was(header: dict[str, Any], values: list[Any]) -> None:
    blobs = [Blob.of(lines.encode(value)[17:-1], refs=("ab", "cd")) for value in values]
    written = document(lines.encode(header)[17:-1], *filter(fits_inline, blobs))
    assert decode(encode(written), "r@1") == written


def test_any_changed_byte_of_a_document_is_noticed() -> None:
    data = encode(document(b'{"note":"text"}', Blob.of(b'{"k":[1,2]}'), Blob.of(b"null")))
    for place in range(len(data)):
        for changed in (data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :], data[:place], data[:place] + b" "):
            with pytest.raises(CheckpointDamagedError, match="'r@1'"):
                decode(changed, "r@1")
    with pytest.raises(CheckpointDamagedError):
        decode(data + b"\n", "r@1")


def test_blobs_beside_have_all_that_they_refer_to_beside() -> None:
    leaf = Blob.of(b'"leaf"')
    twig = Blob.of(b'"twig"', (leaf.hash,))
    large = Blob.of(b'"' + b"x" * 5000 + b'"', (twig.hash,))
    alone = Blob.of(b'"alone"')
    toc = {"large": large.hash, "twig": twig.hash, "alone": alone.hash, "elsewhere": "0" * 40}
    known = {blob.hash: blob for blob in (leaf, twig, large, alone)}
    inline, beside = choose_inline(toc.values(), carried={}, new=known)
    assert inline == {alone.hash: alone}
    assert beside.keys() == {large.hash, twig.hash, leaf.hash}
