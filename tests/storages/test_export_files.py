"""The files of exports: whatever has become of one, it is taken in as it was written or not at all."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.storages.errands import wait_and_ask

from perdure import InMemoryCheckpointStorage, WorkflowBuilder, WorkflowCheckpointException, WorkflowContext, executor
from perdure.checkpoint import lines_of, read_archive
from perdure.records import Archive, ArchivedCheckpoint, Blob, Command, Halt, Manifest, RunRecord

if TYPE_CHECKING:
    from pathlib import Path


@executor(id="echo")
async def echo(message: str, ctx: WorkflowContext[None, str]) -> None:
    await ctx.yield_output(message)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The export of a run that waits for a time and for a person, with commands in its inbox."""
    path = tmp_path_factory.mktemp("written") / "run.jsonl"

    async def write() -> None:
        storage = InMemoryCheckpointStorage()
        await wait_and_ask(storage)
        await storage.export_run("run", path)

    asyncio.run(write())
    return path


def require_refused(path: Path, match: str) -> None:
    storage = InMemoryCheckpointStorage()
    with pytest.raises(WorkflowCheckpointException, match=match) as refused:
        asyncio.run(storage.import_run(path))
    assert str(path) in str(refused.value)
    assert asyncio.run(storage.store.runs()) == []
    assert asyncio.run(storage.list_checkpoint_ids()) == []


def test_a_file_with_any_line_missing_repeated_or_swapped_is_refused(written: Path, tmp_path: Path) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    damaged = tmp_path / "damaged.jsonl"
    for number in range(1, len(lines)):
        for other in (
            lines[:number] + lines[number + 1 :],
            lines[: number + 1] + lines[number:],
            [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]],
        ):
            damaged.write_bytes(b"".join(other))
            require_refused(damaged, "is damaged|is not the export")


def test_a_file_that_was_cut_anywhere_is_refused(written: Path, tmp_path: Path) -> None:
    data, cut = written.read_bytes(), tmp_path / "cut.jsonl"
    for size in range(0, len(data), 1 + len(data) // 200):
        cut.write_bytes(data[:size])
        require_refused(cut, "is damaged|is not the export")
    cut.write_bytes(data[:-1])
    require_refused(cut, "cut off")


def test_a_file_with_any_character_changed_is_refused(written: Path, tmp_path: Path) -> None:
    data, changed = written.read_bytes(), tmp_path / "changed.jsonl"
    for place in range(0, len(data), 1 + len(data) // 400):
        changed.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        require_refused(changed, "is damaged|is not the export|has export format")


def test_a_foreign_file_is_refused(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    for content in (b"", b"\n", b"hello\n", b"[]\n", b"{}\n", b'{"type":"export"}\n', b"\xff\x00" * 100_000):
        foreign.write_bytes(content)
        require_refused(foreign, "is not the export of a run; give a file that export_run has written")


def test_a_file_of_a_later_format_is_refused_with_advice(written: Path, tmp_path: Path) -> None:
    later = tmp_path / "later.jsonl"
    header, _, rest = written.read_bytes().partition(b"\n")
    later.write_bytes(json.dumps({**json.loads(header), "format": 3}).encode() + b"\n" + rest)
    require_refused(later, "has export format 3, this perdure reads up to 2; upgrade perdure")


def test_a_path_that_can_not_be_read_is_named_with_the_cause(tmp_path: Path) -> None:
    for name, cause in (("nowhere", FileNotFoundError), ("", IsADirectoryError), ("x" * 300, OSError)):
        path = tmp_path / name
        with pytest.raises(WorkflowCheckpointException, match=r"could not be read: .*; give a file") as refused:
            asyncio.run(InMemoryCheckpointStorage().import_run(path))
        assert repr(str(path)) in str(refused.value)
        assert isinstance(refused.value.__cause__, cause)
    with pytest.raises(WorkflowCheckpointException, match="could not be read"):
        asyncio.run(InMemoryCheckpointStorage().import_run("null\0byte"))


def test_the_name_of_a_workflow_may_be_long(tmp_path: Path) -> None:
    async def moved() -> str | None:
        source, target, name = InMemoryCheckpointStorage(), InMemoryCheckpointStorage(), "long" * 50_000
        workflow = WorkflowBuilder(name=name, start_executor=echo, checkpoint_storage=source).build()
        await workflow.run("hello", run_id="run")
        await source.export_run("run", tmp_path / "run")
        await target.import_run(tmp_path / "run")
        record = await target.store.run("run")
        return record.workflow_name if record else None

    assert asyncio.run(moved()) == "long" * 50_000


def forged(lines: list[bytes], place: int, change: dict[str, Any]) -> list[bytes]:
    """The lines with one of them changed, and everything that vouches for them made anew."""
    archive_lines = list(lines)
    archive_lines[place] = json.dumps({**json.loads(lines[place]), **change}).encode() + b"\n"
    whole = hashlib.blake2b(b"".join(archive_lines[:-1]), digest_size=20)
    end = {**json.loads(lines[-1]), "digest": whole.hexdigest()}
    return [*archive_lines[:-1], json.dumps(end).encode() + b"\n"]


HALT = {"kind": "failed", "at": "2024", "reason": "a reason", "data": {"text": "data"}}


@pytest.mark.parametrize(
    ("kind", "change", "reason"),
    [
        ("run", {"nonce": "another"}, "checksum"),
        ("run", {"position": -1}, "'position'"),
        ("run", {"settled": 1}, "'settled'"),
        ("run", {"position": 2**53 + 1}, "'position'"),
        ("run", {"halt": "failed"}, "'halt'"),
        ("run", {"halt": {**HALT, "kind": "exported"}}, "'kind'"),
        ("run", {"halt": {**HALT, "reason": None}}, "'reason'"),
        ("run", {"halt": {**HALT, "data": "text"}}, "'data'"),
        ("run", {"halt": HALT}, "checksum"),
        ("checkpoint", {"timestamp": "2024"}, "checksum"),
        ("checkpoint", {"toc": {"graph": "../../etc/passwd"}}, "'toc'"),
        ("checkpoint", {"status": "lost"}, "'status'"),
        ("checkpoint", {"header": {"base64": "???"}}, "'header'"),
        ("part", {"data": {"text": "other"}}, "hash"),
        ("part", {"data": {"neither": ""}}, "'data' is missing or invalid"),
        ("part", {"refs": ["../../etc/passwd"]}, "'refs'"),
        ("command", {"number": True}, "'number'"),
        ("command", {"number": 2**63 - 1}, "'number'"),
        ("command", {"id": "another"}, "checksum"),
        ("events", {"first": 7}, "checksum"),
        ("events", {"type": "surprise"}, "'surprise' is unknown"),
    ],
)
def test_impossible_line_is_refused_although_its_digest_matches(
    written: Path, tmp_path: Path, kind: str, change: dict[str, Any], reason: str
) -> None:
    lines = written.read_bytes().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if json.loads(line)["type"] == kind)
    path = tmp_path / "forged.jsonl"
    path.write_bytes(b"".join(forged(lines, place, change)))
    require_refused(path, rf"is damaged: line {place + 1}: .*{reason}")


def test_an_export_is_text_of_one_json_object_in_each_line(written: Path) -> None:
    text = written.read_text("utf-8")
    kinds = [json.loads(line)["type"] for line in text.splitlines()]
    assert kinds[:2] == ["export", "run"]
    assert kinds[-1] == "end"
    assert set(kinds) == {"export", "run", "checkpoint", "part", "command", "events", "end"}


def test_texts_and_bytes_of_every_sort_come_back() -> None:
    raw = Blob.of(b"\x00\xff\n", kind="raw")
    lone = Blob.of('"\ud800"'.encode("utf-8", "surrogatepass"))
    text = Blob.of('"schön\u2028\\u0000"'.encode(), (raw.hash, lone.hash))
    manifest = Manifest(
        checkpoint_id="run@0",
        run_id="run",
        workflow_name="wörk\ud800flow",
        position=0,
        previous_id=None,
        timestamp="2024-01-01T00:00:00+00:00",
        iteration_count=0,
        header=b'{"format":1}',
        toc={"state//\ud800": text.hash},
    )
    record = RunRecord(
        run_id="run",
        workflow_name="wörk\ud800flow",
        created_at="2024-01-01T00:00:00+00:00",
        nonce="nonce",
        input_digest=None,
        parent_checkpoint_id=None,
        head="run@0",
        position=0,
        settled=False,
        owner=None,
        halt=Halt("parked", "2024-01-01T00:00:00+00:00", "schön\ud800", b"\xff"),
    )
    command = Command("id", "message", b"\xff", expects=("request/x", text.hash), number=3)
    archive = Archive(
        record, (ArchivedCheckpoint(manifest, settled=False),), tuple(sorted((raw, lone, text), key=lambda p: p.hash)),
        inbox=(command,),
    )  # fmt: skip
    lines = list(lines_of(archive))
    assert read_archive(lines) == archive
    assert all(line.decode("utf-8").count("\n") == 1 for line in lines)
