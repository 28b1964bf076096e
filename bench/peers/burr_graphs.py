"""The graphs that Burr is measured with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from burr.core import Action, ApplicationBuilder, ApplicationContext, Condition, State, action, default
from burr.core.parallelism import MapStates

from bench.peer import Ballast, Interruption

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator, Sequence

    from bench.peer import Tick

LAST = "last"


@dataclass(frozen=True, slots=True)
class Drawn:
    """A graph, where it begins, and with what."""

    builder: ApplicationBuilder[Any]
    first: str
    state: dict[str, Any]


def ring(supersteps: int, *, is_interrupted: bool = False, is_async: bool = True) -> Drawn:
    """Ping and pong; the last step is an action of its own, for a run halts after an action."""

    def step(state: State) -> State:
        return state.update(number=state["number"] + 1)

    def final(state: State) -> State:
        if is_interrupted:
            raise Interruption
        return step(state)

    return _to_and_fro(_action(step, is_async=is_async), _action(final, is_async=is_async), supersteps)


def history(entries: Sequence[str], tick: Tick) -> Drawn:
    """Ping and pong, who write down what they say."""

    def step(state: State) -> State:
        tick()
        number = state["number"]
        return state.update(number=number + 1).append(history=entries[number])

    drawn = _to_and_fro(_action(step, fields=("history",)), _action(step, fields=("history",)), len(entries))
    return Drawn(drawn.builder, drawn.first, {"number": 0, "history": []})


def load(ballast: Ballast, value: object, supersteps: int, tick: Tick) -> Drawn:
    """An action that goes to itself, with the ballast in a field of its own, or in the one that it writes."""
    is_nested = ballast is Ballast.NESTED

    def step(state: State) -> State:
        tick()
        if is_nested:
            return state.update(porter={**state["porter"], "number": state["porter"]["number"] + 1})
        return state.update(number=state["number"] + 1)

    beside = {"number": 0, "ballast": value}
    fields = ("porter",) if is_nested else ("ballast",)
    count = (lambda state: state["porter"]["number"]) if is_nested else (lambda state: state["number"])
    unless_last = Condition.lmda(lambda state: count(state) < supersteps - 1, ["porter" if is_nested else "number"])
    own = _action(step, fields=fields)
    builder = ApplicationBuilder().with_actions(porter=own, **{LAST: own})
    builder = builder.with_transitions(("porter", "porter", unless_last), ("porter", LAST, default))
    return Drawn(builder, "porter", {"porter": beside} if is_nested else beside)


@action(reads=[], writes=["answer"])
async def _branch(state: State) -> State:
    return state.update(answer=1)


class _Branches(MapStates):
    """The branch, in as many states as there are branches."""

    def __init__(self, branches: int) -> None:
        super().__init__()
        self._branches = branches

    def action(self, state: State, inputs: dict[str, Any]) -> Action:  # noqa: ARG002 - the names it has in the API
        return _branch

    def states(
        self,
        state: State,
        context: ApplicationContext,  # noqa: ARG002 - the name it has in the API
        inputs: dict[str, Any],  # noqa: ARG002 - the same
    ) -> Generator[State, None, None]:
        for number in range(self._branches):
            yield state.update(branch=number)

    async def reduce(self, state: State, states: AsyncGenerator[State, None]) -> State:
        answers = state["answers"]
        async for each in states:
            answers += each["answer"]
        return state.update(answers=answers)

    def is_async(self) -> bool:
        return True

    @property
    def reads(self) -> list[str]:
        return ["lap", "answers"]

    @property
    def writes(self) -> list[str]:
        return ["answers"]


def fan(laps: int, branches: int) -> Drawn:
    """A hub, and one action that maps it to many states."""

    @action(reads=["lap"], writes=["lap"])
    async def hub(state: State) -> State:
        return state.update(lap=state["lap"] + 1)

    @action(reads=["answers"], writes=["answers"])
    async def last(state: State) -> State:
        return state.update(answers=state["answers"])

    unless_last = Condition.lmda(lambda state: state["lap"] < laps, ["lap"])
    builder = ApplicationBuilder().with_actions(hub=hub, branches=_Branches(branches), **{LAST: last})
    builder = builder.with_transitions(
        ("hub", "branches", default), ("branches", "hub", unless_last), ("branches", LAST, default)
    )
    return Drawn(builder, "hub", {"lap": 0, "answers": 0})


def _to_and_fro(step: Any, final: Any, supersteps: int) -> Drawn:
    unless_last = Condition.lmda(lambda state: state["number"] < supersteps - 1, ["number"])
    builder = ApplicationBuilder().with_actions(ping=step, pong=step, **{LAST: final})
    builder = builder.with_transitions(
        ("ping", "pong", unless_last), ("pong", "ping", unless_last), (["ping", "pong"], LAST, default)
    )
    return Drawn(builder, "ping", {"number": 0})


def _action(step: Any, *, fields: Sequence[str] = (), is_async: bool = True) -> Any:
    names = ["porter"] if "porter" in fields else ["number", *fields]
    if not is_async:
        return action(reads=names, writes=names)(step)

    async def own(state: State) -> State:
        return step(state)

    return action(reads=names, writes=names)(own)
