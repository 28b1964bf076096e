"""What comes to a run from outside while it is driven: commands of others, and the passing of time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Protocol

from perdure.checkpoint import AnswerCommand, CancelCommand, MessageCommand, answer_id, read_command
from perdure.clock import now
from perdure.data import frozen
from perdure.engine.answers import checked_answer
from perdure.engine.narration import kept_data
from perdure.engine.routing import accepts
from perdure.errors import AnswerTypeError, IncompatibleTypeError, UndeliveredError, UntrustedTypeError
from perdure.events import UndeliveredMessage
from perdure.kernel import Cancelled, FanIn, PendingEvent, moves
from perdure.records import Mark
from perdure.typenames import describe, type_of

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence
    from typing import Any

    from perdure.checkpoint import AnyCommand
    from perdure.clock import Clock
    from perdure.codec import Kept, Values
    from perdure.graph import Graph
    from perdure.kernel import Request, Snapshot
    from perdure.records import Command
    from perdure.storage import Binding, Store

BY_DEADLINE = "its deadline"
BY_DEFAULT = "the default"


@frozen
class Taken:
    """A run with what has come to it, to be committed: the commands that are used up, and what there is to tell."""

    snapshot: Snapshot
    told: tuple[PendingEvent, ...] = ()
    consumed: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    """The ids of commands whose work is done here without them."""
    failure: Exception | None = None
    """What the run ends with once this is committed."""

    def then(
        self, snapshot: Snapshot, *told: PendingEvent, consumed: str | None = None, done: str | None = None
    ) -> Taken:
        """The same, and one thing more."""
        return Taken(
            snapshot,
            self.told + told,
            self.consumed + ((consumed,) if consumed is not None else ()),
            self.done + ((done,) if done is not None else ()),
            self.failure,
        )


class Outside(Protocol):
    """What a driver asks between two supersteps."""

    def may_bring(self, snapshot: Snapshot) -> bool:
        """Whether it is worth to look."""
        ...

    async def look(self, snapshot: Snapshot, *, recorded: Callable[[], Mapping[str, Kept]]) -> Taken | None:
        """What has come or become due; None if nothing. `recorded` is what the superstep in progress has recorded."""
        ...

    async def wait(self, snapshot: Snapshot) -> bool:
        """Wait until something may have come or become due; False if there is nothing to wait for."""
        ...

    def bring(self, commands: Sequence[Command]) -> None:
        """The inbox was read along with the journal."""
        ...

    def heard(self, newest: int, *, at: Snapshot | None = None) -> None:
        """A commit has told the number of the newest command that waits, `at` what the run is then."""
        ...

    async def cancelling(self) -> None:
        """Wait until somebody wants the run to stop; if that can't come, for ever."""
        ...


class NoOutside:
    """For a sub-workflow: what comes from outside comes to its parent."""

    def may_bring(self, snapshot: Snapshot) -> bool:
        """Nothing."""
        del snapshot
        return False

    async def look(self, snapshot: Snapshot, *, recorded: Callable[[], Mapping[str, Kept]]) -> Taken | None:
        """Nothing."""
        del snapshot, recorded
        return None

    async def wait(self, snapshot: Snapshot) -> bool:
        """The parent waits."""
        del snapshot
        return False

    def bring(self, commands: Sequence[Command]) -> None:
        """A sub-workflow has no inbox."""

    def heard(self, newest: int, *, at: Snapshot | None = None) -> None:
        """Nobody commits here."""

    async def cancelling(self) -> None:
        """The parent is cancelled, and this with it."""
        await asyncio.get_running_loop().create_future()


class RunOutside:
    """The inbox of a run, where it has one, and the clock."""

    def __init__(
        self,
        *,
        graph: Graph,
        values: Values,
        clock: Clock,
        run_id: str,
        store: Store | None,
        waits: bool,
        is_streamed: bool,
    ) -> None:
        self._graph = graph
        self._values = values
        self._clock = clock
        self._run_id = run_id
        self._store = store
        self._waits = waits
        self._is_streamed = is_streamed
        self._commands: list[AnyCommand] = []
        self._used: tuple[str, ...] = ()
        """The commands that are in the run, and perhaps still in the inbox: their commit may have failed."""
        self._changed: Snapshot | None = None
        """What the driver had when it was last given something else."""
        self._newest = 0
        self._has_news = store is not None
        self._sure_at: Snapshot | None = None
        """Where it was told a moment ago what is in the inbox."""
        self._read: Sequence[Command] | None = None
        """What was read of the inbox, and not looked at yet."""

    def bring(self, commands: Sequence[Command]) -> None:
        """They are what the next look finds."""
        self._read = commands

    def heard(self, newest: int, *, at: Snapshot | None = None) -> None:
        """There is news if the newest command is not known yet, or if some that are used should have left."""
        self._read = None
        self._has_news = self._has_news or newest > self._newest or bool(self._used)
        # Who reads a stream may take any time for what the commit tells, and send something meanwhile.
        self._sure_at = None if self._is_streamed else at

    def may_bring(self, snapshot: Snapshot) -> bool:
        """Whether there is news, something that was read before, or a moment to look for."""
        return self._has_news or bool(self._commands or self._used) or snapshot.wake_at is not None

    async def look(self, snapshot: Snapshot, *, recorded: Callable[[], Mapping[str, Kept]]) -> Taken | None:
        """Take in the commands in order, then what is due by now."""
        if snapshot is self._changed:
            # What was taken in last came to nothing.
            self._used = ()
        if self._has_news:
            await self._read_news()
        if not (self._commands or self._used) and snapshot.wake_at is None:
            self._changed = None
            return None
        taken = Taken(snapshot, consumed=self._used)
        for command in list(self._commands):
            after = self._taken_in(taken, command, recorded)
            if after is not None:
                taken = after
                self._commands.remove(command)
        taken = self._timed(taken, recorded)
        self._used = taken.consumed
        self._changed = snapshot if taken.snapshot is not snapshot else None
        return None if taken == Taken(snapshot) else taken

    async def _read_news(self) -> bool:
        """Read the inbox if there may be news; whether there was."""
        if self._store is None or not self._has_news:
            return False
        found, self._read = self._read, None
        if found is None:
            found = await self._store.inbox(self._run_id)
        refs = [ref for command in found for ref in command.refs]
        parts: Mapping[str, bytes] = await self._store.parts(refs) if refs else {}
        before = self._newest
        self._newest = max((command.number for command in found), default=before)
        self._commands = [
            read_command(command, parts, checkpoint_id=self._run_id)
            for command in found
            if command.id not in self._used
        ]
        self._used = tuple(command.id for command in found if command.id in self._used)
        self._has_news = False
        return self._newest > before

    def _taken_in(self, taken: Taken, command: AnyCommand, recorded: Callable[[], Mapping[str, Kept]]) -> Taken | None:
        """One command taken in; None if its time has not come."""
        match command:
            case AnswerCommand():
                return self._answered(taken, command)
            case MessageCommand():
                return self._received(taken, command)
            case CancelCommand():
                return self._cancelled(taken, command, recorded)

    def _answered(self, taken: Taken, command: AnswerCommand) -> Taken:
        snapshot = taken.snapshot
        request = snapshot.requests.get(command.request_id)
        if request is None:
            text = f"an answer of {command.by} came to request {command.request_id!r}, which waits no more"
            return taken.then(snapshot, self._warning(text), consumed=command.command_id)
        try:
            answer = checked_answer(request, self._values.give(command.value), self._graph, self._values)
        except (AnswerTypeError, UntrustedTypeError, IncompatibleTypeError) as error:
            text = f"the answer of {command.by} does not fit: {error}"
            return taken.then(
                moves.reopen(snapshot, request, reason=text), self._warning(text), consumed=command.command_id
            )
        value = self._values.fix(answer, f"answer to request {request.id!r}")
        after = moves.answer(
            snapshot, [(request, value)], at=command.at, by=command.by, what={request.id: command.shown}
        )
        told = answered(request, self._values, by=command.by, what=command.shown)
        return taken.then(after, told, consumed=command.command_id)

    def _received(self, taken: Taken, command: MessageCommand) -> Taken | None:
        snapshot = taken.snapshot
        if command.command_id in snapshot.received:
            return taken.then(snapshot, consumed=command.command_id)
        if command.target_id is None and not (snapshot.is_idle and snapshot.next_timer is None):
            # The next turn begins when this one has ended. What somebody is asked may take its time, and stays open.
            return None
        target_id = command.target_id or self._graph.start_id
        try:
            message = self._deliverable(command, target_id)
        except (LookupError, TypeError, UntrustedTypeError, IncompatibleTypeError) as error:
            return self._undelivered(taken, command, target_id, str(error))
        value = self._values.fix(message, f"message for executor {target_id!r}")
        if command.target_id is None:
            after = moves.begin_turn(snapshot, target_id=target_id, value=value, message_id=command.command_id)
            return taken.then(after, PendingEvent("started"), consumed=command.command_id)
        after = moves.receive(snapshot, target_id=target_id, value=value, message_id=command.command_id)
        return taken.then(after, PendingEvent("received", executor_id=target_id), consumed=command.command_id)

    def _undelivered(self, taken: Taken, command: MessageCommand, target_id: str, reason: str) -> Taken:
        """The message leaves the inbox, and is in the log. A strict workflow fails of it, once."""
        try:
            message = self._values.give(command.value)
        except (UntrustedTypeError, IncompatibleTypeError):
            data: object = command.value
        else:
            undelivered = UndeliveredMessage(message, command.by, target_id, reason)
            data, _ = kept_data(undelivered, "a message that was not delivered", self._values)
        told = PendingEvent("undelivered", data, executor_id=target_id)
        after = taken.then(taken.snapshot, told, consumed=command.command_id)
        if self._graph.rules.undelivered != "error" or after.failure is not None:
            return after
        failure = UndeliveredError(source_id=command.by, target_id=target_id, reason=reason, is_from_outside=True)
        return replace(after, failure=failure)

    def _deliverable(self, command: MessageCommand, target_id: str) -> object:
        """The message, if the executor is there and takes it."""
        target = self._graph.executors.get(target_id)
        if target is None:
            raise LookupError(f"there are only {', '.join(self._graph.executors)}")
        message = self._values.give(command.value)
        if not accepts(target, message):
            takes = ", ".join(describe(type_) for type_ in target.input_types)
            raise TypeError(f"it takes {takes}, not a {type_of(message)}")
        return message

    def _cancelled(self, taken: Taken, command: CancelCommand, recorded: Callable[[], Mapping[str, Kept]]) -> Taken:
        if taken.snapshot.is_settled or taken.snapshot.cancelled is not None:
            return taken.then(taken.snapshot, consumed=command.command_id)
        cancelled = Cancelled(command.at, command.by, command.reason)
        return self._stopped(taken, cancelled, recorded, consumed=command.command_id)

    def _stopped(
        self,
        taken: Taken,
        cancelled: Cancelled,
        recorded: Callable[[], Mapping[str, Kept]],
        consumed: str | None = None,
    ) -> Taken:
        after = moves.cancel(taken.snapshot, cancelled, carried=recorded())
        why = {"by": cancelled.by, "reason": cancelled.reason}
        return taken.then(
            after, PendingEvent("cancelled", self._values.fix(why, "why a run was cancelled")), consumed=consumed
        )

    def _timed(self, taken: Taken, recorded: Callable[[], Mapping[str, Kept]]) -> Taken:
        """What is due by now. A run that was told to stop is left alone."""
        if taken.snapshot.wake_at is None or taken.snapshot.wake_at > (now := self._now()):
            return taken
        for request in list(taken.snapshot.requests.values()):
            if request.deadline is not None and request.deadline <= now:
                taken = self._expired(taken, request, now)
        deadline = taken.snapshot.limits.deadline
        if deadline is not None and deadline <= now:
            reason = f"the deadline of the run, {deadline}, has passed"
            return self._stopped(taken, Cancelled(now, BY_DEADLINE, reason), recorded)
        after = moves.wake(taken.snapshot, now=now, fan_ins=fan_ins_of(self._graph))
        return taken if after is taken.snapshot else taken.then(after, PendingEvent("woken"))

    def _expired(self, taken: Taken, request: Request, now: str) -> Taken:
        assert request.default is not None, "a deadline has a default"
        after = moves.answer(
            taken.snapshot, [(request, request.default)], at=now, by=BY_DEADLINE, what={request.id: BY_DEFAULT}
        )
        told = answered(request, self._values, by=BY_DEADLINE, what=BY_DEFAULT)
        return taken.then(after, told, done=answer_id(request.id))

    def _warning(self, text: str) -> PendingEvent:
        return PendingEvent("warning", self._values.fix(text, "a warning"))

    def _now(self) -> str:
        return now(self._clock)

    async def wait(self, snapshot: Snapshot) -> bool:
        """If time will move the run on: wait for the next that is due, or until somebody sends something."""
        timer = snapshot.wake_at if self._waits and snapshot.next_timer is not None else None
        self._has_news = self._store is not None and (self._has_news or snapshot is not self._sure_at)
        if await self._read_news():
            return True
        if timer is None:
            return False
        await _first(self._until(timer), self._arrival())
        self._has_news, self._sure_at = self._store is not None, None
        return True

    async def _arrival(self) -> None:
        """Wait until a command comes that is not known."""
        if self._store is None:
            await asyncio.get_running_loop().create_future()
            return
        seen = await self._store.watch(self._run_id, seen=Mark())
        while seen.commands <= self._newest:
            seen = await self._store.watch(self._run_id, seen=seen, commands_only=True)

    async def _until(self, moment: str) -> None:
        left = datetime.fromisoformat(moment) - self._clock.now()
        await self._clock.sleep(max(left.total_seconds(), 0))

    async def cancelling(self) -> None:
        """Watch the inbox for the wish to cancel."""
        if self._store is None:
            await asyncio.get_running_loop().create_future()
            return
        seen = await self._store.watch(self._run_id, seen=Mark())
        while not any(command.kind == "cancel" for command in await self._store.inbox(self._run_id)):
            seen = await self._store.watch(self._run_id, seen=seen, commands_only=True)
        self._has_news = True


async def waiting_answers(binding: Binding | None, run_id: str) -> Mapping[str, AnswerCommand]:
    """The answers that wait in the inbox of a run, by request."""
    if binding is None or not binding.has_inbox:
        return {}
    found = await binding.store.inbox(run_id)
    parts = await binding.store.parts([ref for command in found for ref in command.refs])
    read = [read_command(command, parts, checkpoint_id=run_id) for command in found]
    return {command.request_id: command for command in read if isinstance(command, AnswerCommand)}


def answered(request: Request, values: Values, *, by: str | None, what: str | None) -> PendingEvent:
    """The event of an answer: who gave it, and what it is in short."""
    data = values.fix({"by": by, "answer": what}, "an answer")
    return PendingEvent("answered", data, executor_id=request.executor_id, request_id=request.id)


def fan_ins_of(graph: Graph) -> Mapping[str, FanIn]:
    """The fan-in groups as the kernel needs them."""
    return {
        group_id: FanIn(tuple(group.source_executor_ids), group.target_id) for group_id, group in graph.fan_ins.items()
    }


async def _first(*works: Coroutine[Any, Any, object]) -> None:
    """Wait for the first of these, and stop the others. Its error is raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await _stopped(tasks)


async def _stopped(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
