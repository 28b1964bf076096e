"""Several real processes on one store: who may write, and what is left of those that are killed."""

from __future__ import annotations

import contextlib
import json
import signal
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm

from perdure.storage import FileStore, SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Self

    from perdure.storage import Store

CHILD = Path(__file__).with_name("child.py")


class Child:
    """A process with the store open."""

    def __init__(self, kind: str, path: Path) -> None:
        self._process = warm.start(str(CHILD), kind, str(path), stdin=PIPE, stdout=PIPE)

    @property
    def pid(self) -> int:
        return self._process.pid

    def tell(self, do: str, **arguments: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **arguments}) + "\n")
        self._process.stdin.flush()

    def hear(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, do: str, **arguments: object) -> dict[str, Any]:
        self.tell(do, **arguments)
        return self.hear()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def end(self) -> int:
        """Let it come to its end by itself; its exit code."""
        self._process.communicate(timeout=30)
        return self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._process.send_signal(signal.SIGCONT)
        self._process.kill()
        self._process.communicate()


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def place(kind: str, tmp_path: Path) -> Path:
    return tmp_path / ("runs.db" if kind == "sqlite" else "runs")


@pytest.fixture
def store(kind: str, place: Path) -> Store:
    return SqliteStore(place) if kind == "sqlite" else FileStore(place)


@pytest.fixture
def start(kind: str, place: Path) -> Generator[Callable[[], Child]]:
    with contextlib.ExitStack() as children:
        yield lambda: children.enter_context(Child(kind, place))


OK = {"ok": None}


async def test_processes_commit_to_their_own_runs_at_once(start: Callable[[], Child], store: Store) -> None:
    children = {f"run {number}": start() for number in range(4)}
    for run_id, child in children.items():
        child.tell("claim", run=run_id)
        child.tell("commit", run=run_id, times=20)
        child.tell("commit", run=run_id, times=5)
    for child in children.values():
        assert [child.hear() for _ in range(3)] == [OK, OK, OK]
    assert len(set(await store.ids())) == 100
    for run_id in children:
        manifests = await store.manifests(run_id=run_id)
        assert [manifest.position for manifest in manifests] == list(range(25))
        for manifest in manifests:
            assert len(await store.blobs(manifest.toc.values())) == 2
    await store.close()


def test_a_living_owner_is_refused_by_name(start: Callable[[], Child]) -> None:
    owner, rival = start(), start()
    assert owner.ask("claim", run="r") == OK
    refusal = rival.ask("claim", run="r")
    assert refusal["error"] == "RunBusyError"
    assert f"process {owner.pid} on " in refusal["message"]
    assert owner.ask("commit", run="r", times=1) == OK
    assert owner.ask("release", run="r") == OK
    assert rival.ask("claim", run="r") == OK
    assert rival.ask("commit", run="r", times=1) == OK


def test_one_of_many_rivals_gets_the_lease(start: Callable[[], Child]) -> None:
    rivals = [start() for _ in range(4)]
    for rival in rivals:
        rival.tell("claim", run="r")
    outcomes = [rival.hear() for rival in rivals]
    winner = rivals[outcomes.index(OK)]
    for outcome in outcomes:
        assert outcome == OK or f"process {winner.pid} on " in outcome["message"]
    assert outcomes.count(OK) == 1


def test_a_killed_owner_is_replaced_at_once(start: Callable[[], Child]) -> None:
    for number in range(3):
        owner = start()
        assert owner.ask("claim", run="r") == OK
        assert owner.ask("commit", run="r", times=2) == OK
        owner.kill()
        successor = start()
        assert successor.ask("claim", run="r") == OK
        assert successor.ask("commit", run="r", times=1) == OK
        assert len(successor.ask("ids")["ok"]) == 3 * (number + 1)
        assert successor.ask("release", run="r") == OK


def test_the_runs_of_an_owner_that_ended_are_free(start: Callable[[], Child], place: Path) -> None:
    owner = start()
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    assert owner.end() == 0
    assert list(place.parent.rglob("*.lock")) == []
    assert start().ask("claim", run="r") == OK


async def test_acknowledged_commits_survive_a_kill(start: Callable[[], Child], store: Store) -> None:
    told: list[str] = []
    for commits in (1, 2, 5, 9, 14):
        child = start()
        assert child.ask("claim", run="r") == OK
        child.tell("commit on and on", run="r")
        told = [child.hear() for _ in range(commits)]
        child.kill()
        record = await store.run("r")
        history = await store.manifests(run_id="r")
        assert record is not None
        assert [manifest.position for manifest in history] == list(range(record.position + 1))
        assert told[-1] in {manifest.checkpoint_id for manifest in history}
        assert record.head == history[-1].checkpoint_id
        latest = await store.latest(workflow_name="flow")
        assert latest == history[-1]
        for manifest in history:
            assert len(await store.blobs(manifest.toc.values())) == 2
    await store.close()


async def test_an_owner_that_wakes_after_a_takeover_writes_nothing(start: Callable[[], Child], store: Store) -> None:
    sleeper, rival = start(), start()
    assert sleeper.ask("claim", run="r") == OK
    assert sleeper.ask("commit", run="r", times=2) == OK
    sleeper.signal(signal.SIGSTOP)
    assert rival.ask("claim", run="r")["error"] == "RunBusyError"
    assert rival.ask("claim", run="r", takeover=True) == OK
    before = await store.ids()
    sleeper.signal(signal.SIGCONT)
    refusal = sleeper.ask("commit", run="r", times=1)
    assert refusal["error"] == "LeaseLostError"
    assert f"process {rival.pid} on " in refusal["message"]
    assert await store.ids() == before
    assert rival.ask("commit", run="r", times=1) == OK
    assert sleeper.ask("commit", run="r", times=1)["error"] == "LeaseLostError"
    assert await store.ids() == [*before, "r@2"]
    await store.close()


def test_a_forked_child_is_another_owner(start: Callable[[], Child]) -> None:
    parent, other = start(), start()
    assert parent.ask("claim", run="r") == OK
    assert parent.ask("commit", run="r", times=1) == OK
    refused, acquired, committed = parent.ask(
        "fork",
        then=[
            {"do": "claim", "run": "r"},
            {"do": "claim", "run": "of the child"},
            {"do": "commit", "run": "of the child", "times": 2},
        ],
    )["ok"]
    assert refused["error"] == "RunBusyError"
    assert f"process {parent.pid} on " in refused["message"]
    assert (acquired, committed) == (OK, OK)
    assert other.ask("claim", run="r")["error"] == "RunBusyError", "the child's end has freed what its parent holds"
    assert other.ask("claim", run="of the child") == OK
    assert parent.ask("commit", run="r", times=2) == OK
    assert sorted(parent.ask("ids")["ok"]) == ["of the child@0", "of the child@1", "r@0", "r@1", "r@2"]


def test_parent_writes_what_waited_during_a_fork(start: Callable[[], Child]) -> None:
    parent = start()
    assert parent.ask("claim", run="r") == OK
    assert parent.ask("commit", run="r", times=1) == OK
    orders = [{"do": "claim", "run": "s"}, {"do": "commit", "run": "s", "times": 1}, {"do": "ids"}]
    parent.tell("fork while a commit waits", run="r", then=orders)
    answers, head = parent.hear()
    assert answers["ok"] == [OK, OK, {"ok": ["r@0", "s@0"]}]
    assert head == "r@1"


def test_an_open_store_does_not_hold_up_the_end(start: Callable[[], Child]) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.end() == 0


def test_a_commit_without_space_is_refused_and_can_be_done_again(start: Callable[[], Child]) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    assert child.ask("fill the disk", run="r") == {"ok": ["CheckpointWriteError", "r@1"]}
    assert child.ask("ids") == {"ok": ["r@0", "r@1"]}


@pytest.mark.parametrize("durable", [True, False])
def test_the_records_of_a_killed_writer_are_there_for_the_next(start: Callable[[], Child], *, durable: bool) -> None:
    writer = start()
    assert writer.ask("claim", run="r") == OK
    assert writer.ask("commit", run="r", times=2) == OK
    assert writer.ask("note", run="r", keys=["a", "b"], durable=durable) == OK
    writer.kill()
    successor = start()
    assert successor.ask("journal", run="r") == {"ok": {"a": 2, "b": 2}}
    assert successor.ask("claim", run="r") == OK
    assert successor.ask("note", run="r", keys=["c", "a"], durable=durable) == OK
    assert successor.ask("journal", run="r") == {"ok": {"a": 2, "b": 2, "c": 2}}
    assert successor.ask("commit", run="r", times=1) == OK
    successor.kill()
    assert start().ask("journal", run="r") == {"ok": {}}


@pytest.mark.parametrize("durable", [True, False])
async def test_acknowledged_records_survive_a_kill(start: Callable[[], Child], store: Store, *, durable: bool) -> None:
    for number, notes in enumerate((1, 7, 40)):
        child = start()
        assert child.ask("claim", run="r") == OK
        assert child.ask("commit", run="r", times=1) == OK
        child.tell("note on and on", run="r", durable=durable)
        told = [child.hear() for _ in range(notes)]
        child.kill()
        journal = await store.journal("r")
        assert [record.key for record in journal] == [str(key) for key in range(len(journal))]
        assert len(journal) >= len(told)
        assert [len(record.data) for record in journal] == [key % 9000 for key in range(len(journal))]
        assert len(await store.ids()) == number + 1
    await store.close()


def test_an_owner_that_wakes_after_a_takeover_records_nothing(start: Callable[[], Child]) -> None:
    sleeper, rival = start(), start()
    assert sleeper.ask("claim", run="r") == OK
    assert sleeper.ask("commit", run="r", times=1) == OK
    assert sleeper.ask("note", run="r", keys=["a"], durable=False) == OK
    sleeper.signal(signal.SIGSTOP)
    assert rival.ask("claim", run="r", takeover=True) == OK
    assert rival.ask("note", run="r", keys=["b"], durable=True) == OK
    sleeper.signal(signal.SIGCONT)
    assert sleeper.ask("note", run="r", keys=["c"], durable=True)["error"] == "LeaseLostError"
    assert rival.ask("journal", run="r") == {"ok": {"a": 2, "b": 2}}
    assert sleeper.ask("journal", run="r") == {"ok": {"a": 2, "b": 2}}


def test_records_without_space_are_refused_and_can_be_written_again(start: Callable[[], Child]) -> None:
    child = start()
    assert child.ask("claim", run="r") == OK
    assert child.ask("commit", run="r", times=1) == OK
    assert child.ask("note", run="r", keys=["a"], durable=True) == OK
    outcome, between, after = child.ask("fill the disk with a note", run="r")["ok"]
    assert outcome == "CheckpointWriteError"
    assert between == {"a": 2}
    assert after == {"a": 2, "large": 0}


async def test_one_of_many_equal_commands_of_processes_stands(start: Callable[[], Child], store: Store) -> None:
    owner, posters = start(), [start() for _ in range(8)]
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    for turn in range(5):
        for number, poster in enumerate(posters):
            poster.tell("post", run="r", id=f"request {turn}", data=f"answer {number}")
        outcomes = [poster.hear()["ok"] for poster in posters]
        assert outcomes == outcomes[:1] * 8
        assert outcomes[0][1] in {f"answer {number}" for number in range(8)}
        assert [[each.number, each.data.decode()] for each in await store.inbox("r")][turn:] == outcomes[:1]
    await store.close()


async def test_acknowledged_commands_survive_a_kill(start: Callable[[], Child], store: Store) -> None:
    owner = start()
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    told: list[str] = []
    for posts in (1, 7, 30):
        poster = start()
        poster.tell("post on and on", run="r")
        told += [poster.hear() for _ in range(posts)]
        poster.kill()
        inbox = await store.inbox("r")
        assert {each.id for each in inbox} >= set(told)
        assert [each.number for each in inbox] == sorted(each.number for each in inbox)
        for each in inbox:
            assert len(await store.blobs(each.refs)) == 1
    assert owner.ask("commit", run="r", times=1) == OK
    await store.close()


async def test_command_posted_while_owners_are_killed_is_consumed_once(
    start: Callable[[], Child], store: Store
) -> None:
    first = start()
    assert first.ask("claim", run="r") == OK
    assert first.ask("commit", run="r", times=1) == OK
    first.kill()
    poster = start()
    poster.tell("post on and on", run="r")
    told: list[str] = []
    for consumed in (1, 5, 20):
        owner = start()
        assert owner.ask("claim", run="r") == OK
        owner.tell("consume on and on", run="r")
        told += [owner.hear() for _ in range(consumed)]
        owner.kill()
    poster.kill()
    batches = await store.events("r")
    assert [batch.first for batch in batches[1:]] == [batch.last + 1 for batch in batches[:-1]]
    effects = [each for batch in batches for each in batch.data.decode().split("\n")]
    waiting = [each.id for each in await store.inbox("r")]
    assert set(told) <= set(effects)
    posted = [int(each.split()[1]) for each in (*effects, *waiting)]
    assert posted == list(range(len(posted)))
    await store.close()


def test_watcher_notices_changes_by_another_process(start: Callable[[], Child]) -> None:
    owner, watcher = start(), start()
    watcher.tell("watch", run="r")
    assert watcher.hear() == "watching"
    assert owner.ask("claim", run="r") == OK
    assert owner.ask("commit", run="r", times=1) == OK
    mark = watcher.hear()["ok"]
    assert mark == {
        "head": "r@0",
        "events": 0,
        "commands": 0,
        "owner": mark["owner"],
        "is_halted": False,
        "is_blocked": False,
    }
    assert mark["owner"]
    watcher.tell("watch", run="r")
    assert watcher.hear() == "watching"
    number, _ = start().ask("post", run="r", id="a", data="x")["ok"]
    assert watcher.hear() == {"ok": {**mark, "commands": number}}
