"""The surroundings of golden programs: counted effects, points where a process is killed, and stores to run on."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from perdure import AgentResponse, Message
from perdure.testing.clock import ManualClock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence
    from datetime import datetime
    from pathlib import Path


class World:
    """Count effects, and kill the process at a named point while golden stores are made."""

    def __init__(self) -> None:
        self.effects: list[str] = []
        self.log: Path | None = None
        self.kill_at: str | None = None
        self.kill: Callable[[], Awaitable[None]] | None = None
        self.clock: Callable[[], datetime] = ManualClock().now

    def did(self, what: str) -> None:
        """Note an effect that must not happen twice."""
        self.effects.append(what)
        if self.log is not None:
            with self.log.open("a", encoding="utf-8") as log:
                log.write(f"{what}\n")

    async def reach(self, point: str) -> None:
        """Pass a point; the process ends here if it is the one to be killed at."""
        if self.kill is not None and self.kill_at == point:
            await self.kill()


world = World()


@dataclass
class Place:
    """Hold the stores of one kind."""

    storage: Any
    sessions: Any
    saved: dict[str, Any] = field(default_factory=dict[str, Any])
    """What a program keeps outside of the stores, as JSON."""
    clock: ManualClock = field(default_factory=lambda: ManualClock(skips=True))
    park: Callable[[str], Awaitable[None]] | None = None
    """Take a run out of rotation, as a host does with one that has killed several processes."""

    def of_tenant(self, name: str) -> Place:
        """Return the stores of one tenant."""
        return replace(self, storage=self.storage.tenant(name), sessions=self.sessions.tenant(name))


@dataclass(frozen=True)
class Scenario:
    """One way in which runs are interrupted and go on."""

    name: str
    begin: Callable[[Place], Awaitable[object]]
    finish: Callable[[Place], Awaitable[list[str]]]
    runs: tuple[str, ...] = ()
    kill_at: str | None = None


def noted(name: str, *replies: Any) -> list[Callable[[Sequence[Message], Mapping[str, Any]], Any]]:
    """Make a script for an agent: each call of the model is an effect."""

    def make(number: int, reply: Any) -> Callable[[Sequence[Message], Mapping[str, Any]], Any]:
        def answer(messages: Sequence[Message], options: Mapping[str, Any]) -> Any:
            world.did(f"model of {name}, {number}")
            return reply(messages, options) if callable(reply) else reply

        return answer

    return [make(number, reply) for number, reply in enumerate(replies)]


def heard(messages: Sequence[Message], _: Mapping[str, Any]) -> str:
    """Say what an agent was told."""
    return "|".join(message.text for message in messages if message.role != "system" and message.text)


def text_of(value: Any) -> str:
    """Write an output down, to be compared."""
    if isinstance(value, AgentResponse):
        return f"{[message.author_name for message in value.messages]}: {value.text}"
    return value if isinstance(value, str) else repr(value)


async def outputs(place: Place, *runs: str) -> list[str]:
    """Return all that runs have put out, in every process."""
    return [
        f"{run}: {event.type} {event.executor_id} {text_of(event.data)}"
        for run in runs
        async for event in place.storage.events(run)
        if event.type in {"output", "intermediate"}
    ]


async def answer_all(place: Place, build: Callable[[Place], Any], run: str, answer: Callable[[Any], Any]) -> list[str]:
    """Answer what a run asks until it asks nothing more, with the program built anew each time."""
    result = await build(place).run(run_id=run)
    while requests := result.get_request_info_events():
        answers = {request.request_id: answer(request.data) for request in requests}
        result = await build(place).run(run_id=run, responses=answers)
    return await outputs(place, run)
