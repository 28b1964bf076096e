"""A process that does to a store what it is told: a JSON order per line in, a JSON answer per line out."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Any

from perdure.clock import SystemClock
from perdure.errors import WorkflowException
from perdure.records import Mark
from perdure.storage import FileStore, SqliteStore
from perdure.testing.stores import RunDriver, command, events, finished, new_run, raw_blob, text_blob

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.records import Command
    from perdure.storage import Store


class Program:
    def __init__(self, kind: str, path: str) -> None:
        store, _, durability = kind.partition(" ")
        word = "os" if durability == "os" else "commit"
        self.store: Store = (SqliteStore if store == "sqlite" else FileStore)(path, durability=word)
        self.runs: dict[str, RunDriver] = {}

    async def do(self, order: dict[str, Any]) -> object:
        match order:
            case {"do": "claim", "run": run_id}:
                await self.acquire(run_id, takeover=order.get("takeover", False))
            case {"do": "commit", "run": run_id, "times": times}:
                for number in range(times):
                    await self.runs[run_id].commit(
                        {"a": text_blob(f"{run_id} {number}"), "b": raw_blob(f"{run_id} {number}".encode() * 900)}
                    )
            case {"do": "commit on and on", "run": run_id}:
                while True:
                    say(await self.runs[run_id].commit({"a": text_blob("x"), "b": raw_blob(os.urandom(6000))}))
            case {"do": "release", "run": run_id}:
                await self.runs[run_id].release()
            case {"do": "ids"}:
                return list(await self.store.ids())
            case {"do": "fill the disk", "run": run_id}:
                return await self.commit_without_space(run_id)
            case _:
                return await self.do_with_journal(order)
        return None

    async def do_with_journal(self, order: dict[str, Any]) -> object:
        match order:
            case {"do": "note", "run": run_id, "keys": keys, "durable": durable}:
                for key in keys:
                    blobs = (text_blob(f"small {key}"), raw_blob(f"large {key}".encode() * 900))
                    await self.runs[run_id].note(finished(key, f"{run_id} {key}", *blobs), durable=durable)
            case {"do": "note on and on", "run": run_id, "durable": durable}:
                number = 0
                while True:
                    await self.runs[run_id].note(finished(f"{number}", "x" * (number % 9000)), durable=durable)
                    say(number)
                    number += 1
            case {"do": "journal", "run": run_id}:
                return await self.journal(run_id)
            case {"do": "fill the disk with a note", "run": run_id}:
                return await self.note_without_space(run_id)
            case _:
                return await self.do_with_inbox(order)
        return None

    async def do_with_inbox(self, order: dict[str, Any]) -> object:
        match order:
            case {"do": "post", "run": run_id, "id": command_id, "data": data}:
                posted = await self.post(run_id, command_id, data)
                return [posted.number, posted.data.decode()]
            case {"do": "post on and on", "run": run_id}:
                for number in itertools.count():
                    await self.post(run_id, f"{os.getpid()} {number}", "x" * (number % 9000))
                    say(f"{os.getpid()} {number}")
            case {"do": "consume on and on", "run": run_id}:
                while True:
                    ids = tuple(each.id for each in await self.store.inbox(run_id))
                    await self.runs[run_id].commit(consumed=ids, events=events(*ids))
                    for each in ids:
                        say(each)
            case {"do": "watch", "run": run_id}:
                seen = await self.store.watch(run_id, seen=Mark("nowhere"))
                say("watching")
                return dataclasses.asdict(await self.store.watch(run_id, seen=seen))
            case _:
                raise AssertionError(order)
        return None

    async def post(self, run_id: str, command_id: str, data: str) -> Command:
        return await self.store.post(run_id, command(command_id, data, raw_blob(data.encode() * 900)))

    async def acquire(self, run_id: str, *, takeover: bool) -> None:
        run = self.runs[run_id] = RunDriver(self.store, SystemClock(), run_id, "flow")
        run.lease = await self.store.acquire(run_id, create=new_run(run_id), takeover=takeover)
        record = await self.store.run(run_id)
        if record:
            run.head, run.position = record.head, record.position

    async def journal(self, run_id: str) -> dict[str, int]:
        """By key how many parts a record has that can be read."""
        records = await self.store.journal(run_id)
        return {record.key: len(await self.store.blobs(record.refs)) for record in records}

    async def commit_without_space(self, run_id: str) -> list[str]:
        """A commit for which there is no space, and the same one when there is."""
        large = {"a": raw_blob(b"x" * 3_000_000)}
        outcome = await without_space(self.runs[run_id].commit(large))
        return [outcome, await self.runs[run_id].commit(large)]

    async def note_without_space(self, run_id: str) -> list[object]:
        """A record for which there is no space, what there is then, and the same when there is space again."""
        run = self.runs[run_id]
        large = finished("large", "x" * 3_000_000)
        outcome = await without_space(run.note(large))
        between = await self.journal(run_id)
        await run.note(large)
        return [outcome, between, await self.journal(run_id)]


async def without_space(work: Coroutine[object, object, object]) -> str:
    """How the work ends when no file can grow beyond a megabyte."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, hard))
    try:
        await work
    except WorkflowException as error:
        return type(error).__name__
    else:
        return "written"
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def say(value: object) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def answer(program: Program, order: dict[str, Any]) -> object:
    if order["do"] == "fork":
        return in_a_fork(program, order["then"])
    if order["do"] == "fork while a commit waits":
        return asyncio.run(in_a_fork_while_a_commit_waits(program, order["run"], order["then"]))
    try:
        # An event loop for each order: the store has to outlive it.
        return {"ok": asyncio.run(program.do(order))}
    except WorkflowException as error:
        return {"error": type(error).__name__, "message": str(error)}


def in_a_fork(program: Program, orders: list[dict[str, Any]]) -> object:
    """The answers of a forked child, which has inherited the store."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        answers = [answer(program, order) for order in orders]
        os.write(writer, json.dumps(answers).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        answers = json.load(stream)
    os.waitpid(pid, 0)
    return {"ok": answers}


async def in_a_fork_while_a_commit_waits(program: Program, run_id: str, orders: list[dict[str, Any]]) -> object:
    """The same, and then the checkpoint of a commit that nobody had begun to write when the process forked."""
    committing = asyncio.create_task(program.runs[run_id].commit())
    await asyncio.sleep(0)
    answers = in_a_fork(program, orders)
    return [answers, await committing]


def main() -> None:
    program = Program(sys.argv[1], sys.argv[2])
    for line in sys.stdin:
        say(answer(program, json.loads(line)))


if __name__ == "__main__":
    main()
