"""Forged exports with malformed records: each is refused, or harms nothing but its own run.

A file is changed anywhere and all its checksums are made to match. If the import takes it in, everything that lists
and reads must work, or raise an error of ours.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, example, given, settings, strategies as st

from perdure import (
    Host,
    InMemoryCheckpointStorage,
    RunFailedError,
    WorkflowBuilder,
    WorkflowCheckpointException,
    WorkflowContext,
    WorkflowExecutor,
    executor,
)
from perdure.checkpoint import lines_of, read_archive
from perdure.errors import WorkflowException
from perdure.records import Blob
from perdure.storage import TenantStore
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from perdure import Workflow
    from perdure.records import Archive
    from perdure.storage import StoreStorage


@executor(id="inner")
async def inner(text: str, ctx: WorkflowContext[None, str]) -> None:
    ctx.set_state("inside", [text])
    await ctx.request_info({"inside": text}, str, request_id="inside")


@executor(id="asker")
async def asker(text: str, ctx: WorkflowContext[str, dict[str, str]]) -> None:
    ctx.set_state("numbers", [f"{number} {'x' * 600}" for number in range(40)])
    await ctx.yield_output({"text": text})
    await ctx.request_info({"question": text}, bool, request_id="may-i")
    await ctx.send_message(text)


@executor(id="sleeper")
async def sleeper(text: str, ctx: WorkflowContext[str]) -> None:
    await ctx.step("one", str, text)
    await ctx.sleep(3600)
    await ctx.send_message(text)


def build() -> Workflow:
    child = WorkflowExecutor(WorkflowBuilder(name="child", start_executor=inner).build(), id="child")
    return WorkflowBuilder(name="asking", start_executor=asker).add_edge(asker, sleeper).add_edge(asker, child).build()


async def exported(directory: Path) -> Path:
    """Export a run that waits, with a sub-workflow, an answer and a message in its inbox. Return the path."""
    clock = ManualClock()
    path = directory / "export"
    async with InMemoryCheckpointStorage(clock=clock) as storage:
        await build().run("text", run_id="evil", checkpoint_storage=storage, wait_for_timers=False)
        await storage.respond("evil", {"may-i": True})
        await storage.send("evil", "another", target="sleeper")
        await storage.cancel("evil", reason="enough")
        await storage.export_run("evil", path)
    return path


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return asyncio.run(exported(tmp_path_factory.mktemp("export")))


def archive_in(path: Path) -> Archive:
    return read_archive(path.read_bytes().splitlines(keepends=True))


def forge(export: Path, change: Callable[[Archive], Archive]) -> Path:
    """Write a changed copy of an export, with checksums that match. Return its path."""
    path = export.with_name("forged")
    path.write_bytes(b"".join(lines_of(change(archive_in(export)))))
    return path


async def require_harmless(path: Path, *, is_verified: bool) -> None:
    """Import a file, or put it into the store as it is. If it is taken in, use everything that lists and reads."""
    async with InMemoryCheckpointStorage(clock=ManualClock()) as storage:
        await build().run("text", run_id="good", checkpoint_storage=storage, wait_for_timers=False)
        await _require_harmless(storage, path, is_verified=is_verified)


async def _require_harmless(storage: StoreStorage, path: Path, *, is_verified: bool) -> None:
    try:
        if is_verified:
            await storage.import_run(path)
        else:
            assert isinstance(storage.store, TenantStore)
            await storage.store.restore(archive_in(path))
    except WorkflowCheckpointException:
        return
    host = Host(storage)
    host.register(build)
    assert "good" in [info.run_id for info in await host.runs()]
    assert "good" in {request.run_id for request in await storage.requests()}
    assert "good" in {checkpoint.run_id for checkpoint in await storage.list_checkpoints()}
    assert "evil" in [info.run_id for info in await host.runs()]
    run = await host.run("evil")
    await attempt(lambda: checkpoints_read(storage))
    await attempt(lambda: storage.requests("evil"))
    await attempt(lambda: storage.respond("evil", {"may-i": False}))
    await attempt(run.outputs)
    await attempt(lambda: storage.size_report("evil"))
    await attempt(lambda: build().run(run_id="evil", checkpoint_storage=storage, wait_for_timers=False))
    await attempt(lambda: events_read(storage))


async def checkpoints_read(storage: StoreStorage) -> None:
    for checkpoint in await storage.list_checkpoints(run_id="evil"):
        checkpoint.to_dict()


async def events_read(storage: StoreStorage) -> None:
    async for _ in storage.events("evil"):
        pass


async def attempt(read: Callable[[], Awaitable[object]]) -> None:
    """Read something of the hostile run. Only errors of ours are allowed."""
    with contextlib.suppress(WorkflowException):
        await read()


JUNK: list[Any] = [
    *(None, True, 0, -1, 2**60, 1.5, "", "x", "evil@0", [], {}, ["x"], {"x": 1}, [[[]]], "2024-01-01"),
    *({"~": "x"}, {"~": "part", "part": "0" * 40}, {"~": "set", "items": [[1]]}, {"~": "index", "chunks": []}),
    "2024-01-01T00:00:00+00:00",
]


def places(tree: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of everything in a JSON document."""
    found = [path] if path else []
    items: list[tuple[Any, Any]] = []
    if isinstance(tree, dict | list):
        items = [*tree.items()] if isinstance(tree, dict) else [*enumerate(tree)]  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
    for key, each in items:
        found += places(each, (*path, key))
    return found


def mutate(choice: random.Random, text: bytes) -> bytes:
    """Change one place of a JSON document: replace it, remove it, or rename it."""
    tree = json.loads(text)
    paths = places(tree)
    if not paths or choice.random() < 0.05:
        return json.dumps(choice.choice(JUNK)).encode()
    path = choice.choice(paths)
    holder = tree
    for key in path[:-1]:
        holder = holder[key]
    if choice.random() < 0.5:
        holder[path[-1]] = choice.choice(JUNK)
    elif isinstance(holder, list):
        del holder[path[-1]]
    else:
        removed = holder.pop(path[-1])
        if choice.random() < 0.5:
            holder["x"] = removed
    return json.dumps(tree, separators=(",", ":")).encode()


def mutated(choice: random.Random, archive: Archive) -> Archive:
    """Change one record of an archive. References to a changed part are changed with it."""
    kind = choice.choice(["header", "pieces", "blob", "event", "command", "journal", "record", "manifest"])
    checkpoint = choice.choice(archive.checkpoints)
    manifest = checkpoint.manifest
    match kind:
        case "header":
            new = replace(manifest, header=mutate(choice, manifest.header))
        case "pieces" if manifest.pieces:
            new = replace(manifest, pieces=mutate(choice, manifest.pieces))
        case "manifest":
            name = choice.choice(["workflow_name", "previous_id", "timestamp", "toc"])
            value: Any = choice.choice(["", "x", "2024", "\0", "\udc80", "good@0"])
            if name == "toc":
                path = choice.choice([*manifest.toc, "child/" * 2000 + "x", "state/x", "outputs/x", "child/x/y"])
                hashes = [blob.hash for blob in archive.blobs]
                value = {**manifest.toc, path: choice.choice(hashes)}
            new = replace(manifest, **{name: value})
        case "blob":
            return with_blob(archive, choice)
        case "event" if archive.events:
            each = choice.choice(archive.events)
            changed = replace(each, data=mutate(choice, each.data))
            return replace(archive, events=tuple(changed if one is each else one for one in archive.events))
        case "command" if archive.inbox:
            each = choice.choice(archive.inbox)
            kinds = [each.kind, "answer", "message", "cancel", "x"]
            changed = replace(each, data=mutate(choice, each.data), kind=choice.choice(kinds))
            return replace(archive, inbox=tuple(changed if one is each else one for one in archive.inbox))
        case "journal" if archive.journal:
            each = choice.choice(archive.journal)
            changed = replace(each, data=mutate(choice, each.data))
            return replace(archive, journal=tuple(changed if one is each else one for one in archive.journal))
        case _:
            name = choice.choice(["workflow_name", "created_at", "wake_at", "nonce", "input_digest", "status"])
            value = choice.choice(["", "x", "2024-13-01", "9999", "\0", "\udc80", "2024-01-01T00:00:00+00:00"])
            status = choice.choice(["running", "waiting", "sleeping", "idle", "cancelled"])
            return replace(archive, record=replace(archive.record, **{name: status if name == "status" else value}))
    changed_checkpoint = replace(checkpoint, manifest=new)
    return replace(
        archive, checkpoints=tuple(changed_checkpoint if one is checkpoint else one for one in archive.checkpoints)
    )


def with_blob(archive: Archive, choice: random.Random) -> Archive:
    """Change a part, and everything that refers to it, up to the checkpoints."""
    blobs = {blob.hash: blob for blob in archive.blobs}
    target = choice.choice([blob for blob in archive.blobs if blob.kind == "json"])
    return replaced(archive, {target.hash: Blob.of(mutate(choice, target.data), target.refs)}, blobs)


def replaced(archive: Archive, renamed: dict[str, Blob], blobs: dict[str, Blob]) -> Archive:
    """Replace parts, and so the hashes of everything that refers to them."""
    names = {old: new.hash for old, new in renamed.items()}
    result = {old: renamed.get(old, blob) for old, blob in blobs.items()}
    while True:
        further = {
            old: blob
            for old, blob in result.items()
            if any(ref in names for ref in blob.refs) and not any(names.get(ref) == ref for ref in blob.refs)
        }
        if not further:
            break
        for old, blob in further.items():
            text = rename(blob.data, names)
            refs = tuple(sorted({names.get(ref, ref) for ref in blob.refs}))
            result[old] = Blob.of(text, refs)
            names[old] = result[old].hash

    def refs_of(refs: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(names.get(ref, ref) for ref in refs)

    return replace(
        archive,
        blobs=tuple({blob.hash: blob for blob in result.values()}.values()),
        checkpoints=tuple(
            replace(
                each,
                manifest=replace(
                    each.manifest,
                    toc={path: names.get(address, address) for path, address in each.manifest.toc.items()},
                    pieces=rename(each.manifest.pieces, names),
                    refs=refs_of(each.manifest.refs),
                    base=names.get(each.manifest.base or "", each.manifest.base),
                ),
            )
            for each in archive.checkpoints
        ),
        journal=tuple(
            replace(each, data=rename(each.data, names), refs=refs_of(each.refs)) for each in archive.journal
        ),
        inbox=tuple(replace(each, data=rename(each.data, names), refs=refs_of(each.refs)) for each in archive.inbox),
        events=tuple(replace(each, data=rename(each.data, names), refs=refs_of(each.refs)) for each in archive.events),
    )


def rename(data: bytes, names: dict[str, str]) -> bytes:
    for old, new in names.items():
        data = data.replace(old.encode(), new.encode())
    return data


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), is_verified=st.booleans())
@example(seed=4547, is_verified=False)  # the pieces of a checkpoint that is not the head are no JSON object
def test_whatever_is_changed_in_an_export_harms_no_other_run(export: Path, *, seed: int, is_verified: bool) -> None:
    choice = random.Random(seed)
    path = forge(export, lambda archive: mutated(choice, archive))
    asyncio.run(require_harmless(path, is_verified=is_verified))


async def test_an_export_as_it_was_written_is_imported(export: Path) -> None:
    path = forge(export, lambda archive: archive)
    assert path.read_bytes() == export.read_bytes()  # noqa: ASYNC240 - nothing else runs
    async with InMemoryCheckpointStorage() as storage:
        assert await storage.import_run(path) == "evil"


async def require_refused(path: Path, reason: str) -> None:
    async with InMemoryCheckpointStorage() as storage:
        with pytest.raises(WorkflowCheckpointException, match=reason):
            await storage.import_run(path)


@pytest.mark.parametrize("place", ["blobs", "pieces", "index", "events", "inbox"])
async def test_parts_that_refer_to_each_other_too_often_are_refused(export: Path, place: str) -> None:
    def laugh(archive: Archive) -> Archive:
        blob = Blob.of(json.dumps(["ha" * 10] * 50).encode())
        blobs = [blob]
        for _ in range(40):
            tree: Any = [{"~": "part", "part": blob.hash}] * 10
            if place == "index":
                tree = {"~": "index", "chunks": [blob.hash] * 10}
            blob = Blob.of(json.dumps(tree, separators=(",", ":")).encode(), (blob.hash,))
            blobs.append(blob)
        archive = replace(archive, blobs=(*archive.blobs, *blobs))
        *others, head = archive.checkpoints
        manifest, reference = head.manifest, {"~": "part", "part": blob.hash}
        match place:
            case "events":
                *earlier, batch = archive.events
                events = [*json.loads(batch.data)[1:], {"type": "output", "data": reference}]
                batch = replace(batch, data=json.dumps(events).encode(), refs=tuple({*batch.refs, blob.hash}))
                return replace(archive, events=(*earlier, batch))
            case "inbox":
                data = json.dumps({"target": None, "value": reference, "at": "x", "by": "x"}).encode()
                command = replace(archive.inbox[-1], id="message/x", kind="message", data=data, refs=(blob.hash,))
                return replace(archive, inbox=(*archive.inbox[:-1], command))
            case "pieces":
                pieces = {**json.loads(manifest.pieces or b"{}"), "state/shared/x": reference}
                manifest = replace(manifest, pieces=json.dumps(pieces).encode(), refs=(*manifest.refs, blob.hash))
            case _:
                path = "outputs/0" if place == "index" else "state/shared/x"
                manifest = replace(manifest, toc={**manifest.toc, path: blob.hash})
        return replace(archive, checkpoints=(*others, replace(head, manifest=manifest)))

    await require_refused(forge(export, laugh), "refer to each other too often")


async def test_a_part_that_is_mentioned_often_is_imported(tmp_path: Path) -> None:
    """A long text is one object, and a short list in a hundred places is small."""

    @executor(id="fan")
    async def fan(text: str, ctx: WorkflowContext[None, str]) -> None:
        ctx.set_state("texts", [{"text": "long " * 100_000}] * 1000)
        for number in range(100):
            ctx.set_state(f"list {number}", [f"{each} {'x' * 500}" for each in range(50)])
        await ctx.yield_output(text)

    path = tmp_path / "export"
    async with InMemoryCheckpointStorage() as storage:
        workflow = WorkflowBuilder(name="fan", start_executor=fan, checkpoint_storage=storage).build()
        await workflow.run("text", run_id="r")
        await storage.export_run("r", path)
        assert await storage.import_run(path) == "r"


async def test_a_host_goes_on_with_others_and_logs_a_hostile_run_once(
    export: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def break_head(archive: Archive) -> Archive:
        *others, head = archive.checkpoints
        manifest = replace(head.manifest, header=head.manifest.header.replace(b'"turn":1', b'"turn":"1"'))
        record = replace(archive.record, status="running", wake_at="2024-99-99")
        return replace(archive, record=record, checkpoints=(*others, replace(head, manifest=manifest)))

    path = forge(export, break_head)
    await require_refused(path, "is damaged")
    clock = ManualClock()
    async with InMemoryCheckpointStorage(clock=clock) as storage:
        assert isinstance(storage.store, TenantStore)
        await storage.store.restore(archive_in(path))
        host = Host(storage)
        host.register(build)
        async with host:
            good = await host.start("asking", "text", run_id="good")
            await good.result()
            with pytest.raises(RunFailedError, match="header"):
                await (await host.run("evil")).result()
            evil = await host.info("evil")
            assert evil.status == "failed"
            assert "header" in str(evil.error)
            assert {info.run_id for info in await host.runs()} == {"good", "evil"}
    assert len([message for message in caplog.messages if "evil" in message]) <= 1
    assert not [message for message in caplog.messages if "could not look" in message]
