"""A functional workflow whose branches grow by chance, in every way in which Python starts tasks. A script.

Everything that is done and seen is written down outside, and the process may be killed at any such note. A tree grows
by its seed; how long a branch takes before, between and after its actions is left to chance, and differs each time.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from perdure import (
    Agent,
    FileCheckpointStorage,
    RunContext,
    SqliteCheckpointStorage,
    SystemClock,
    get_run_context,
    step,
    tool,
    workflow,
)
from perdure.testing import ScriptedChatClient, ToolCall

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Sequence

    from perdure.storage import StoreStorage

Branch: TypeAlias = "Callable[[], Coroutine[Any, Any, Any]]"

RUN = "r"
_TURNS_MAX = 12
chance = random.Random()


@dataclass
class Diary:
    """What happens, in the words of those to whom it does; and when the process dies."""

    path: Path
    notes_left: int

    def note(self, *words: str) -> None:
        line = f"{json.dumps(words)}\n".encode()
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(descriptor, line)
        os.close(descriptor)
        self.notes_left -= 1
        if self.notes_left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class Tree:
    """A branch: what is done at its end, or how those are begun that grow on it."""

    path: str
    kind: str
    branches: list[Tree] = field(default_factory=list["Tree"])

    @property
    def tickets(self) -> int:
        """How many are on it, in the end."""
        return _TICKETS.get(self.kind, 0) + sum(each.tickets for each in self.branches)

    @classmethod
    def grown(cls, seed: random.Random, depth: int, path: str = "t") -> Tree:
        if depth == 0 or seed.random() < 0.2:
            return cls(path, seed.choice(sorted(LEAVES)))
        kind = seed.choice(sorted(FORKS))
        count = 1 if kind in _ALONE else seed.randint(2, 3)
        return cls(path, kind, [cls.grown(seed, depth - 1, f"{path}{number}") for number in range(count)])


_TICKETS = {"ticket": 1, "bundle": 3, "tools": 3}
diary = Diary(Path(os.devnull), 0)
_path: ContextVar[str] = ContextVar("path")


def made(path: str, what: str) -> str:
    """Something that is another one each time."""
    diary.note("did", path, what)
    return f"{what} {os.urandom(4).hex()}"


async def dawdle() -> None:
    """Do something else, for as long as it takes."""
    way = chance.random()
    if way < 0.1:
        await asyncio.to_thread(os.getpid)
    elif way < 0.7:
        for _ in range(chance.randrange(_TURNS_MAX)):
            await asyncio.sleep(0)


@step
async def ticket(path: str, ctx: RunContext) -> str:
    """A step that is async, and is counted in the state with all others of its function."""
    await dawdle()
    ctx.set_state("tickets", ctx.get_state("tickets", 0) + 1)
    await dawdle()
    return made(path, "ticket")


@step
async def bundle(path: str) -> str:
    """A step that has branches, and steps in them."""

    async def one(number: int) -> str:
        await dawdle()
        return await ticket(f"{path}-{number}")

    found = await asyncio.gather(one(0), ticket(f"{path}-1"), one(2))
    return made(path, f"bundle of {', '.join(found)}")


@step
async def fetch(path: str) -> str:
    """A step that fails when it is called for the first time."""
    made(path, "fetch")
    mark = diary.path.with_name(f"{path}-was-tried")
    if not mark.exists():
        mark.touch()
        raise OSError(f"{path} is down")
    return "fetched"


@step
async def use(path: str, found: str) -> str:
    """A step that rests on another one."""
    return made(path, f"use of {found}")


async def _answer(*_: Any) -> str:
    path = _path.get()
    await dawdle()
    return made(path, "answer")


agent = Agent(ScriptedChatClient(_answer), "Say something.", name="agent")


@tool(approval_mode="never_require", if_interrupted="rerun")
async def fetch_ticket() -> str:
    """A tool that has a ticket by a step."""
    await dawdle()
    found = await ticket(_path.get())
    await dawdle()
    return found


@tool(approval_mode="never_require", if_interrupted="rerun")
async def write_ticket() -> str:
    """A tool that counts in the state by itself."""
    path, context = _path.get(), get_run_context()
    assert context is not None
    await dawdle()
    context.set_state("tickets", context.get_state("tickets", 0) + 1)
    await dawdle()
    return made(path, "written")


_CALLS = [ToolCall("fetch_ticket"), ToolCall("write_ticket"), ToolCall("fetch_ticket")]
helper = Agent(
    ScriptedChatClient([_CALLS, "done"]), "Fetch and write tickets.", name="helper", tools=[fetch_ticket, write_ticket]
)


@workflow
async def clerk(path: str, ctx: RunContext) -> list[str]:
    """A function inside of the other."""

    async def ask() -> str:
        await dawdle()
        return await ctx.request_info(path, str)

    async def work() -> str:
        await dawdle()
        return await ticket(path)

    found = list(await asyncio.gather(ask(), work()))
    assert ctx.get_state("tickets") == 1
    return found


async def _asked(path: str) -> str:
    context = get_run_context()
    assert context is not None, "a branch that is left does not go on"
    answer = await context.request_info(path, str)
    assert answer == f"answer to {path}"
    return answer


async def _slept(_: str) -> str:
    context = get_run_context()
    assert context is not None, "a branch that is left does not go on"
    await context.sleep(0.02)
    return "slept"


async def _caught(path: str) -> str:
    try:
        found = await fetch(path)
    except OSError as error:
        found = str(error)
    return await use(path, found)


async def _caught_in_gather(path: str) -> str:
    async def fetched() -> str:
        await dawdle()
        return await fetch(path)

    (found,) = await asyncio.gather(fetched(), return_exceptions=True)
    return await use(path, str(found))


async def _caught_in_group(path: str) -> str:
    async def fetched() -> str:
        await dawdle()
        return await fetch(path)

    found = ""
    try:
        async with asyncio.TaskGroup() as group:
            task = group.create_task(fetched())
        found = task.result()
    except* OSError as error:
        found = str(error.exceptions[0])
    return await use(path, found)


async def _said(path: str) -> str:
    return (await agent.run(f"Well, {path}?")).text


async def _by_tools(path: str) -> str:
    messages = (await helper.run(f"Please, {path}.")).messages
    return str([content.result for message in messages for content in message.contents if content.result is not None])


async def _by_clerk(path: str) -> str:
    answer, _ = (result := (await clerk.run(path)).get_outputs()[0])
    assert answer == f"answer to {path}"
    return str(result)


async def _one_ticket(path: str) -> str:
    return await ticket(path)


async def _one_bundle(path: str) -> str:
    return await bundle(path)


LEAVES: dict[str, Callable[[str], Awaitable[str]]] = {
    "ticket": _one_ticket,
    "bundle": _one_bundle,
    "ask": _asked,
    "sleep": _slept,
    "agent": _said,
    "tools": _by_tools,
    "clerk": _by_clerk,
    "caught": _caught,
    "caught in gather": _caught_in_gather,
    "caught in group": _caught_in_group,
}


async def climb(tree: Tree) -> Any:
    """All that is on a branch."""
    await dawdle()
    if tree.branches:
        found = await FORKS[tree.kind]([partial(climb, each) for each in tree.branches])
    else:
        _path.set(tree.path)
        found = await LEAVES[tree.kind](tree.path)
        diary.note("saw", tree.path, str(found))
    await dawdle()
    return found


async def _one_by_one(branches: Sequence[Branch]) -> list[Any]:
    return [await each() for each in branches]


async def _gathered(branches: Sequence[Branch]) -> list[Any]:
    return list(await asyncio.gather(*(each() for each in branches)))


async def _grouped(branches: Sequence[Branch]) -> list[Any]:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(each()) for each in branches]
    return [task.result() for task in tasks]


async def _begun_before(branches: Sequence[Branch]) -> list[Any]:
    first, *others = branches
    tasks = [asyncio.create_task(each()) for each in others]
    return [await first(), *[await task for task in tasks]]


async def _as_completed(branches: Sequence[Branch]) -> list[Any]:
    return sorted([await each for each in asyncio.as_completed([each() for each in branches])], key=str)


async def _first_first(branches: Sequence[Branch]) -> list[Any]:
    tasks = [asyncio.create_task(each()) for each in branches]
    left = set(tasks)
    while left:
        _, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
    return [task.result() for task in tasks]


async def _in_time(branches: Sequence[Branch]) -> list[Any]:
    return [await asyncio.wait_for(each(), 600) for each in branches]


async def _timed(branches: Sequence[Branch]) -> list[Any]:
    async with asyncio.timeout(600):
        return [await each() for each in branches]


async def _shielded(branches: Sequence[Branch]) -> list[Any]:
    return [await asyncio.shield(each()) for each in branches]


FORKS: dict[str, Callable[[Sequence[Branch]], Awaitable[list[Any]]]] = {
    "one by one": _one_by_one,
    "gathered": _gathered,
    "grouped": _grouped,
    "begun before": _begun_before,
    "as completed": _as_completed,
    "first first": _first_first,
    "in time": _in_time,
    "timed": _timed,
    "shielded": _shielded,
}
_ALONE = frozenset({"in time", "timed", "shielded"})


@workflow(clock=SystemClock(grace_seconds=0.03))
async def forest(tree: Tree, ctx: RunContext) -> Any:
    """All that is on a tree."""
    found = await climb(tree)
    count = ctx.get_state("tickets", 0)
    assert count == tree.tickets, f"{tree.tickets} tickets, {count} of them are counted"
    return found


def storage_of(kind: str, directory: Path) -> StoreStorage:
    """Where the run is kept."""
    if kind == "file":
        return FileCheckpointStorage(directory / "runs")
    return SqliteCheckpointStorage(directory / "runs.db")


async def live(storage: StoreStorage, tree: Tree) -> None:
    """Begin the run or go on with it, to its end; each time somebody answers some of what it asks."""
    result = await forest.run(tree, run_id=RUN, checkpoint_storage=storage)
    while asked := result.get_request_info_events():
        some = chance.sample(asked, chance.randint(1, len(asked)))
        answers = {each.request_id: f"answer to {each.data}" for each in some}
        result = await forest.run(run_id=RUN, responses=answers, checkpoint_storage=storage)
    diary.note("ended", "", str(result.get_outputs()))


def main() -> None:
    """`forest.py DIRECTORY STORE SEED NOTES`: live once, and die with a note of that number; 0 for none."""
    directory, kind, seed, notes = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    diary.path, diary.notes_left = directory / "diary", notes
    grower = random.Random(seed)
    asyncio.run(live(storage_of(kind, directory), Tree.grown(grower, grower.randint(2, 4))))


if __name__ == "__main__":
    main()
