"""What lock files tell of their owners: a lease, and when it was renewed by the clock of the file system."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from subprocess import PIPE
from typing import TYPE_CHECKING

import pytest

from perdure.records import Owner
from perdure.storage import this_process
from perdure.storage.owners import Heartbeat, LockFile, Owners

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

FAR = Owner(id="far", host="elsewhere", boot="another", pid=1)
LONG_AGO = 0.0
SHORT = 0.3
UNTOUCHABLE = 1_000_000
"""No file is open under this number."""


EARLIER_RELEASE = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(descriptor, getattr(fcntl, sys.argv[2]) | fcntl.LOCK_NB)
except BlockingIOError:
    print("held", flush=True)
else:
    print("free", flush=True)
sys.stdin.read()
"""
"""Takes a record lock, as the owners of earlier releases did."""


@contextlib.contextmanager
def earlier_release(path: Path, kind: str) -> Generator[str]:
    """Start a process that takes a record lock, and return whether the file was free."""
    command = [sys.executable, "-c", EARLIER_RELEASE, str(path), kind]
    with subprocess.Popen(command, stdin=PIPE, stdout=PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def near(name: str) -> Owner:
    me = this_process()
    return Owner(id=name, host=me.host, boot=me.boot, pid=1)


def lock_file(directory: Path, owner: Owner, content: object, *, age_seconds: float = 0.0) -> Path:
    path = directory / f"{owner.id}.lock"
    path.write_text("" if content is None else json.dumps(content))
    touched = path.stat().st_mtime - age_seconds
    os.utime(path, (touched, touched))
    return path


def test_owner_on_another_machine_is_replaceable_when_its_lease_has_expired(tmp_path: Path) -> None:
    lock_file(tmp_path, FAR, {"lease_seconds": 600.0}, age_seconds=500)
    assert not Owners(tmp_path).is_replaceable(FAR)
    lock_file(tmp_path, FAR, {"lease_seconds": 600.0}, age_seconds=700)
    assert Owners(tmp_path).is_replaceable(FAR)
    assert not Owners(tmp_path).is_dead(FAR)


def test_the_lease_that_counts_is_that_of_the_owner(tmp_path: Path) -> None:
    lock_file(tmp_path, FAR, {"lease_seconds": 600.0}, age_seconds=500)
    assert not Owners(tmp_path, lease_seconds=1.0).is_replaceable(FAR)


def test_an_owner_whose_file_is_gone_has_ended_wherever_it_was(tmp_path: Path) -> None:
    assert Owners(tmp_path).is_dead(FAR)
    assert Owners(tmp_path).living(FAR) is None


@pytest.mark.parametrize("content", [None, {}, [], {"lease_seconds": None}, {"lease_seconds": "30"}])
def test_an_owner_without_a_lease_is_judged_by_its_lock_alone(tmp_path: Path, content: object) -> None:
    lock_file(tmp_path, FAR, content, age_seconds=10_000)
    assert not Owners(tmp_path).is_replaceable(FAR)
    lock_file(tmp_path, near("near"), content)
    assert Owners(tmp_path).is_replaceable(near("near"))


def test_looking_at_owners_leaves_no_files(tmp_path: Path) -> None:
    lock = lock_file(tmp_path, FAR, {"lease_seconds": 600.0})
    Owners(tmp_path).is_replaceable(FAR)
    assert list(tmp_path.iterdir()) == [lock]


def test_entering_removes_lock_files_of_dead_processes_of_this_machine(tmp_path: Path) -> None:
    me = this_process()
    content = {"lease_seconds": 600.0, "host": me.host, "boot": "earlier"}
    far = lock_file(tmp_path, FAR, {**content, "host": FAR.host, "boot": FAR.boot}, age_seconds=10_000)
    lock_file(tmp_path, Owner(id="near", host=me.host, boot="earlier", pid=1), content)
    lock_file(tmp_path, Owner(id="early", host="", boot="", pid=1), None)
    (tmp_path / "killed.now").touch()
    Owners(tmp_path).enter()
    assert set(tmp_path.iterdir()) == {far, tmp_path / f"{me.id}.lock"}


def test_entering_removes_a_new_lock_file_whose_process_died_before_it_named_it(tmp_path: Path) -> None:
    me = this_process()
    dead, empty, far = (tmp_path / f"{name}.new" for name in ("dead", "empty", "far"))
    dead.write_text(json.dumps({"host": me.host, "boot": me.boot}))
    empty.touch()
    far.write_text(json.dumps({"host": FAR.host, "boot": FAR.boot}))
    owners = Owners(tmp_path)
    owners.enter()
    assert not dead.exists()
    assert empty.exists(), "its owner may be about to lock it"
    assert far.exists(), "a lock of another machine proves nothing here"
    owners.close()


def test_shortest_of_several_leases_in_one_place_counts(tmp_path: Path) -> None:
    (tmp_path / "name").symlink_to(tmp_path)
    for lease_seconds, path in ((60.0, tmp_path), (20.0, tmp_path / "name"), (40.0, tmp_path)):
        Owners(path, lease_seconds=lease_seconds).enter()
    (lock,) = tmp_path.glob("*.lock")
    assert json.loads(lock.read_text())["lease_seconds"] == 20.0


@pytest.mark.parametrize("lease_seconds", [0.0, -1.0, float("inf"), float("nan")])
def test_lease_must_be_a_positive_number_of_seconds(tmp_path: Path, lease_seconds: float) -> None:
    with pytest.raises(ValueError, match="larger than zero"):
        Owners(tmp_path, lease_seconds=lease_seconds)


def test_a_shorter_lease_is_kept_although_a_longer_one_was_there_first(tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    descriptors = [os.open(tmp_path / name, os.O_RDWR | os.O_CREAT) for name in ("long", "short")]
    for descriptor, lease_seconds in zip(descriptors, (3600.0, SHORT), strict=True):
        os.utime(descriptor, (LONG_AGO, LONG_AGO))
        heartbeat.keep(LockFile(descriptor, this_process(), lease_seconds=lease_seconds))
    for _ in range(3):
        os.utime(descriptors[1], (LONG_AGO, LONG_AGO))
        while os.fstat(descriptors[1]).st_mtime == LONG_AGO:
            """The heartbeat will come."""


def test_untouchable_lock_file_does_not_stop_other_heartbeats(tmp_path: Path) -> None:
    heartbeat = Heartbeat()
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.utime(descriptor, (LONG_AGO, LONG_AGO))
    for each in (UNTOUCHABLE, descriptor):
        heartbeat.keep(LockFile(each, this_process(), lease_seconds=SHORT))
    while os.fstat(descriptor).st_mtime == LONG_AGO:
        """The heartbeat will come."""


def test_an_owner_of_an_earlier_release_is_alive_while_it_holds_its_record_lock(tmp_path: Path) -> None:
    owner = near("earlier")
    path = lock_file(tmp_path, owner, None)
    with earlier_release(path, "LOCK_EX") as found:
        assert found == "free"
        assert not Owners(tmp_path).is_dead(owner)
    assert Owners(tmp_path).is_dead(owner)


def test_an_earlier_release_sees_that_an_owner_is_alive_even_after_it_has_copied_its_directory(tmp_path: Path) -> None:
    me = Owners(tmp_path / "owners").enter()
    shutil.copytree(tmp_path / "owners", tmp_path / "backup")
    with earlier_release(tmp_path / "owners" / f"{me.id}.lock", "LOCK_SH") as found:
        assert found == "held"


def test_a_clock_that_jumps_does_not_outweigh_a_held_lock(tmp_path: Path) -> None:
    owner = near("living")
    lease = {"lease_seconds": 600.0, "host": owner.host, "boot": owner.boot}
    path = lock_file(tmp_path, owner, {**lease, "beat": time.monotonic()}, age_seconds=10_000)
    with earlier_release(path, "LOCK_EX") as found:
        assert found == "free"
        assert not Owners(tmp_path).is_replaceable(owner)
        path.write_text(json.dumps({**lease, "beat": time.monotonic() - 700}))
        assert not Owners(tmp_path).is_replaceable(owner)
        os.utime(path, (LONG_AGO, LONG_AGO))
        assert Owners(tmp_path).is_replaceable(owner)


def test_closing_releases_the_lock_file_only_when_the_last_lease_has_ended(tmp_path: Path) -> None:
    owners, others = Owners(tmp_path), Owners(tmp_path)
    me = owners.enter("first")
    others.enter("second")
    lock = tmp_path / f"{me.id}.lock"
    others.leave("second")
    others.close()
    assert lock.exists()
    owners.leave("first")
    owners.close()
    assert not lock.exists()
    owners.enter("third")
    assert lock.exists()
