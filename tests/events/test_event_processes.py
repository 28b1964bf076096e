"""A log that is followed in one process while others advance the run."""

from __future__ import annotations

import signal
from pathlib import Path
from subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest
from tests import warm
from tests.events.samples import SHOP, numbered

from perdure.storage import FileStore, SqliteStore, committed_events

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator
    from typing import Self

    from perdure.events import WorkflowEvent
    from perdure.storage import Store

ROOT = Path(__file__).parents[2]


class Committer:
    """A process that makes a commit whenever it is told to."""

    def __init__(self, kind: str, path: Path, commits: int, *, dies: bool = False) -> None:
        self.process = warm.start(
            *("-m", "tests.events.committer", kind, str(path), str(commits), "dies" if dies else "rests"),
            stdin=PIPE,
            cwd=ROOT,
        )

    def go_on(self, times: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n" * times)
        self.process.stdin.flush()

    def end(self) -> int:
        """Wait for its end; its exit code."""
        self.process.communicate()
        return self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture(params=["sqlite", "file"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(kind: str, path: Path) -> Store:
    return SqliteStore(path) if kind == "sqlite" else FileStore(path)


def followed(store: Store, *, until_rest: bool = True, **options: Any) -> AsyncGenerator[WorkflowEvent[Any]]:
    return committed_events(store, lambda: SHOP, "r", follow=True, until_rest=until_rest, **options)


def told_by(commits: range) -> list[str]:
    return [f"{which} of {number}" for number in commits for which in ("first", "second")]


async def test_what_another_process_commits_is_told_here(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path / "runs")
    events = followed(store)
    with Committer(kind, tmp_path / "runs", 3) as committer:
        for commit in range(3):
            # Nothing more is committed before this one was told.
            committer.go_on()
            pair = [await anext(events), await anext(events)]
            assert [(event.seq, event.data) for event in pair] == [
                (2 * commit + 1, f"first of {commit}"),
                (2 * commit + 2, f"second of {commit}"),
            ]
        assert await numbered(events) == [(7, "end")]
        assert committer.end() == 0
    await store.close()


async def test_who_waits_for_rest_does_not_wait_for_the_dead(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path / "runs")
    events = followed(store)
    with Committer(kind, tmp_path / "runs", 2, dies=True) as first:
        first.go_on(2)
        assert first.end() == -signal.SIGKILL
        assert await numbered(events) == list(enumerate(told_by(range(2)), start=1))
    await store.close()


async def test_the_log_goes_on_without_a_gap_when_the_process_that_told_it_is_killed(kind: str, tmp_path: Path) -> None:
    store = opened(kind, tmp_path / "runs")
    events = followed(store, until_rest=False)
    with Committer(kind, tmp_path / "runs", 2, dies=True) as first:
        first.go_on(2)
        told = [await anext(events) for _ in range(4)]
        assert first.end() == -signal.SIGKILL
    with Committer(kind, tmp_path / "runs", 2) as second:
        second.go_on(2)
        while told[-1].data != "end":
            told.append(await anext(events))
        await events.aclose()
        assert second.end() == 0
    expected = list(enumerate([*told_by(range(4)), "end"], start=1))
    assert [(event.seq, event.data) for event in told] == expected
    assert await numbered(followed(store, from_seq=6)) == expected[5:]
    await store.close()
